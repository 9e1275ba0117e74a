"""What happened in the last minutes, hours or days: read from the aggregates that workers wrote, added up by SQL.

Ranges of up to an hour are read by the minute, and longer ones by the quarter and by two hours (see `rollup`), so the
number of rows that is read does not grow with the number of tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from django_dhara import sql
from django_dhara.sql import Execute
from django_dhara.stats.histogram import percentile
from django_dhara.stats.record import COUNTED
from django_dhara.stats.rollup import HOURS, ORIGIN, QUARTERS_STAY

#: No statement that reads statistics runs longer than this.
LIMIT_SECONDS = 0.9
_HOUR = 3600


class Range(NamedTuple):
    """A time that ends now, and into what steps it is cut; both in seconds."""

    name: str
    seconds: int
    step: int


#: The ranges that pages, commands and charts offer.
RANGES = {
    each.name: each
    for each in (
        Range("5m", 300, 60),
        Range("1h", _HOUR, 60),
        Range("24h", 24 * _HOUR, 900),
        Range("7d", 7 * 24 * _HOUR, 2 * _HOUR),
    )
}

By = Literal["queue", "function", "worker"]


@dataclass(slots=True)
class Tally:
    """What happened: counts by the names in `COUNTED`, and times as histograms."""

    counts: Counter[str] = field(default_factory=Counter)
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    run: Counter[int] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    #: From when on it is known that a run had failed: the beginning of its minute, the end of its quarter or two hours.
    failing_since: datetime | None = None

    @property
    def completed(self) -> int:
        return self.counts["completed"]

    @property
    def failed(self) -> int:
        """Runs that ended by an error or a timeout, and those that were lost."""
        return self.counts["failed"] + self.counts["lost"]

    @property
    def runs(self) -> int:
        """Runs that ended, however they did; one that was handed back is none, unless its task was to be canceled."""
        others = sum(self.counts[what] for what in ("canceled", "snoozed", "interrupted"))
        return self.completed + self.failed + others

    @property
    def failure_share(self) -> float:
        """Of the runs that succeeded or failed, those that failed: 0 to 1."""
        return self.failed / max(self.completed + self.failed, 1)

    def run_time(self, share: float) -> float | None:
        """The seconds that `share` (0 to 1) of the runs did not exceed."""
        return percentile(self.run, share)

    def latency(self, share: float) -> float | None:
        """The seconds from due to started that `share` (0 to 1) of the runs did not exceed."""
        return percentile(self.wait, share)

    def add(self, other: Tally) -> None:
        for mine, theirs in ((self.counts, other.counts), (self.run, other.run), (self.wait, other.wait)):
            for key, count in theirs.items():  # Counter.update() is slower by a half
                mine[key] += count  # type: ignore[index]
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds
        times = [each for each in (self.failing_since, other.failing_since) if each]
        self.failing_since = min(times, default=None)


class Point(NamedTuple):
    """One step of a range."""

    start: datetime
    #: How much of the step is over, in seconds: less than all of it for the last one.
    seconds: float
    tally: Tally


@dataclass(slots=True)
class History:
    """All that a range tells: over time, and by queue, function and worker."""

    range: Range
    now: datetime
    points: list[Point]
    #: By queue and function.
    pairs: dict[tuple[str, str], Tally]
    #: Of at most the last hour or so: older aggregates do not tell workers apart. Counts only.
    workers: dict[UUID, Tally]

    @property
    def total(self) -> Tally:
        return _sum(self.pairs.values())

    @property
    def queues(self) -> dict[str, Tally]:
        return self._by(0)

    @property
    def functions(self) -> dict[str, Tally]:
        return self._by(1)

    @property
    def seconds(self) -> float:
        """How long the range is, the part of its last step that is over included."""
        return sum(point.seconds for point in self.points)

    def _by(self, place: int) -> dict[str, Tally]:
        found: dict[str, Tally] = defaultdict(Tally)
        for pair, tally in self.pairs.items():
            found[pair[place]].add(tally)
        return dict(sorted(found.items()))


def _sum(tallies: Any) -> Tally:
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


def history(alias: str, backend: str | None, range_: Range) -> History:
    """What happened in a range, this minute included.

    Args:
        alias: the database.
        backend: only of this one; None: of all in the database.

    Raises:
        TooSlow: it would take longer than `LIMIT_SECONDS`.
    """
    with _reading(alias) as execute:
        window = _Window.now(execute, range_, {"backend": backend, "queue": None, "function": None, "worker": None})
        found = _grouped(execute, window, (("point",), ("queue", "function"), ("worker_id",)))
    points, pairs, workers = (found[part] for part in (("point",), ("queue", "function"), ("worker_id",)))
    return History(
        range_,
        window.ends,
        window.points({start: tally for (start,), tally in points.items()}),
        dict(sorted(pairs.items())),
        {worker: tally for (worker,), tally in workers.items() if worker},
    )


def series(
    alias: str,
    backend: str | None,
    range_: Range,
    by: By | None = None,
    *,
    queue: str | None = None,
    function: str | None = None,
    worker: UUID | None = None,
) -> dict[str, list[Point]]:
    """The points of a chart, or of one for each queue, function or worker; under "" where `by` is None.

    Args:
        alias: the database.
        backend: only of this one; None: of all in the database.
        queue, function, worker: only of this one.

    Raises:
        TooSlow: it would take longer than `LIMIT_SECONDS`.
    """
    column = {"queue": ("queue",), "function": ("function",), "worker": ("worker_id",), None: ()}[by]
    with _reading(alias) as execute:
        only = {"backend": backend, "queue": queue, "function": function, "worker": worker}
        window = _Window.now(execute, range_, only, by_worker=by == "worker")
        [found] = _grouped(execute, window, ((*column, "point"),)).values()
    tallies: dict[str, dict[datetime, Tally]] = defaultdict(dict)
    for (*name, start), tally in found.items():
        tallies[str(name[0]) if name else ""][start] = tally
    return {name: window.points(tallies[name]) for name in sorted(tallies) or ([] if by else [""])}


def totals(
    alias: str, backend: str | None, range_: Range, by: By, *, queue: str | None = None, function: str | None = None
) -> dict[str, Tally]:
    """What happened in a range, by queue, function or worker; see `series`."""
    column = "worker_id" if by == "worker" else by
    with _reading(alias) as execute:
        only = {"backend": backend, "queue": queue, "function": function, "worker": None}
        window = _Window.now(execute, range_, only, by_worker=by == "worker")
        [found] = _grouped(execute, window, ((column,),)).values()
    return {str(name): tally for (name,), tally in sorted(found.items(), key=str) if name}


#: The planner takes a histogram for a hundred rows. So it would sort what fits into a small hash table, remember what
#: never comes again, and compile a statement that is over before the compiler is.
_SETTINGS = {"work_mem": "64MB", "enable_memoize": "off", "max_parallel_workers_per_gather": "0", "jit": "off"}


@contextmanager
def _reading(alias: str) -> Iterator[Execute]:
    with sql.time_limit(alias, LIMIT_SECONDS, **_SETTINGS):
        yield sql.on(alias)


class _Window(NamedTuple):
    """What of the aggregates is read."""

    range: Range
    since: datetime
    ends: datetime
    parameters: dict[str, Any]
    has_quarters: bool

    @classmethod
    def now(cls, execute: Execute, range_: Range, only: dict[str, Any], *, by_worker: bool = False) -> _Window:
        step = timedelta(seconds=range_.step)
        [[now, current, there]] = execute(_NOW, {"step": step})
        since = sql.utc(current) - timedelta(seconds=range_.seconds)
        # Quarters do not tell workers apart.
        has_quarters = there and range_.seconds > _HOUR and not only["worker"] and not by_worker
        return cls(range_, since, now, {**only, "step": step, "since": since}, has_quarters)

    def points(self, tallies: dict[datetime, Tally]) -> list[Point]:
        """A point for each step, whether something happened in it or not."""
        step, found, start = timedelta(seconds=self.range.step), [], self.since
        known, ends = {sql.utc(when): tally for when, tally in tallies.items()}, sql.utc(self.ends)
        while start <= ends:
            seconds = min(step, ends - start).total_seconds()
            found.append(Point(start, seconds, known.get(start) or Tally()))
            start += step
        return found

    @property
    def source(self) -> str:
        return f"{_MINUTES} UNION ALL {_QUARTERS}" if self.has_quarters else _MINUTES


_NOW = f"""/* dhara:stats_now */
SELECT statement_timestamp(), date_bin(%(step)s, statement_timestamp(), {ORIGIN}),
       to_regclass('dhara_quarter') IS NOT NULL
