"""One run, read from top to bottom: find the function, decode its arguments, call it, judge how it ended.

Nothing here writes to the queue: a run ends in an `Outcome`, and the control loop settles it. Whatever user code
returns or raises becomes an outcome that can be stored; nothing of it reaches the thread that runs it.
"""

from __future__ import annotations

import json
import logging
import os
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from types import CoroutineType, TracebackType
from typing import Any, Protocol
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from django_dhara import events, lifecycle, payload, registry, results, retry, sql, tracing
from django_dhara.compat import DjangoTask, TaskContext, TaskError, task_started
from django_dhara.conf import Options
from django_dhara.errors import (
    DharaError,
    Discard,
    PayloadError,
    Retry,
    Snooze,
    TaskCanceled,
    TaskInterrupted,
    TaskTimeout,
    UnknownFunction,
)
from django_dhara.lifecycle import Claim, Ending
from django_dhara.results import in_django_time
from django_dhara.signals import announce, calls_user_code, current_task, is_heard
from django_dhara.states import (
    Completed,
    Discarded,
    Error,
    Failed,
    HandedBack,
    Interrupted,
    Outcome,
    Snoozed,
    State,
    TimedOut,
)
from django_dhara.tasks import MAX_DELAY, Task

#: Seconds before a task whose function does not exist here is offered again, to us or to a newer worker.
UNKNOWN_DELAY_SECONDS = 15.0


class Reporter(Protocol):
    """Where a running function's words go: to the control loop, or straight to the database in tests."""

    def progress(self, run: Run, text: str) -> None: ...

    def checkpoint(self, run: Run, text: str) -> None:
        """Returns once it is stored.

        Raises:
            LeaseLost: the task is no longer this run's.
        """


@dataclass(slots=True, eq=False)
class Run:
    """One run of a claimed task in this process, shared by the control loop and the thread that calls the function."""

    claim: Claim
    worker: UUID
    backend: type
    alias: str
    options: Options
    reporter: Reporter
    #: When the lease runs out, by this process' monotonic clock, counted from before the claim or renewal was sent.
    lease_ends: float
    #: When it came into this process.
    taken: float = 0.0
    #: When a thread took it up, to import its function at first.
    picked: float | None = None
    #: The thread that took it up, by its number.
    thread: int | None = None
    #: Monotonic times of the function's start and end.
    started: float | None = None
    ended: float | None = None
    task: DjangoTask | None = None
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    exception: BaseException | None = None
    #: The function's own transaction has settled the task (`atomic=True`).
    settled: State | None = None
    #: The database takes no outcome of this run, not even the least: when to try again.
    refused_until: float = 0.0
    #: ... and for its data, not because a table is missing: its lease is not renewed any more.
    is_hopeless: bool = False
    #: Somebody asked the task to be canceled.
    canceled: bool = False
    #: The database is out of reach, so the lease may run out although this worker lives.
    at_risk: bool = False
    #: The control loop has settled this run itself (timeout, shutdown); its own outcome is not wanted any more.
    abandoned: bool = False
    #: The database said that the task is not this run's any more.
    lost: bool = False
    #: The worker is about to stop.
    stopping: bool = False
    #: The function does not exist here.
    unknown: bool = False
    #: What its function was seen to do in another process, shortly before its timeout.
    seen: str = ""

    @property
    def key(self) -> tuple[UUID, int]:
        return self.claim.id, self.claim.lease

    @property
    def is_async(self) -> bool:
        return self.task is not None and self.claim.function in registry.async_paths

    @property
    def is_atomic(self) -> bool:
        return isinstance(self.task, Task) and self.task.atomic

    @property
    def seconds(self) -> float | None:
        return None if self.started is None else (self.ended or monotonic()) - self.started

    @property
    def timeout(self) -> float:
        own = self.task.timeout if isinstance(self.task, Task) else None
        return self.claim.timeout or own or self.options.timeout_seconds


