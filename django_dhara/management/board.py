"""The overview as lines of text, as wide as a terminal and, if it must be, no higher."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_dhara import stats
from django_dhara.stats import COUNT_LIMIT, DEPTH_LIMIT, Overview, Point, Tally, WorkerSeen
from django_dhara.words import capped, clipped, grouped, plain, pointed, rate, short_time, span

_SIGNS = {"harm": "!", "warning": "^", "notice": "-"}
#: Rows of a table where nothing limits the height.
ROWS = 30
#: The narrowest name of a queue, function or worker.
_NAME = 12


class Line(NamedTuple):
    """A line, and how it stands out: "", "head" or "harm"."""

    text: str
    kind: str = ""


def lines(overview: Overview, title: str, *, width: int, height: int | None = None) -> list[Line]:
    """What there is to say, the most important first.

    Args:
        width: cells of the terminal.
        height: no more lines than this; what does not fit is left out where it matters least.
    """
    found = [Line(text) for text in (title, *_numbers(overview))]
    needs = _attention(overview)
    tables = [_queues(overview), _functions(overview), _workers(overview)]
    if height is not None:
        needs = _first(needs, max(height // 4, 2))
        tables = _shares(tables, height - len(found) - len(needs) - 1)
    found += [Line(""), *needs]
    for table in tables:
        if table:
            found += [Line(""), *(Line(row, "head" if not number else "") for number, row in enumerate(table))]
    return [Line(fit(line.text, width), line.kind) for line in found[:height]]


def _first(needs: list[Line], most: int) -> list[Line]:
    if len(needs) <= most:
        return needs
    return [*needs[: most - 1], Line(_("  and %s more") % (len(needs) - most + 1))]


def _shares(tables: list[list[str]], height: int) -> list[list[str]]:
    """Tables that fit together, each with an empty line before it: rows are taken from the longest."""
    lengths = [len(table) for table in tables]
    while sum(lengths) + len(lengths) > max(height, 0) and max(lengths) > 0:
        lengths[lengths.index(max(lengths))] -= 1
    # A head alone says nothing.
    return [table[:length] if length > 1 else [] for table, length in zip(tables, lengths, strict=True)]


def _numbers(overview: Overview) -> Iterator[str]:
    standing, past = overview.standing, overview.past
    if standing:
        busy, slots = overview.slots
        oldest = f" ({_age(overview, overview.ready_since)})" if overview.ready_since else ""
        yield _("Ready %(ready)s  Running %(running)s  Scheduled %(scheduled)s  Dead %(dead)s  Workers %(workers)s") % {
            "ready": capped(standing.ready, COUNT_LIMIT) + oldest,
            "running": f"{capped(standing.running, COUNT_LIMIT)} ({busy}/{slots})",
            "scheduled": capped(standing.scheduled, COUNT_LIMIT),
            "dead": capped(standing.dead, COUNT_LIMIT),
            "workers": len(overview.alive),
        }
    if past:
        total = past.total
        yield _("Runs %(rate)s/min  Failed %(failed)s  Latency %(wait)s, p95 %(waits)s  Run %(run)s, p95 %(runs)s") % {
            "rate": rate(total.runs / max(past.seconds, 1) * 60),
            "failed": pointed(f"{total.failure_share:.1%}"),
            "wait": short_time(total.latency(0.5)),
            "waits": short_time(total.latency(0.95)),
            "run": short_time(total.run_time(0.5)),
            "runs": short_time(total.run_time(0.95)),
        }


def _attention(overview: Overview) -> list[Line]:
    found = [Line(_("Not read, because it would take more than a second: %s") % ", ".join(overview.slow), "harm")]
    found = found if overview.slow else []
    for item in overview.attention:
        since = f" ({_age(overview, item.since)})" if item.since and item.kind != "behind" else ""
        kind = "harm" if item.level == "harm" else ""
        found.append(Line(f"{_SIGNS[item.level]} {plain(item.sentence)}{since}", kind))
    return found or [Line(_("Nothing needs a person."))]


def _age(overview: Overview, since: datetime) -> str:
    return span(max(round((overview.now - since).total_seconds()), 0))


def _queues(overview: Overview) -> list[str]:
    waiting = {each.queue: each for each in overview.waiting or ()}
    tallies = overview.past.queues if overview.past else {}
    rows = []
    for queue in _by_runs({**dict.fromkeys(waiting, Tally()), **tallies}):
        found = waiting.get(queue)
        ready = capped(found.ready, DEPTH_LIMIT if found.is_capped else found.ready + 1) if found else "0"
        oldest = _age(overview, found.ready_since) if found and found.ready_since else ""
        state = _("paused") if found and found.paused_at else oldest
        rows.append([clipped(queue), ready, state, *_figures(tallies.get(queue, Tally()), overview)])
    return _table((_("QUEUE"), _("READY"), _("OLDEST"), *_heads()), rows)


def _functions(overview: Overview) -> list[str]:
    tallies = overview.past.functions if overview.past else {}
    rows = [[clipped(function), *_figures(tallies[function], overview)] for function in _by_runs(tallies)]
    return _table((_("FUNCTION"), *_heads()), rows)


def _by_runs(tallies: dict[str, Tally]) -> list[str]:
    return sorted(tallies, key=lambda name: (-tallies[name].runs, name))


def _heads() -> tuple[str, ...]:
    return _("RUNS/MIN"), _("FAILED"), _("LATENCY95"), _("RUN95")


def _figures(tally: Tally, overview: Overview) -> Iterator[str]:
    minutes = max(overview.past.seconds if overview.past else 0, 1) / 60
    yield rate(tally.runs / minutes)
    yield f"{grouped(tally.failed)} ({tally.failure_share:.0%})" if tally.failed else "0"
    yield short_time(tally.latency(0.95))
    yield short_time(tally.run_time(0.95))


def _workers(overview: Overview) -> list[str]:
    tallies = overview.past.workers if overview.past else {}
    words = {"alive": _("alive"), "draining": _("draining"), "late": _("LATE"), "lost": _("LOST")}
    rows = [
        [
            clipped(worker.name),
            words[worker.status],
            f"{worker.busy}/{worker.concurrency}",
            grouped(tallies.get(worker.id, Tally()).runs),
            _age(overview, worker.heartbeat_at),
        ]
        for worker in sorted(overview.workers or (), key=_worst_first)
    ]
    return _table((_("WORKER"), _("STATUS"), _("SLOTS"), _("RUNS"), _("HEARTBEAT")), rows)


def _worst_first(worker: WorkerSeen) -> tuple[bool, str, int]:
    return worker.lives, worker.host, worker.pid


# --------------------------------------------------------------------------------------------------- text in cells


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The head and the rows; the first column is cut where the rest would not fit into 80 cells."""
    if not rows:
        return []
    shown = [heads, *rows[:ROWS]]
    widths = [max(map(cells, column)) for column in zip(*shown, strict=True)]
    widths[0] = max(min(widths[0], 79 - sum(widths[1:]) - 2 * len(widths[1:])), _NAME)
    return ["  ".join(_aligned(row, widths)) for row in shown]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    first = fit(row[0], widths[0])
    yield first + " " * (widths[0] - cells(first))
    for text, width in zip(row[1:], widths[1:], strict=True):
        yield " " * (width - cells(text)) + text


