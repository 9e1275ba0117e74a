"""The tables of the overview: a range by queue, by function and by worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dhara.admin.links import Links, linked
from django_dhara.admin.text import NAME_LENGTH, age, name, tag, worker_name
from django_dhara.stats import DEPTH_LIMIT, History, Overview, Tally, Waiting, WorkerSeen
from django_dhara.words import capped, grouped, rate, short_time

#: Rows of a table, and characters of a function.
ROWS, FUNCTION = 30, 100


class Cell(NamedTuple):
    """A cell of a table; `kind` is a class of dhara/overview.css."""

    value: SafeString | str
    kind: str = ""


class Table(NamedTuple):
    """A table with links."""

    name: str
    title: str
    heads: list[Cell]
    rows: list[list[Cell]]
    more: str


def tables(overview: Overview, links: Links, *, may_see_workers: bool) -> Iterator[Table]:
    if overview.past:
        yield _by_queue(overview, overview.past, links)
        yield _by_function(overview.past, links)
    if may_see_workers and overview.workers is not None:
        yield _by_worker(overview, overview.workers, links)


def _table(key: str, title: str, heads: Sequence[str], rows: list[list[Cell]]) -> Table:
    kinds = [cell.kind for cell in rows[0]] if rows else [""] * len(heads)
    more = len(rows) - ROWS
    told = ngettext("%s more is not shown.", "%s more are not shown.", more) % more if more > 0 else ""
    return Table(key, title, [Cell(*pair) for pair in zip(heads, kinds, strict=True)], rows[:ROWS], told)


def _by_queue(overview: Overview, past: History, links: Links) -> Table:
    waiting: dict[str, list[Waiting]] = {}
    for each in overview.waiting or ():
        waiting.setdefault(each.queue, []).append(each)
    tallies = past.queues
    names = sorted({*tallies, *waiting}, key=lambda queue: (-(tallies[queue].runs if queue in tallies else 0), queue))
    rows = [
        _queue_row(queue, tallies.get(queue) or Tally(), waiting.get(queue, []), overview, links) for queue in names
    ]
    heads = (_("Queue"), _("Ready"), _("Oldest"), *_heads())
    return _table("queues", _("By queue"), heads, rows)


def _queue_row(queue: str, tally: Tally, waiting: Sequence[Waiting], overview: Overview, links: Links) -> list[Cell]:
    ready = sum(each.ready for each in waiting)
    since = min((each.ready_since for each in waiting if each.ready_since), default=None)
    shown = linked(links.tasks(queue=queue), name(queue, NAME_LENGTH))
    if any(each.paused_at for each in waiting):
        shown = format_html("{} {}", shown, tag("pending", "❚❚", _("Paused")))
    count = capped(ready, DEPTH_LIMIT if any(each.is_capped for each in waiting) else ready + 1)
    shown_count = linked(links.ready(queue=queue), count) if ready else count
    return [
        Cell(shown, "dhara-first"),
        Cell(shown_count, "dhara-figure"),
        Cell(age(since, overview.now) if since else "–", "dhara-figure"),
        *map(_spare_but_failures, _figures(tally, overview.past, links.tasks(queue=queue, errors="yes"))),
    ]


def _spare_but_failures(cell: Cell) -> Cell:
    """On a narrow screen a queue has room for one figure."""
    return cell if cell.kind.endswith("failures") else Cell(cell.value, f"{cell.kind} dhara-spare")


def _by_function(past: History, links: Links) -> Table:
    tallies = sorted(past.functions.items(), key=lambda pair: (-pair[1].runs, pair[0]))
    rows = [
        [
            Cell(linked(links.tasks(function=function), name(function, FUNCTION)), "dhara-first"),
            *_figures(tally, past, links.tasks(function=function, errors="yes")),
        ]
        for function, tally in tallies
    ]
    return _table("functions", _("By function"), (_("Function"), *_heads()), rows)


def _heads() -> tuple[str, ...]:
    return (
        _("Runs/min"),
        _("Failed"),
        _("Deaths"),
        _("Latency p50"),
        _("Latency p95"),
        _("Run time p50"),
        _("Run time p95"),
        _("Run time p99"),
    )


def _figures(tally: Tally, past: History | None, errors: str) -> Iterator[Cell]:
    minutes = max(past.seconds if past else 0, 1) / 60
    yield Cell(rate(tally.runs / minutes), "dhara-figure")
    yield Cell(_failures(tally, errors), "dhara-figure dhara-failures")
    yield Cell(grouped(tally.counts["dead"]), "dhara-figure dhara-spare")
    yield Cell(short_time(tally.latency(0.5)), "dhara-figure dhara-spare")
    yield Cell(short_time(tally.latency(0.95)), "dhara-figure dhara-spare")
    yield Cell(short_time(tally.run_time(0.5)), "dhara-figure dhara-spare")
    yield Cell(short_time(tally.run_time(0.95)), "dhara-figure")
    yield Cell(short_time(tally.run_time(0.99)), "dhara-figure dhara-spare")


def _failures(tally: Tally, address: str) -> SafeString | str:
    if not tally.failed:
        return "0"
    told = grouped(tally.failed)
    if tally.failure_share >= 0.005:
        told = f"{told} ({tally.failure_share:.0%})"
    kind = "dhara-harm" if tally.failure_share >= 0.1 else ""
    if not address:
        return format_html('<span class="{}">{}</span>', kind, told)
    return format_html('<a class="{}" href="{}">{}</a>', kind, address, told)


_STATUS = {
    "alive": ("completed", "✓", gettext_lazy("Alive")),
    "draining": ("pending", "▾", gettext_lazy("Draining")),
    "late": ("dead", "!", gettext_lazy("Late")),
    "lost": ("dead", "✕", gettext_lazy("Lost")),
}


def _by_worker(overview: Overview, workers: Sequence[WorkerSeen], links: Links) -> Table:
    past = overview.past
    rows = []
    for worker in sorted(workers, key=lambda one: (one.lives, one.host, one.pid)):
        tally = past.workers.get(worker.id, Tally()) if past else Tally()
        colour, sign, word = _STATUS[worker.status]
        rows.append(
            [
                Cell(worker_name(worker, links.worker(worker.id)), "dhara-first"),
                Cell(tag(colour, sign, str(word))),
                Cell(f"{grouped(worker.busy)}/{grouped(worker.concurrency)}", "dhara-figure"),
                Cell(grouped(tally.runs), "dhara-figure dhara-spare"),
                Cell(grouped(tally.failed), "dhara-figure dhara-spare"),
                Cell(age(worker.heartbeat_at, overview.now), "dhara-figure"),
            ]
        )
    long = past is not None and past.range.seconds > 3600
    runs = _("Runs, last hour") if long else _("Runs")
    heads = (_("Worker"), _("Status"), _("Slots busy"), runs, _("Failed"), _("Heartbeat"))
    return _table("workers", _("By worker"), heads, rows)
