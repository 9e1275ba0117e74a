"""A distributed task queue for Django: PostgreSQL is the only queue and the only source of truth."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_dhara.errors import Discard, Retry, Snooze
    from django_dhara.operations import cancel, enqueue_many, pause, resume, revive, run_now
    from django_dhara.tasks import Call, Task, task

__all__ = [
    "Call",
    "Discard",
    "Retry",
    "Snooze",
    "Task",
    "cancel",
    "enqueue_many",
    "pause",
    "resume",
    "revive",
    "run_now",
    "task",
]

__version__ = "0.1.0"

#: Where the public names come from. They are imported when first used: the pytest plugin lives in this package, and
#: every run of pytest where it is installed would otherwise import Django.
_HOME = {
    **dict.fromkeys(("Discard", "Retry", "Snooze"), "errors"),
    **dict.fromkeys(("cancel", "enqueue_many", "pause", "resume", "revive", "run_now"), "operations"),
    **dict.fromkeys(("Call", "Task", "task"), "tasks"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