class Context(TaskContext):
    """What a function with `takes_context=True` receives first."""

    __slots__ = ("_run",)
    _run: Run

    def __init__(self, run: Run) -> None:
        super().__init__(task_result=result(run, State.RUNNING))
        object.__setattr__(self, "_run", run)

    @property
    def attempt(self) -> int:
        """1 in the first run; failed and lost runs count, snoozed and interrupted ones do not."""
        return self._run.claim.attempt

    @property
    def lease(self) -> int:
        """The number of this run's lease: it only grows, so an outside system can refuse the writes of an older run."""
        return self._run.claim.lease

    @property
    def canceled(self) -> bool:
        """Somebody canceled the task, or it was taken away or is overdue: a long function looks here and ends early."""
        return self._run.canceled or self._run.abandoned

    @property
    def stopping(self) -> bool:
        """The worker stops soon: save a checkpoint and raise `Snooze(0)`, or go on and be done in time."""
        return self._run.stopping

    @property
    def lease_at_risk(self) -> bool:
        """The database is out of reach; if that lasts, another worker will start this task too."""
        return self._run.at_risk

    @property
    def metadata(self) -> dict[str, Any]:
        """What was given to `using(metadata=...)`."""
        return tracing.without_carrier(json.loads(self._run.claim.metadata or "{}")) or {}

    @property
    def checkpoint(self) -> Any:
        """What the last `save_checkpoint` of this task stored, in this attempt or an earlier one; None at first."""
        return json.loads(self._run.claim.checkpoint) if self._run.claim.checkpoint else None

    def save_checkpoint(self, value: Any) -> None:
        """Store how far the work has come, for the next attempt; returns once it is stored.

        In an `async def` function use `await context.asave_checkpoint(value)`.

        Raises:
            PayloadError: it is not JSON, or larger than MAX_RESULT_BYTES.
            LeaseLost: another run has the task by now; stop.
        """
        text = payload.encode_value(value, "checkpoint", max_bytes=self._run.options.max_result_bytes)
        self._run.reporter.checkpoint(self._run, text)
        self._run.claim.checkpoint = text

    async def asave_checkpoint(self, value: Any) -> None:
        """See `save_checkpoint()`."""
        await sync_to_async(self.save_checkpoint, thread_sensitive=False)(value)

    def progress(self, value: Any) -> None:
        """Show how far the function is, such as 0.4 or {"done": 4, "of": 10}; stored within a second, the newest wins.

        Raises:
            PayloadError: it is not JSON, or larger than MAX_RESULT_BYTES.
        """
        text = payload.encode_value(value, "progress", max_bytes=self._run.options.max_result_bytes)
        self._run.reporter.progress(self._run, text)


def execute(run: Run) -> Outcome:
    """Run a plain function to its end."""
    if tracing.tracer is None:
        return _execute(run)
    with tracing.tracer.running(run) as tell:
        outcome = _execute(run)
        tell(outcome)
    return outcome


def _execute(run: Run) -> Outcome:
    try:
        _announce_start(run)
        return _execute_atomic(run) if run.is_atomic else complete(run, begin(run)())
    except BaseException as error:
        return judge(run, error)


def _execute_atomic(run: Run) -> Outcome:
    """Run the function and settle its task in one transaction: both commit, or neither does.

    Only `on_commit` proves the commit: a block can end without an exception although nothing was committed.
    """
    alias = run.options.database
    with transaction.atomic(using=alias):
        outcome = complete(run, begin(run)())
        ending = Ending(*run.key, outcome, run.seconds)
        state = lifecycle.settle_in_transaction(sql.on(alias), run.worker, ending)
        transaction.on_commit(lambda: setattr(run, "settled", state), using=alias)
    if run.settled is None:
        raise DharaError(f"the transaction of {run.claim.function} ended without a commit")
    return outcome


async def aexecute(run: Run) -> Outcome:
    """Run an `async def` function to its end."""
    if tracing.tracer is None:
        return await _aexecute(run)
    with tracing.tracer.running(run) as tell:
        outcome = await _aexecute(run)
        tell(outcome)
    return outcome


async def _aexecute(run: Run) -> Outcome:
    try:
        if calls_user_code(task_started):
            await sync_to_async(_announce_start)(run)  # receivers may use the ORM, which the event loop forbids
        else:
            _announce_start(run)
        value = await begin(run)()
    except BaseException as error:
        return judge(run, error)
    return complete(run, value)


def prepare(run: Run) -> Outcome | None:
    """Find the function and decode its arguments; an outcome if that is impossible, None if it may start.

    A path that does not exist here waits for a worker that has it. A payload that is not what we write never will be.
    """
    try:
        run.task = registry.resolve(run.claim.function)
        run.args, run.kwargs = payload.decode(run.claim.payload)
    except UnknownFunction as error:
        run.unknown, run.exception = True, error
        return HandedBack(UNKNOWN_DELAY_SECONDS)
    except PayloadError as error:
        run.exception = error
        return Discarded(describe(run, error))
    except BaseException as error:
        return judge(run, error)
    return None


def begin(run: Run) -> Callable[[], Any]:
    """The call of a prepared run, ready to be made, with its context."""
    task = run.task
    assert task is not None
    args = [Context(run), *run.args] if task.takes_context else run.args
    return partial(_call, task.func, *args, **run.kwargs)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A fork that the function lets run on into our code ends here: the run is its parent's, and so are the sockets."""
    process = os.getpid()
    try:
        return function(*args, **kwargs)
    finally:
        if os.getpid() != process:
            os._exit(1)


