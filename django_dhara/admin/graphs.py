"""The charts of the overview: what of a range is drawn, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dhara import stats
from django_dhara.admin import charts
from django_dhara.admin.charts import HEIGHT, Bar, Chart, Mark, TimeScale
from django_dhara.stats import History, Point, Tally
from django_dhara.words import grouped, rate, short_time

PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def of(past: History) -> list[Chart]:
    """Throughput, queue latency and run time."""
    return [_throughput(past), _latency(past), _run_time(past)]


def _throughput(past: History) -> Chart:
    minutes = past.range.step / 60
    values = [
        Bar(point.tally.completed / minutes, point.tally.failed / minutes, point is past.points[-1])
        for point in past.points
    ]
    top = charts.ceiling(max(bar.lower + bar.upper for bar in values))
    total, last = past.total, past.points[-2:][0].tally
    summary = _("Runs per minute: %(last)s at last, %(most)s at most; %(failed)s failed in %(range)s.") % {
        "last": rate((last.completed + last.failed) / minutes),
        "most": rate(max(bar.lower + bar.upper for bar in values)),
        "failed": grouped(total.failed),
        "range": stats.in_words(past.range),
    }
    return Chart(
        name="throughput",
        title=_("Throughput"),
        note=_("runs per minute"),
        summary=summary,
        width=len(values) * charts.STEP,
        marks=[Mark(HEIGHT * (1 - share), rate(top * share)) for share in (0, 0.5, 1)],
        drawn=charts.bars(values, top),
        columns=charts.columns(_told_runs(point, past) for point in past.points),
        ends=(),
        times=_times(past),
        legend=((_("done"), "done"), (_("failed"), "failed")),
    )


def _told_runs(point: Point, past: History) -> str:
    counts = point.tally.counts
    told = [_("%s done") % grouped(counts["completed"]), _("%s failed") % grouped(counts["failed"])]
    deaths = ngettext("%s death", "%s deaths", counts["dead"])
    for key, words in (("lost", _("%s lost")), ("dead", deaths), ("canceled", _("%s canceled"))):
        if counts[key]:
            told.append(words % grouped(counts[key]))
    return f"{_when(point, past)} · {' · '.join(told)}"


def _latency(past: History) -> Chart:
    return _times_chart("latency", _("Queue latency"), _("from due to started"), past, Tally.latency)


def _run_time(past: History) -> Chart:
    return _times_chart("run-time", _("Run time"), _("of runs that ended"), past, Tally.run_time)


def _times_chart(key: str, title: str, note: str, past: History, time: Any) -> Chart:
    lines = {kind: [time(point.tally, share) for point in past.points] for kind, share in PERCENTILES}
    scale = TimeScale(value for values in lines.values() for value in values)
    last = {kind: next((v for v in reversed(values) if v is not None), None) for kind, values in lines.items()}
    summary = _("%(title)s at last: median %(p50)s, 95 percent within %(p95)s, 99 percent within %(p99)s.")
    told = zip(past.points, *lines.values(), strict=True)
    return Chart(
        name=key,
        title=title,
        note=note,
        summary=summary % {"title": title, **{kind: short_time(value) for kind, value in last.items()}},
        width=len(past.points) * charts.STEP,
        marks=scale.marks(),
        drawn=format_html_join("", "{}", ((charts.line(kind, lines[kind], scale.place),) for kind in reversed(lines))),
        columns=charts.columns(_told_times(_when(point, past), times) for point, *times in told),
        ends=charts.apart(Mark(scale.place(v), f"{kind} {short_time(v)}", kind) for kind, v in last.items() if v),
        times=_times(past),
        lines=list(lines.values()),
    )


def _told_times(when: str, times: Sequence[float | None]) -> str:
    if times[0] is None:
        return _("%s · no runs") % when
    told = [f"{kind} {short_time(time)}" for (kind, _share), time in zip(PERCENTILES, times, strict=True)]
    return f"{when} · {' · '.join(told)}"


def _clock(when: datetime, past: History) -> str:
    return date_format(timezone.localtime(when), "D H:i" if past.range.seconds > 86_400 else "H:i")


def _when(point: Point, past: History) -> str:
    clock = _clock(point.start, past)
    return _("%s so far") % clock if point is past.points[-1] else clock


def _times(past: History) -> tuple[str, str, str]:
    first, middle = past.points[0], past.points[len(past.points) // 2]
    return _clock(first.start, past), _clock(middle.start, past), _("now")


def table(past: History, drawn: Sequence[Chart]) -> list[list[str]]:
    """What the charts of a range show, as rows of text, the newest step first."""
    lines = [line for chart in drawn for line in chart.lines]
    steps = reversed([*zip(past.points, *lines, strict=True)])
    return [
        [_when(point, past), grouped(point.tally.completed), grouped(point.tally.failed), *map(short_time, times)]
        for point, *times in steps
    ]
