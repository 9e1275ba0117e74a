from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from django_dhara import lifecycle, services, sql, stats
from django_dhara.conf import Options
from django_dhara.management import flags
from django_dhara.states import State

_RETENTION = ("completed", "canceled", "dead", "keyed")


class Command(flags.Command):
    help = "Delete finished tasks and bulk changes after their retention, and old records of workers, as workers do."

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add_backend(parser)
        for what in _RETENTION:
            whose = "tasks with an idempotency key, at least" if what == "keyed" else f"{what.upper()} tasks"
            flags.add(
                parser, f"--{what}-days", f"DHARA_{what.upper()}_DAYS",
                f"Keep {whose} for so many days. Default: RETAIN_{what.upper()}_SECONDS.",
                read=flags.span("days", 36_500), metavar="DAYS",
            )  # fmt: skip
        flags.add_switch(parser, "--dry-run", "DHARA_DRY_RUN", "Only count.")

    def handle(self, *args: Any, **given: Any) -> None:
        backend = flags.backend(given["backend"])
        options = _with_retention(backend.settings, given)
        execute = sql.on(options.database)
        for state, seconds in services.retention(options):
            if given["dry_run"]:
                count = _count(execute, options, backend.alias, state, seconds)
                self.stdout.write(f"{state}: {count} would be deleted")
            else:
                count = _delete(execute, options, backend.alias, state, seconds)
                self.stdout.write(f"{state}: {count} deleted")
        if not given["dry_run"]:
            bulk_changes = partial(services.prune_bulk_changes, options=options)
            for tidy in (stats.roll_up, services.prune_records, bulk_changes):
                while tidy(execute):
                    pass


def _with_retention(options: Options, given: dict[str, Any]) -> Options:
    days = {what: given[f"{what}_days"] for what in _RETENTION}
    seconds = {f"retain_{what}_seconds": value * 86_400 for what, value in days.items() if value is not None}
    return dataclasses.replace(options, **seconds)


def _count(execute: sql.Execute, options: Options, backend: str, state: State, seconds: float) -> int:
    keyed = options.retain_keyed_seconds
    return lifecycle.count_expired(
        execute, options.database, backend, state, older_than=seconds, keyed_older_than=keyed
    )


def _delete(execute: sql.Execute, options: Options, backend: str, state: State, seconds: float) -> int:
    total = 0
    while count := services.prune(
        execute, alias=options.database, backend=backend, options=options, state=state, seconds=seconds
    ):
        total += count
    return total
