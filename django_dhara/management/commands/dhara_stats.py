from __future__ import annotations

import json
import shutil
from typing import Any

from django.core.management.base import CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from django_dhara import stats
from django_dhara.management import board, flags, watching


class Command(flags.Command):
    help = (
        "Say once how the queue is: what needs a person, what waits and runs, and what happened in a range of time. "
        "dhara_top says it again and again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add_backend(parser)
        watching.add_range(parser, default="1h")
        flags.add(
            parser, "--format", "DHARA_FORMAT", "For people or for programs: text, json.",
            read=flags.one_of("text", "json"), default="text", metavar="FORMAT",
        )  # fmt: skip

    def handle(self, *args: Any, **given: Any) -> None:
        backend = flags.backend(given["backend"])
        overview = stats.overview(backend.settings.database, backend.alias, given["range"])
        if given["format"] == "json":
            self.stdout.write(json.dumps(board.as_json(overview), cls=DjangoJSONEncoder, indent=2))
            return
        width, _ = shutil.get_terminal_size((100, 24))
        for line in board.lines(overview, watching.title(backend.alias, overview), width=width):
            self.stdout.write(line.text)