"""

_FILTER = """(%(backend)s::text IS NULL OR backend = %(backend)s) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
      AND (%(function)s::text IS NULL OR function = %(function)s)"""
_COLUMNS = f"backend, queue, function, run_seconds, wait_seconds, run_histogram, wait_histogram, {', '.join(COUNTED)}"
_MINUTES = f"""
    SELECT date_bin(%(step)s, minute, {ORIGIN}) AS point, minute AS known, worker_id, {_COLUMNS} FROM dhara_minute
    WHERE minute >= %(since)s AND {_FILTER} AND (%(worker)s::uuid IS NULL OR worker_id = %(worker)s)"""
_QUARTERS = f"""
    SELECT date_bin(%(step)s, start, {ORIGIN}) AS point,
           start + CASE WHEN start < statement_timestamp() - interval '{QUARTERS_STAY}' THEN interval '{HOURS}'
                        ELSE interval '15 minutes' END AS known, NULL AS worker_id, {_COLUMNS} FROM dhara_quarter
    WHERE start >= %(since)s AND {_FILTER}"""

_COUNTS = f"""/* dhara:stats_counts */
SELECT {{grouping}}, {{columns}}, sum(run_seconds), sum(wait_seconds), min(known) FILTER (WHERE failed + lost > 0),
       {", ".join(f"sum({name})" for name in COUNTED)}