def cells(text: str) -> int:
    """How many cells of a terminal a text takes."""
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, width: int) -> str:
    """The text, cut to so many cells; a path keeps its end, by which functions differ."""
    if cells(text) <= width:
        return text
    if " " not in text:
        return f"…{''.join(reversed(list(_taken(reversed(text), width - 1))))}"
    return f"{''.join(_taken(text, width - 1))}…"


def _taken(text: Iterable[str], width: int) -> Iterator[str]:
    for character in text:
        width -= _cells(character)
        if width < 0:
            return
        yield character


def as_json(overview: Overview) -> dict[str, object]:
    """The overview for programs: times in seconds, moments in ISO 8601, counts that stopped early as they are."""
    past = overview.past
    return {
        "now": overview.now,
        "range_seconds": overview.range.seconds,
        "not_read": overview.slow,
        "standing": overview.standing._asdict() if overview.standing else None,
        "count_limit": COUNT_LIMIT,
        "ready_since": overview.ready_since,
        "total": _as_json(past.total) if past else None,
        "queues": {name: _as_json(tally) for name, tally in past.queues.items()} if past else None,
        "functions": {name: _as_json(tally) for name, tally in past.functions.items()} if past else None,
        "points": [*map(_step, past.points)] if past else None,
        "waiting": [each._asdict() for each in overview.waiting] if overview.waiting is not None else None,
        "workers": [each._asdict() for each in overview.workers] if overview.workers is not None else None,
        "attention": [
            {
                "kind": item.kind,
                "level": item.level,
                "sentence": plain(item.sentence),
                "since": item.since,
                "queue": item.queue,
                "function": item.function,
                "number": item.number,
            }
            for item in overview.attention
        ],
    }


def _step(point: Point) -> dict[str, object]:
    return {"start": point.start, "seconds": point.seconds, **_as_json(point.tally)}


def _as_json(tally: Tally) -> dict[str, object]:
    shares = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    return {
        **{name: tally.counts[name] for name in stats.COUNTED},
        "latency_seconds": {name: tally.latency(share) for name, share in shares},
        "run_seconds": {name: tally.run_time(share) for name, share in shares},
    }
