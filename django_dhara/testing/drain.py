"""Run tasks in a test, on the test's own connection and thread: claim, run, settle and announce as a worker does.

The statements are those of `lifecycle`, the pipeline is that of `execution`. What differs from a worker:

- One task at a time, in the order of claiming, in this thread; no lease is renewed, nothing is rescued, and no rows of
  workers or statistics are written.
- In a TestCase a function runs inside the test's transaction. What it wrote before it raised stays, and its `on_commit`
  callbacks are called when its outermost `atomic()` block ends, as in a worker (see `shield.py`). But a failed query
  outside `atomic()`, its own or that of a receiver of `task_started`, fails its later queries too, and takes back all
  that it wrote.
- A plain function that overruns its timeout is not left behind: it runs to its end and is then recorded as timed out,
  by however little it was late. An `async def` function gets its CancelledError in time.
- `context.canceled`, `stopping` and `lease_at_risk` stay False; progress and checkpoints are stored when the function
  ends.
- Ctrl-C and pytest's own exceptions (`pytest.fail()`, a timeout) count as a failure and are then raised in the test.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Protocol
from uuid import UUID, uuid4

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError
from django.utils import timezone, translation

from django_dhara import execution, news
from django_dhara.backend import DharaBackend, QueueBackend
from django_dhara.compat import TaskResultDoesNotExist, task_backends
from django_dhara.execution import Run
from django_dhara.lifecycle import Claim
from django_dhara.results import TaskResult
from django_dhara.states import Completed, HandedBack, Outcome, State
from django_dhara.testing.shield import Shield

logger = logging.getLogger("django_dhara.testing")

#: Runs after which `run_all` believes that a task enqueues itself or snoozes for ever.
MAX_RUNS = 1000


class Store(Protocol):
    """Where tasks are kept: rows of the database, or a list in memory."""

    def claim(self, worker: UUID, unknown: Collection[str]) -> Claim | None:
        """pending -> running, one ready task."""

    def settle(self, run: Run, outcome: Outcome) -> State | None:
        """running -> ...; None: the task is no longer this run's."""

    def execute(self, run: Run) -> Outcome:
        """Run a plain function to its end."""

    def report(self, run: Run, progress: str | None, checkpoint: str | None) -> None: ...

    def now(self) -> datetime: ...

    def next_due(self, after: datetime, unknown: Collection[str]) -> timedelta | None:
        """How long the next task that was not due at `after` has to wait; None: there is none."""

    def shift(self, back: timedelta) -> None:
        """Let every pending task be due earlier."""

    def unshift(self, forth: timedelta) -> None:
        """Undo it for those that still wait."""

    def result(self, id_: UUID) -> TaskResult: ...


def run_all(
    *,
    queues: Iterable[str] | None = None,
    backend: str = "default",
    max_runs: int = MAX_RUNS,
    include_scheduled: bool = False,
    at: datetime | timedelta | None = None,
) -> list[TaskResult]:
    """Run every ready task, and those that become ready on the way, in this thread and on its connection.

    Args:
        queues: only these; all without it.
        backend: the alias in TASKS: our real backend, or a `ManualBackend`.
        max_runs: give up after so many.
        include_scheduled: let time pass: run scheduled tasks, retries and snoozed tasks too, in their order.
        at: the same, for what is due at this time, or within this timedelta. Time passes for rows only: what a
            function reads from the clock is the present.

    Returns:
        A result for each task that ran, in the order of their first runs, as they stand now.

    Raises:
        RuntimeError: there is still something to run after `max_runs` runs.
        TransactionGone: a function ended the test's transaction.
    """
    drain = _drain(backend, queues, horizon=_horizon(at, include_scheduled=include_scheduled))
    try:
        while drain.run_next():
            if sum(drain.ran.values()) >= max_runs and drain.has_more():
                raise RuntimeError(_endless(drain, max_runs))
    finally:
        drain.end()
    return drain.results()


def run_one(
    *,
    queues: Iterable[str] | None = None,
    backend: str = "default",
    include_scheduled: bool = False,
    at: datetime | timedelta | None = None,
) -> TaskResult | None:
    """Run the task that a worker would take next, once; None if there is none. The arguments are those of `run_all`."""
    drain = _drain(backend, queues, horizon=_horizon(at, include_scheduled=include_scheduled))
    try:
        drain.run_next()
    finally:
        drain.end()
    return next(iter(drain.results()), None)


async def arun_all(**named: Any) -> list[TaskResult]:
    """See `run_all`; for `async def` tests of a TestCase."""
    return await sync_to_async(run_all, thread_sensitive=True)(**named)


def _drain(alias: str, queues: Iterable[str] | None, *, horizon: timedelta) -> Drain:
    from django_dhara.testing.backends import MemoryBackend
    from django_dhara.testing.rows import Rows

    backend, wanted = task_backends[alias], None if queues is None else tuple(queues)
    if isinstance(queues, str):
        raise TypeError(f"queues takes a list of names, not the string {queues!r}.")
    if isinstance(backend, MemoryBackend):
        return Drain(backend, backend.memory.on_queues(wanted), horizon=horizon)
    if isinstance(backend, DharaBackend):
        return Drain(backend, Rows(backend, wanted), horizon=horizon)
    raise TypeError(f"TASKS[{alias!r}] is {type(backend).__name__}: django_dhara.testing runs the tasks of its own.")


def _horizon(at: datetime | timedelta | None, *, include_scheduled: bool) -> timedelta:
    if at is None:
        return timedelta.max if include_scheduled else timedelta(0)
    return at - timezone.now() if isinstance(at, datetime) else at


