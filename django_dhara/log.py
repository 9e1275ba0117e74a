"""What is logged of tasks, as listeners of the core's signals: logger `django_dhara`. A worker's own words go to
`django_dhara.worker`; docs/reference/events.md lists all.

A run that succeeds is not worth a line: at thousands of tasks a second the lines would cost more than the tasks. Runs
that fail in the same way are told once, and counted until the worker sums up.

DEAD tasks are logged by Django's own receiver of `task_finished`, at ERROR, in `django.tasks`. Its records get their
name and their fields on the way, and of tasks that die in the same way only the first in a minute has the traceback.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from django_dhara import events, signals
from django_dhara.events import Event, Repeats

#: Of failures that are alike, in one function, one in so many seconds is told in full.
ALIKE_SECONDS = 60.0
_failures = Repeats(ALIKE_SECONDS, ALIKE_SECONDS)
_deaths = Repeats(ALIKE_SECONDS, ALIKE_SECONDS)


@receiver(signals.attempt_failed)
def log_attempt_failed(sender: type, *, task_result: Any, error: Any, delay: float | None, **kwargs: Any) -> None:
    function = task_result.task.module_path
    left_out = _due(_failures, function, error.class_path, error.fingerprint)
    if left_out is None:
        return
    if left_out:
        _log_repeated(function, error.class_path, error.fingerprint, left_out)
    told = {
        "task_id": task_result.id,
        "function": function,
        "queue": task_result.task.queue_name,
        "attempt": task_result.attempts,
        "error_class": error.class_path,
        "error_message": error.message,
        "fingerprint": error.fingerprint,
        "delay": delay,
        "then": "it will not run again" if delay is None else f"again in {delay:.1f} s",
    }
    events.RUN_FAILED.tell(**{**signals.facts.get(), **told})


def _due(repeats: Repeats, *alike: str) -> int | None:
    return repeats.due(alike) if signals.sums_up.is_set() else 0


@receiver(signals.summed_up)
def log_repeated_failures(sender: type, **kwargs: Any) -> None:
    """At the end of a worker's minute: the failures that were not told one by one."""
    for (function, error_class, fingerprint), count in _failures.sum_up():
        _log_repeated(function, error_class, fingerprint, count)


def _log_repeated(function: str, error_class: str, fingerprint: str, count: int) -> None:
    events.RUNS_FAILED.tell(function=function, error_class=error_class, fingerprint=fingerprint, count=count)


@receiver(signals.task_canceled)
def log_task_canceled(sender: type, *, task_result: Any, **kwargs: Any) -> None:
    told = {"task_id": task_result.id, "function": task_result.task.module_path, "queue": task_result.task.queue_name}
    events.TASK_CANCELED.tell(**{**signals.facts.get(), **told})


@receiver(signals.task_rescued)
def log_task_rescued(sender: type, *, task_id: str, function: str, queue: str, state: str, **kwargs: Any) -> None:
    events.TASK_RESCUED.tell(task_id=task_id, function=function, queue=queue, state=str(state), outcome="lost")


@receiver(signals.lease_lost)
def log_lease_lost(sender: type, *, task_id: str, function: str, queue: str, lease: int, **kwargs: Any) -> None:
    events.LEASE_LOST.tell(task_id=task_id, function=function, queue=queue, lease=lease)


#: What Django's receivers, by their names, tell of a task; a `task_finished` is DEAD at ERROR, else COMPLETED.
_TOLD = {
    "log_task_enqueued": events.TASK_ENQUEUED,
    "log_task_started": events.TASK_STARTED,
    "log_task_finished": events.TASK_COMPLETED,
}


class Named(logging.Filter):
    """Gives the records of Django's own receivers, about tasks of ours or of anybody, their name and fields."""

    def filter(self, record: logging.LogRecord) -> bool:
        event = _TOLD.get(record.funcName)
        if event is not None and isinstance(record.args, tuple) and len(record.args) == 3:
            self._name(record, events.TASK_DEAD if record.levelno >= logging.ERROR else event, record.args)
        return True

    def _name(self, record: logging.LogRecord, event: Event, args: tuple[Any, ...]) -> None:
        facts = {**signals.facts.get(), "task_id": args[0], "function": args[1]}
        record.dhara_event = event.name
        for name, value in facts.items():
            setattr(record, f"dhara_{name}", events.field(value))
        fingerprint = facts.get("fingerprint")
        if event is events.TASK_DEAD and fingerprint and _due(_deaths, args[1], fingerprint) is None:
            record.exc_info = None
            record.msg = f"{record.msg} (its traceback is as that of fingerprint {fingerprint}, told before)"


def install() -> None:
    """Name Django's lines, the backport's too."""
    named = Named()
    for name in ("django.tasks", "django_tasks"):
        logging.getLogger(name).addFilter(named)
