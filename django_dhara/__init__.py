"""A distributed task queue for Django: PostgreSQL is the only queue and the only source of truth."""

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
