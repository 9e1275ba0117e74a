from __future__ import annotations

from django_dhara import operations
from django_dhara.management.commands import dhara_pause


class Command(dhara_pause.Command):
    help = "Let workers claim from paused queues again, and wake them."

    change = staticmethod(operations.resume)
    changed = "Queue {} is resumed."
    unchanged = "Queue {} was not paused."
    unknown = "Warning: no task, function, worker or setting knows a queue {}. Is it misspelt?"
