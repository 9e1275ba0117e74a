from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from django_dhara import fleet, operations
from django_dhara.management import flags


class Command(flags.Command):
    help = "Let workers claim nothing more of queues. What runs goes on, and so does enqueueing; it outlasts restarts."

    change: Callable[..., bool] = staticmethod(operations.pause)
    changed = "Queue {} is paused: workers claim nothing more of it. `manage.py dhara_resume` undoes that."
    unchanged = "Queue {} was paused already."
    unknown = (
        "Warning: no task, function, worker or setting knows a queue {}. Is it misspelt? `manage.py dhara_resume` "
        "makes it forgotten."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        parser.add_argument("queues", nargs="+", type=flags.name, metavar="QUEUE", help="Its name.")
        flags.add_backend(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        backend = flags.backend(given["backend"])
        try:
            with transaction.atomic(using=backend.settings.database):  # all, or none where one is misspelt
                changed = [self.change(queue, backend=backend.alias) for queue in given["queues"]]
        except ValueError as error:
            raise CommandError(str(error)) from None
        for queue, is_new in zip(given["queues"], changed, strict=True):
            self.stdout.write((self.changed if is_new else self.unchanged).format(queue))
            if not fleet.is_known(backend, queue):
                self.stderr.write(self.style.WARNING(self.unknown.format(queue)), self.style.WARNING)
