"""The past on the pages of queues and workers: charts of the last hour, and what people did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin import audit, spark
from django_dhara.admin.text import exact, moment, name, visible
from django_dhara.stats import Point
from django_dhara.words import short_time

#: The size of a small chart and of a large one, in units of their own.
SMALL, LARGE = (120, 24), (600, 120)


class Chart(NamedTuple):
    """A large chart with its words."""

    label: str
    svg: SafeString
    #: What its height means, and the times at its ends.
    scale: str
    begins: str
    ends: str


def small(points: Sequence[Point]) -> SafeString:
    """Runs of the last hour, for a line of a table."""
    label = _("Runs per minute in the last hour; failed ones below the line.")
    return spark.chart(_bars(points), label, width=SMALL[0], height=SMALL[1], kind="spark")


def runs(points: Sequence[Point]) -> Chart | None:
    """Runs by the minute; None if nothing is known."""
    if not points:
        return None
    label = _("Runs per minute, failed ones below the line")
    most, worst = (max(values) for values in zip(*((p.tally.runs, p.tally.failed) for p in points), strict=True))
    scale = _("at most %s") % f"{most:,}"
    if worst:
        scale = _("at most %(most)s, failed at most %(worst)s") % {"most": f"{most:,}", "worst": f"{worst:,}"}
    return _chart(points, _bars(points), label, scale)


def latency(points: Sequence[Point]) -> Chart | None:
    """The latency that 95 of 100 runs of each minute did not exceed; None if nothing is known."""
    if not points:
        return None
    label = _("Latency p95 of each minute, from due to started")
    bars = [spark.Bar(point.tally.latency(0.95) or 0.0, 0, _title(point)) for point in points]
    return _chart(points, bars, label, _("at most %s") % short_time(max(bar.above for bar in bars)))


def _chart(points: Sequence[Point], bars: Sequence[spark.Bar], label: str, scale: str) -> Chart:
    begins, ends = (exact(point.start)[11:16] for point in (points[0], points[-1]))
    svg = spark.chart(bars, f"{label}: {scale}", width=LARGE[0], height=LARGE[1], kind="large")
    return Chart(label, svg, scale, begins, ends)


def _bars(points: Sequence[Point]) -> list[spark.Bar]:
    return [spark.Bar(point.tally.runs - point.tally.failed, point.tally.failed, _title(point)) for point in points]


def _title(point: Point) -> str:
    tally = point.tally
    return _("%(time)s: %(runs)s runs, %(failed)s failed, latency p95 %(latency)s") % {
        "time": exact(point.start)[11:16],
        "runs": f"{tally.runs:,}",
        "failed": f"{tally.failed:,}",
        "latency": short_time(tally.latency(0.95)),
    }


def entries(model: Any, key: str, now: datetime) -> Iterator[tuple[SafeString | str, SafeString, str]]:
    """What people did to a queue or a worker: when, who, what."""
    for entry in audit.entries(model, key):
        yield moment(entry.action_time, now), name(entry.user.get_username()), visible(entry.get_change_message())
