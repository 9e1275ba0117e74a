"""What the core announces. Django's own three signals (enqueued, started, finished) are sent with Django's meaning;
these stand beside them.

Receivers are called with `sender`, the backend's class, and the keyword arguments named here, by `send_robust`: one
that raises is logged and changes nothing. Worker-side signals are sent from the threads that run functions, after the
database accepted the change, never from the control loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any
from uuid import UUID
from weakref import ReferenceType

from django.conf import settings
from django.dispatch import Signal
from django.utils.log import RequireDebugFalse, RequireDebugTrue

#: The transaction of an enqueue committed: `task_result`. (Django's `task_enqueued` is sent before the commit.)
task_committed = Signal()
#: A run failed or timed out, and its task will run again or is DEAD: `task_result`, `error`, `delay` (seconds or None).
#: The exception, where there is one, is being handled meanwhile: `sys.exc_info()` has it.
attempt_failed = Signal()
#: A failed task was put back and will run again after `delay` seconds: `task_result`, `delay`.
task_retried = Signal()
#: A task ended CANCELED: `task_result`.
task_canceled = Signal()
#: The reaper took back a task whose lease ran out: `task_id`, `function`, `queue`, `state` (where it is now).
task_rescued = Signal()
#: The database refused a write of a run because the task is no longer its own: `task_id`, `function`, `queue`, `lease`.
lease_lost = Signal()
#: Once a minute, and when it leaves, a worker sums up: `worker` (its name), `settled` and `failed` (runs since then).
summed_up = Signal()


#: Modules whose receivers only write a log line, and the loggers that they write to.
_LOGGERS = {
    "django.tasks.signals": "django.tasks",
    "django_tasks.signals": "django_tasks",
    "django_dhara.log": "django_dhara",
}


def is_heard(signal: Signal, level: int) -> bool:
    """Does anybody listen? Building a TaskResult for nobody would cost more than many a task.

    Args:
        level: of the line that a receiver which only logs writes; it counts only where that level is logged.
    """
    for target in _audience(signal):  # noqa: SIM110 - asked for every run: a generator would cost as much again
        if target is None or _writes(target, level):
            return True
    return False


def _writes(logger: logging.Logger, level: int) -> bool:
    """Would any handler take a line? A logger that is enabled is no answer: Django's own takes INFO from the start, and
    has no handler for it but the console of a project under DEBUG."""
    if not logger.isEnabledFor(level):
        return False
    at: logging.Logger | None = logger
    is_handled = False
    while at is not None:
        for handler in at.handlers:
            is_handled = True
            if handler.level <= level and not (handler.filters and _is_off(handler)):
                return True
        at = at.parent if at.propagate else None
    return not is_handled and level >= logging.WARNING  # Python's last resort


def _is_off(handler: logging.Handler) -> bool:
    kind = RequireDebugFalse if settings.DEBUG else RequireDebugTrue
    return any(isinstance(each, kind) for each in handler.filters)


def calls_user_code(signal: Signal) -> bool:
    """Is there a receiver that does more than write a log line? It may use the database."""
    return None in _audience(signal)


#: The receivers of a signal when it was last asked about, and for each the logger that it writes to.
_audiences: dict[Signal, tuple[list[Any], list[logging.Logger | None]]] = {}


def _audience(signal: Signal) -> list[logging.Logger | None]:
    """For each receiver the logger that it writes to; None where it is somebody's own code."""
    known = _audiences.get(signal)
    if known is None or known[0] != signal.receivers:
        receivers = list(signal.receivers)
        known = _audiences[signal] = receivers, list(_targets(receivers))
    return known[1]


def _targets(receivers: list[Any]) -> Iterator[logging.Logger | None]:
    for _, receiver, *_ in receivers:
        function = receiver() if isinstance(receiver, ReferenceType) else receiver
        if function is not None:
            name = _LOGGERS.get(getattr(function, "__module__", ""))
            yield None if name is None else logging.getLogger(name)


#: The task whose function is running here; what it enqueues has it as its parent.
current_task: ContextVar[UUID | None] = ContextVar("dhara_current_task", default=None)
#: A worker runs in this process, and says once a minute what was left out; elsewhere, in tests, every line is written.
sums_up = threading.Event()
#: What is known of the run that is being announced, for receivers that write a line: the fields of its event.
facts: ContextVar[Mapping[str, Any]] = ContextVar("dhara_facts", default=MappingProxyType({}))


def announce(signal: Signal, sender: type, **named: Any) -> None:
    """Send a signal. What a receiver raises is logged by Django (`django.dispatch`), and changes nothing."""
    signal.send_robust(sender, **named)
