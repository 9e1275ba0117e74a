from __future__ import annotations

import sys
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from django_dhara import news, sql
from django_dhara.backend import DharaBackend
from django_dhara.lifecycle import Rescued
from django_dhara.management import flags
from django_dhara.services import Reaper, serve


class Command(flags.Command):
    help = "Rescue tasks of lost workers, as every worker does by default. For setups that want it apart, or from cron."

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add_backend(parser)
        flags.add_switch(parser, "--once", "DHARA_ONCE", "Look once and exit.")

    def handle(self, *args: Any, **given: Any) -> None:
        backend = flags.backend(given["backend"])
        reaper = Reaper(backend.settings.database, backend.alias, backend.settings, partial(self._tell, backend))
        if given["once"]:
            reaper.tick(sql.on(backend.settings.database))
            self.stdout.write(f"{self._rescued} rescued")
            return
        sys.exit(serve([reaper], backend.settings, "dhara reaper"))

    _rescued = 0

    def _tell(self, backend: DharaBackend, rescued: list[Rescued]) -> None:
        self._rescued += len(rescued)
        for task in rescued:
            self.stdout.write(f"Rescued {task.id} {task.function}: {task.state}")
        for announce in news.of_rescued(type(backend), backend.settings.database, rescued):
            announce()
