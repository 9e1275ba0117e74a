"""What the commands share that show how the queue is."""

from __future__ import annotations

import argparse

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.translation import gettext as _

from django_dhara import stats
from django_dhara.management import flags
from django_dhara.stats import Overview

KEYS = "q quits, r range"


def add_range(parser: CommandParser, *, default: str) -> None:
    """The flag --range."""
    names = ", ".join(stats.RANGES)
    about = f"The time to look back: {names}. Default: {default}."
    flags.add(parser, "--range", "DHARA_RANGE", about, read=_range, default=default, metavar="RANGE")


def _range(raw: str) -> stats.Range:
    if raw not in stats.RANGES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(stats.RANGES)}, not {raw!r}")
    return stats.RANGES[raw]


def title(backend: str, overview: Overview) -> str:
    """The first line: whose queue, what range, when."""
    now = timezone.localtime(overview.now) if timezone.is_aware(overview.now) else overview.now
    when = _("in %s") % stats.in_words(overview.range)
    return f"dhara {backend}  {when}  {now:%Y-%m-%d %H:%M:%S}"
