"""What a worker announces, once the database has accepted it. Nothing is built where nobody listens."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from django.dispatch import Signal
from django.utils import timezone

from django_dhara import signals
from django_dhara.backend import read_results
from django_dhara.compat import TaskError, task_finished
from django_dhara.execution import Run, result
from django_dhara.lifecycle import Rescued
from django_dhara.models import Task
from django_dhara.results import end_canceled
from django_dhara.signals import announce, is_heard
from django_dhara.states import Completed, Discarded, Failed, Outcome, State, TimedOut

Call = Callable[[], Any]


def of_settled(run: Run, outcome: Outcome, state: State) -> list[Call]:
    """What to send for a run that ended in `state`; each call is for the herald."""
    calls = _calls(run, outcome, state)
    return [partial(_with_facts, call, run, outcome, state) for call in calls] if calls else calls


def _calls(run: Run, outcome: Outcome, state: State) -> list[Call]:
    if state is State.COMPLETED:  # nearly all of them
        return [lambda: _finished(run, outcome, state)] if is_heard(task_finished, logging.INFO) else []
    calls: list[Call] = []
    match outcome:
        # Of a task that was to be canceled nobody needs to hear that it failed.
        case Failed() | TimedOut() | Discarded() if state is not State.CANCELED and is_heard(
            signals.attempt_failed, logging.INFO
        ):
            calls.append(lambda: _failed(run, outcome, state))
        case _:
            pass
    if state is State.DEAD and (is_heard(task_finished, logging.ERROR) or signals.task_dead.receivers):
        calls.append(lambda: _finished(run, outcome, state))
    elif state is State.CANCELED and is_heard(signals.task_canceled, logging.INFO):
        calls.append(lambda: announce(signals.task_canceled, run.backend, task_result=_result(run, outcome, state)))
    return calls


def _with_facts(call: Call, run: Run, outcome: Outcome, state: State) -> None:
    token = signals.facts.set(facts(run, outcome, state))
    try:
        call()
    finally:
        signals.facts.reset(token)


def facts(run: Run, outcome: Outcome, state: State) -> dict[str, Any]:
    """The fields that every line about the end of a run has."""
    error = getattr(outcome, "error", None)
    return {
        "task_id": run.claim.id,
        "function": run.claim.function,
        "queue": run.claim.queue,
        "attempt": run.claim.attempt,
        "worker_id": run.worker,
        "duration": 0.0 if run.seconds is None else round(run.seconds, 6),
        "outcome": "cancel" if state is State.CANCELED else outcome.verb,
        "state": state.value,
        **({"error_class": error.class_path, "fingerprint": error.fingerprint} if error else {}),
    }


def _failed(run: Run, outcome: Failed | TimedOut | Discarded, state: State) -> None:
    told, delay = _result(run, outcome, state), getattr(outcome, "delay", None)
    delay = delay if state is State.PENDING else None
    _announce_with_exception(signals.attempt_failed, run, task_result=told, error=outcome.error, delay=delay)
    if state is State.PENDING:
        announce(signals.task_retried, run.backend, task_result=told, delay=delay)


def _finished(run: Run, outcome: Outcome, state: State) -> None:
    told = _result(run, outcome, state)
    if state is State.COMPLETED:
        announce(task_finished, run.backend, task_result=told)
    else:
        # In this order: who reports exceptions knows it by the time that Django's receiver logs it, and takes it once.
        _announce_with_exception(signals.task_dead, run, task_result=told)
        _announce_with_exception(task_finished, run, task_result=told)


def _announce_with_exception(signal: Signal, run: Run, **named: Any) -> None:
    """Django's receiver logs the exception that is being handled, so it is raised once more."""
    if run.exception is None:
        announce(signal, run.backend, **named)
        return
    where = run.exception.__traceback__
    try:
        raise run.exception
    except BaseException as error:
        error.__traceback__ = where  # without this place, which would come with each signal
        announce(signal, run.backend, **named)


def _result(run: Run, outcome: Outcome, state: State) -> Any:
    error = getattr(outcome, "error", None)
    errors = [TaskError(exception_class_path=error.class_path, traceback=error.traceback)] if error else []
    if state is State.CANCELED:
        end_canceled(errors)
    ended = timezone.now() if state is not State.PENDING else None
    value = json.loads(outcome.result) if isinstance(outcome, Completed) else None
    return result(run, state, *errors, finished_at=ended, return_value=value)


def of_rescued(backend: type, database: str, rescued: list[Rescued]) -> list[Call]:
    """What to send for tasks that the reaper took back.

    Args:
        database: the alias that holds them; a task that ended is read from there.
    """
    return [partial(_rescued, backend, database, task) for task in rescued]


def _rescued(backend: type, database: str, task: Rescued) -> None:
    named = {"task_id": task.id, "function": task.function, "queue": task.queue, "state": task.state.value}
    token = signals.facts.set({**named, "outcome": "lost"})
    try:
        _announce_rescued(backend, database, task)
    finally:
        signals.facts.reset(token)


def _announce_rescued(backend: type, database: str, task: Rescued) -> None:
    if is_heard(signals.task_rescued, logging.WARNING):
        named = {"task_id": str(task.id), "function": task.function, "queue": task.queue, "state": task.state}
        announce(signals.task_rescued, backend, **named)
    heard = [signal for signal, level in _ENDS.get(task.state, ()) if is_heard(signal, level)]
    if heard:
        for _, told in read_results(Task.objects.using(database).filter(id=task.id), imports=False):
            for signal in heard:
                announce(signal, backend, task_result=told)


#: What is told of a task that ended without a run, and at which level the log has it.
_ENDS = {
    State.DEAD: ((signals.task_dead, logging.ERROR), (task_finished, logging.ERROR)),
    State.CANCELED: ((signals.task_canceled, logging.INFO),),
}


def of_lost(run: Run) -> list[Call]:
    """What to send when the database refused a write of this run."""
    if not is_heard(signals.lease_lost, logging.WARNING):
        return []
    claim = run.claim
    named = {"task_id": str(claim.id), "function": claim.function, "queue": claim.queue, "lease": claim.lease}
    return [lambda: announce(signals.lease_lost, run.backend, **named)]


def of_summary(backend: type, worker: str, settled: int, failed: int) -> list[Call]:
    """What to send when a worker sums up.

    Args:
        worker: its name.
        settled, failed: runs since the last time.
    """
    if not is_heard(signals.summed_up, logging.INFO):
        return []
    return [partial(announce, signals.summed_up, backend, worker=worker, settled=settled, failed=failed)]