def _endless(drain: Drain, max_runs: int) -> str:
    counts = Counter[str]()
    for id_, runs in drain.ran.items():
        counts[drain.paths[id_]] += runs
    most = ", ".join(f"{path} ({count})" for path, count in counts.most_common(5))
    return (
        f"After {max_runs} runs there is still something to run. Most often ran: {most}. "
        "Does a task enqueue itself, or snooze for ever? Otherwise give a larger max_runs."
    )


class Drain:
    """Runs the tasks of a store one after the other.

    Args:
        horizon: how much time may pass, by moving rows, to make scheduled tasks due.
    """

    def __init__(self, backend: QueueBackend, store: Store, *, horizon: timedelta) -> None:
        self._backend, self._store = backend, store
        self._horizon, self._passed = horizon, timedelta(0)
        self.worker = uuid4()
        self._unknown: set[str] = set()
        #: How often each task ran, in the order of their first runs, and what its function is.
        self.ran: dict[UUID, int] = {}
        self.paths: dict[UUID, str] = {}

    def run_next(self) -> bool:
        """Run the next task; False if there is none."""
        claim = self._claim()
        if claim is None:
            return False
        self.ran[claim.id] = self.ran.get(claim.id, 0) + 1
        self.paths[claim.id] = claim.function
        self.run(claim)
        return True

    def has_more(self) -> bool:
        """Is there another one? It is handed back at once."""
        claim = self._claim()
        if claim is not None:
            self._store.settle(self._new_run(claim), HandedBack())
        return claim is not None

    def run(self, claim: Claim) -> None:
        """Run one claimed task in a context of its own, and send its signals."""
        run = self._new_run(claim)
        state = contextvars.copy_context().run(self._perform, run)
        if run.unknown:
            logger.error("%s", run.exception)
            self._unknown.add(claim.function)
        calls = news.of_lost(run) if state is None else news.of_settled(run, _ended(run), state)
        for call in calls:
            with Shield("a signal receiver") as shield:
                contextvars.copy_context().run(call)
                shield.call_hooks()
        if run.exception is not None and _is_for_the_test(run.exception):
            raise run.exception

    def end(self) -> None:
        """Time stops passing: what still waits is due when it was."""
        if self._passed:
            with suppress(DatabaseError):  # a transaction that is gone has taken the rows with it
                self._store.unshift(self._passed)

    def results(self) -> list[TaskResult]:
        found = []
        for id_ in self.ran:
            try:
                found.append(self._store.result(id_))
            except TaskResultDoesNotExist:
                continue  # a function deleted its own row
        return found

    def _new_run(self, claim: Claim) -> Run:
        return Run(
            claim=claim,
            worker=self.worker,
            backend=type(self._backend),
            alias=self._backend.alias,
            options=self._backend.settings,
            reporter=_Notes(),
            lease_ends=float("inf"),
            taken=monotonic(),
        )

    def _claim(self) -> Claim | None:
        while True:
            asked = self._store.now()
            claim = self._store.claim(self.worker, self._unknown)
            if claim is not None or not self._let_time_pass(asked):
                return claim

    def _let_time_pass(self, asked: datetime) -> bool:
        """Until the next task is due, if that is wanted. One may have become due by itself since `asked`."""
        wait = self._store.next_due(asked, self._unknown) if self._horizon > timedelta(0) else None
        if wait is None or wait > self._horizon - self._passed:
            return False
        self._store.shift(wait)
        self._passed += wait
        return True

    def _perform(self, run: Run) -> State | None:
        translation.deactivate()
        timezone.deactivate()
        run.outcome = execution.prepare(run)
        if run.outcome is None:
            with Shield(run.claim.function) as shield:
                self._call(run)
                _call_hooks(run, shield)
            self._write_notes(run)
        return run.settled or self._store.settle(run, _ended(run))

    def _call(self, run: Run) -> None:
        run.started = monotonic()
        run.outcome = async_to_sync(_aexecute)(run) if run.is_async else self._store.execute(run)
        run.ended = monotonic()
        is_late = run.abandoned or run.ended - run.started > run.timeout
        if is_late and run.settled is None:
            run.outcome = execution.time_out(run)

    def _write_notes(self, run: Run) -> None:
        notes = run.reporter
        assert isinstance(notes, _Notes)
        if notes.progress_text is not None or notes.checkpoint_text is not None:
            self._store.report(run, notes.progress_text, notes.checkpoint_text)


class _Notes:
    """What a function reports: kept until it ends, for it may report from any thread."""

    def __init__(self) -> None:
        self.progress_text: str | None = None
        self.checkpoint_text: str | None = None

    def progress(self, run: Run, text: str) -> None:
        self.progress_text = text

    def checkpoint(self, run: Run, text: str) -> None:
        self.checkpoint_text = text


def _ended(run: Run) -> Outcome:
    assert run.outcome is not None
    return run.outcome


async def _aexecute(run: Run) -> Outcome:
    task = asyncio.ensure_future(execution.aexecute(run))
    _, late = await asyncio.wait({task}, timeout=run.timeout)
    if late:
        run.abandoned = True
        task.cancel()
    return await task


def _call_hooks(run: Run, shield: Shield) -> None:
    """What a callback raises leaves the `atomic()` block of the function, and so fails the run."""
    try:
        shield.call_hooks()
    except Exception as error:
        if run.settled is None and isinstance(run.outcome, Completed):
            run.outcome = execution.judge(run, error)
        else:
            logger.exception("An on_commit() callback of %s raised", run.claim.function)


def _is_for_the_test(error: BaseException) -> bool:
    return not isinstance(error, (Exception, SystemExit, GeneratorExit, asyncio.CancelledError))
