"""What a worker announces, once the database has accepted it. Nothing is built where nobody listens."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from django_dhara import signals
from django_dhara.compat import TaskError, task_finished
from django_dhara.execution import Run, result
from django_dhara.lifecycle import Rescued
from django_dhara.signals import announce, is_heard
from django_dhara.states import Completed, Discarded, Failed, Outcome, State, TimedOut

Call = Callable[[], Any]


def of_settled(run: Run, outcome: Outcome, state: State) -> list[Call]:
    """What to send for a run that ended in `state`; each call is for the herald."""
    calls: list[Call] = []
    match outcome:
        case Failed() | TimedOut() | Discarded() if is_heard(signals.attempt_failed, logging.INFO):
            calls.append(lambda: _failed(run, outcome, state))
        case _:
            pass
    if state is State.COMPLETED and is_heard(task_finished, logging.INFO):
        calls.append(lambda: _finished(run, outcome, state))
    elif state is State.DEAD and is_heard(task_finished, logging.ERROR):
        calls.append(lambda: _finished(run, outcome, state))
    elif state is State.CANCELED and is_heard(signals.task_canceled, logging.INFO):
        calls.append(lambda: announce(signals.task_canceled, run.backend, task_result=_result(run, outcome, state)))
    return calls


def _failed(run: Run, outcome: Failed | TimedOut | Discarded, state: State) -> None:
    told, delay = _result(run, outcome, state), getattr(outcome, "delay", None)
    delay = delay if state is State.PENDING else None
    announce(signals.attempt_failed, run.backend, task_result=told, error=outcome.error, delay=delay)
    if state is State.PENDING:
        announce(signals.task_retried, run.backend, task_result=told, delay=delay)


def _finished(run: Run, outcome: Outcome, state: State) -> None:
    """Django's receiver logs the exception that is being handled, so it is raised once more."""
    told = _result(run, outcome, state)
    if state is State.COMPLETED or run.exception is None:
        announce(task_finished, run.backend, task_result=told)
        return
    try:
        raise run.exception
    except BaseException:
        announce(task_finished, run.backend, task_result=told)


def _result(run: Run, outcome: Outcome, state: State) -> Any:
    error = getattr(outcome, "error", None)
    errors = [TaskError(exception_class_path=error.class_path, traceback=error.traceback)] if error else []
    if state is State.CANCELED:
        errors.append(TaskError(exception_class_path="django_dhara.errors.TaskCanceled", traceback=""))
    ended = timezone.now() if state is not State.PENDING else None
    value = json.loads(outcome.result) if isinstance(outcome, Completed) else None
    return result(run, state, *errors, finished_at=ended, return_value=value)


def of_rescued(backend: type, rescued: list[Rescued]) -> list[Call]:
    """What to send for tasks that the reaper took back."""
    if not is_heard(signals.task_rescued, logging.WARNING):
        return []
    return [
        lambda task=task: announce(  # type: ignore[misc]
            signals.task_rescued,
            backend,
            task_id=str(task.id),
            function=task.function,
            queue=task.queue,
            state=task.state,
        )
        for task in rescued
    ]


def of_lost(run: Run) -> list[Call]:
    """What to send when the database refused a write of this run."""
    if not is_heard(signals.lease_lost, logging.WARNING):
        return []
    named = {"task_id": str(run.claim.id), "function": run.claim.function, "lease": run.claim.lease}
    return [lambda: announce(signals.lease_lost, run.backend, **named)]
