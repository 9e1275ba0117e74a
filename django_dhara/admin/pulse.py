"""The past on the pages of queues and workers: charts of the last hour, and what people did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin import audit, databases, graphs, spark
from django_dhara.admin.charts import Chart
from django_dhara.admin.text import moment, name, visible
from django_dhara.stats import RANGES, History, Point, Tally


def small(points: Sequence[Point]) -> SafeString:
    """Runs of the last hour, for a line of a table."""
    label = _("Runs per minute in the last hour; failed ones below the line.")
    values = [(point.tally.runs - point.tally.failed, point.tally.failed) for point in points]
    return spark.chart(values, label)


def charts(points: Sequence[Point], now: datetime) -> list[Chart]:
    """The last hour as on the overview: throughput, latency, run time; nothing if nothing is known."""
    if not points:
        return []
    total = Tally()
    for point in points:
        total.add(point.tally)
    return graphs.of(History(RANGES["1h"], now, list(points), {("", ""): total}, {}))


def entries(model: Any, key: str, now: datetime) -> Iterator[tuple[SafeString | str, SafeString, str]]:
    """What people did to a queue or a worker: when, who, what; nothing where it cannot be read in time."""
    try:
        found = audit.entries(model, key)
    except databases.TooSlow:
        return
    for entry in found:
        yield moment(entry.action_time, now), name(entry.user.get_username()), visible(entry.get_change_message())