def _announce_start(run: Run) -> None:
    """Before the transaction of an atomic run: a query of a receiver that fails must not break it."""
    current_task.set(run.claim.id)
    try:
        if is_heard(task_started, logging.INFO):
            announce(task_started, run.backend, task_result=result(run, State.RUNNING))
    except BaseException:  # what even a robust signal lets through, such as SystemExit
        events.RECEIVER_FAILED.murmur("", exc_info=True)


def complete(run: Run, value: Any) -> Outcome:
    """A returned value is a success, whatever it is: what cannot be stored is changed or left out, with a warning."""
    if type(value) is CoroutineType:  # not isinstance(): it would ask a lazy object for its class, and run its code
        value.close()
    text, warning = payload.storable_result(value, max_bytes=run.options.max_result_bytes)
    if warning:
        named = {"task_id": run.claim.id, "function": run.claim.function}
        events.RESULT_CHANGED.murmur((run.claim.function, warning), change=warning, **named)
    return Completed(text, warning)


def judge(run: Run, error: BaseException) -> Outcome:
    """What an exception makes of the run. It never raises, and keeps only text that can be stored."""
    run.exception = error
    if isinstance(error, Snooze):
        return Snoozed(_own_delay(error))
    if isinstance(error, CancelledError) and run.abandoned:
        return interrupt(run)
    if isinstance(error, CancelledError) and run.canceled:
        error = run.exception = TaskCanceled("the run was asked to stop")
    told = describe(run, error)
    if isinstance(error, Discard):
        return Discarded(told)
    delay = _delay(run, error, told)
    return Discarded(told) if delay is None else Failed(told, delay)


def time_out(run: Run, place: TracebackType | None = None) -> Outcome:
    """The outcome of an overdue run; it asks the function's own backoff and reads source files, so it is not for the
    control loop.

    Args:
        place: where the function was.
    """
    error = run.exception = TaskTimeout(f"no end after {run.timeout:g} s").with_traceback(place)
    told = describe(run, error)
    if run.seen:
        seen = payload.clean_text(payload.TRACEBACK + run.seen, max_bytes=run.options.max_traceback_bytes * 3 // 4)
        told = replace(told, traceback=seen + told.traceback)
    delay = _delay(run, error, told)
    return Discarded(told) if delay is None else TimedOut(told, delay)


def interrupt(run: Run) -> Outcome:
    """The outcome of a run that a stopping worker releases."""
    return Interrupted(describe(run, TaskInterrupted("the worker stopped before the function ended")))


def describe(run: Run, error: BaseException) -> Error:
    return payload.describe_exception(error, max_bytes=run.options.max_traceback_bytes)


def _delay(run: Run, error: BaseException, told: Error) -> float | None:
    """Seconds until the next attempt; None: do not retry. The function's own policy, else the backend's."""
    if isinstance(error, Retry):
        return _own_delay(error)
    default = retry.Exponential(run.options.backoff_base_seconds, run.options.backoff_cap_seconds)
    own = run.task.backoff if isinstance(run.task, Task) else None
    if own is None:
        return retry.full_jitter(run.claim.attempt, base=default.base, cap=default.cap)
    failed = result(run, State.PENDING, TaskError(exception_class_path=told.class_path, traceback=told.traceback))
    delay, problem = retry.delay_from(own, error, failed, default=default)
    if problem is not None:
        events.BACKOFF_FAILED.murmur(run.claim.function, function=run.claim.function, exc_info=problem)
    return delay


def _own_delay(error: Snooze | Retry) -> float:
    """The delay that the exception brings, if it is one: a subclass may have put anything there."""
    try:
        delay = float(error.delay)
    except BaseException:
        delay = -1.0
    return min(delay, MAX_DELAY.total_seconds()) if delay >= 0 else retry.LAST_RESORT


def result(run: Run, state: State, *errors: TaskError, **named: Any) -> results.TaskResult:
    """The run's task as a TaskResult, without asking the database."""
    claim = run.claim
    earlier = json.loads(claim.history) if claim.history else []
    task = run.task or results.missing_task(claim.function)
    return results.make(
        results.changed(task, queue_name=claim.queue, priority=claim.priority, backend=run.alias),
        id=str(claim.id),
        state=state,
        enqueued_at=in_django_time(claim.enqueued_at, run.options.database),
        started_at=in_django_time(claim.started_at, run.options.database),
        last_attempted_at=in_django_time(claim.attempted_at, run.options.database),
        args=run.args,
        kwargs=run.kwargs,
        backend=run.alias,
        errors=[TaskError(exception_class_path=c, traceback=t) for c, t, _ in earlier] + list(errors),
        worker_ids=[worker for _, _, worker in earlier] + [str(run.worker)],
        counted=claim.attempt,
        **{"finished_at": None, **named},
    )