FROM ({{source}}) AS part GROUP BY GROUPING SETS ({{sets}})
"""

# Bucket and kind are one number: each column less is a tenth of the time.
_HISTOGRAMS = """/* dhara:stats_histograms */
SELECT {grouping}, {columns}, code, sum(n) FROM (
    SELECT {columns}, key::int * 2 + is_wait AS code, value::int AS n
    FROM ({source}) AS part
    CROSS JOIN LATERAL (VALUES (0, run_histogram), (1, wait_histogram)) AS kind(is_wait, histogram)
    CROSS JOIN LATERAL jsonb_each_text(histogram) WHERE histogram <> '{{}}') AS bucket
GROUP BY GROUPING SETS ({sets})
"""


def _grouped(
    execute: Execute, window: _Window, sets: tuple[tuple[str, ...], ...]
) -> dict[tuple[str, ...], dict[tuple[Any, ...], Tally]]:
    """Tallies for each grouping set, by the values of its columns."""
    found: dict[tuple[str, ...], dict[tuple[Any, ...], Tally]] = {each: defaultdict(Tally) for each in sets}
    for names, values, (run, wait, since, *counts) in _rows(execute, window, _COUNTS, sets):
        tally = found[names][values]
        tally.run_seconds, tally.wait_seconds, tally.failing_since = run, wait, since
        tally.counts.update(dict(zip(COUNTED, counts, strict=True)))
    # Those of a minute are gathered in the row of one worker, and so say nothing of workers.
    timed = tuple(each for each in sets if "worker_id" not in each)
    if timed:
        for names, values, (code, count) in _rows(execute, window, _HISTOGRAMS, timed, "code"):
            tally, (key, is_wait) = found[names][values], divmod(code, 2)
            (tally.wait if is_wait else tally.run)[key] = int(count)
    return found


def _rows(
    execute: Execute, window: _Window, statement: str, sets: tuple[tuple[str, ...], ...], *more: str
) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...], Sequence[Any]]]:
    """The rows of a statement: their grouping set, the values of its columns, and what was added up.

    Args:
        more: further columns that every set is grouped by.
    """
    columns = [*dict.fromkeys(name for each in sets for name in each)]
    text = statement.format(
        # A bit for each column that is not in the set of the row, the last one the lowest.
        grouping=f"grouping({', '.join(columns)})",
        columns=", ".join(columns),
        source=window.source,
        sets=", ".join(f"({', '.join([*each, *more])})" for each in sets),
    )
    by_bits = {
        int("".join("01"[name not in each] for name in columns), 2): (each, [1 + columns.index(name) for name in each])
        for each in sets
    }
    for row in execute(text, window.parameters):
        names, places = by_bits[row[0]]
        yield names, tuple([row[place] for place in places]), row[1 + len(columns) :]
