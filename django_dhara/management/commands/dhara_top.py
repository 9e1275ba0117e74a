from __future__ import annotations

import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_dhara import stats
from django_dhara.management import board, flags, outage, watching
from django_dhara.management.board import Line
from django_dhara.management.terminal import Terminal
from django_dhara.stats import Overview

#: Between two looks.
PAUSE_SECONDS = 2.0


class Command(flags.Command):
    help = "Watch the queue in a terminal, every 2 seconds. q or Ctrl-C ends it, r shows another range of time."

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add_backend(parser)
        watching.add_range(parser, default="5m")

    def handle(self, *args: Any, **given: Any) -> None:
        backend = flags.backend(given["backend"])
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CommandError("dhara_top draws on a terminal, and this is none; see dhara_stats.", returncode=2)
        view = _View(backend.alias, backend.settings.database, given["range"])
        terminal = Terminal()
        with suppress(KeyboardInterrupt), terminal.taken():
            view.run(terminal)


class _View:
    """What is shown."""

    def __init__(self, backend: str, database: str, range_: stats.Range) -> None:
        self._backend, self._database, self._range = backend, database, range_
        self._overview: Overview | None = None
        self._trouble = ""

    def run(self, terminal: Terminal) -> None:
        """Look and draw until somebody presses q."""
        due_at = 0.0
        while True:
            if monotonic() >= due_at:
                self._look()
                due_at = monotonic() + PAUSE_SECONDS
            terminal.draw(self._lines(*terminal.size()))
            match terminal.key(max(due_at - monotonic(), 0)):
                case "q" | "Q" | "\x04":
                    return
                case "r":
                    names = list(stats.RANGES)
                    self._range = stats.RANGES[names[(names.index(self._range.name) + 1) % len(names)]]
                    due_at = 0.0

    def _look(self) -> None:
        try:
            with outage.in_one_line():
                self._overview = stats.overview(self._database, self._backend, self._range)
            self._trouble = ""
        except CommandError as error:
            self._trouble = str(error)
            connections[self._database].close()

    def _lines(self, width: int, height: int) -> list[Line]:
        trouble = [Line(board.fit(self._trouble, width), "harm")] if self._trouble else []
        if self._overview is None:
            return trouble
        title = board.fit(f"{watching.title(self._backend, self._overview)}  {watching.KEYS}", width)
        first, *rest = board.lines(self._overview, title, width=width, height=height - len(trouble))
        kind = "old" if trouble else ""
        return [
            Line(first.text.ljust(width), "title"),
            *trouble,
            *(Line(line.text, kind or line.kind) for line in rest),
        ]
