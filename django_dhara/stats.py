"""Counts and times for people: per-minute aggregates that workers write, and cheap questions about the queue.

Each worker adds up what it settles and writes its own rows, at most one a minute, queue and function: no two workers
ever touch the same row. What a killed worker had not yet written (ten seconds at most) is missing from the statistics;
nothing but they depend on it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db.models import Value
from django.db.models.functions import Now

from django_dhara.lifecycle import Ending
from django_dhara.models import Minute, Task, TaskQuerySet
from django_dhara.sql import Execute
from django_dhara.states import State

if TYPE_CHECKING:
    from django_dhara.execution import Run

#: Histogram buckets: bucket n holds times up to 2 ** (n / 2) milliseconds, from 1 ms to about 12 days.
BUCKETS = 60


def upper_bound(number: int) -> float:
    """The longest time in a bucket, in seconds."""
    return float(2 ** (number / 2)) / 1000


_BOUNDS = [upper_bound(number) for number in range(BUCKETS)]


def bucket(seconds: float) -> int:
    """The histogram bucket of a time."""
    return bisect_left(_BOUNDS, seconds)


def percentile(histogram: dict[str, int], share: float) -> float | None:
    """The time in seconds that `share` (0 to 1) of a histogram does not exceed, or None if it is empty."""
    total = sum(histogram.values())
    seen = 0
    for number in sorted(histogram, key=int):
        seen += histogram[number]
        if seen >= share * total:
            return upper_bound(int(number))
    return None


class Event(NamedTuple):
    """One settled run, for the statistics."""

    backend: str
    queue: str
    function: str
    #: What happened: a column of `Minute` that counts.
    what: str
    run_seconds: float | None = None
    wait_seconds: float | None = None


#: By the verb of an outcome. Handing back is no run.
_COUNTED_AS = {
    "complete": "completed",
    "fail": "failed",
    "time out": "failed",
    "discard": "failed",
    "snooze": "snoozed",
    "interrupt": "interrupted",
}


def events_of(run: Run, ending: Ending, state: State, backend: str) -> Iterator[Event]:
    """What a settled run adds to the statistics."""
    claim, what = run.claim, _COUNTED_AS.get(ending.outcome.verb)
    if state is State.COMPLETED:
        what = "completed"  # an atomic run whose commit was carried out, although its answer never came
    if what:
        yield Event(backend, claim.queue, claim.function, what, ending.seconds, claim.waited)
    if state in (State.DEAD, State.CANCELED):
        yield Event(backend, claim.queue, claim.function, state.value.lower())


@dataclass(slots=True)
class _Counts:
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    run_histogram: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    wait_histogram: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, event: Event) -> None:
        self.counts[event.what] += 1
        if event.run_seconds is not None:
            self.run_seconds += event.run_seconds
            self.run_histogram[bucket(event.run_seconds)] += 1
        if event.wait_seconds is not None:
            self.wait_seconds += event.wait_seconds
            self.wait_histogram[bucket(event.wait_seconds)] += 1


COUNTED = ("completed", "failed", "dead", "canceled", "lost", "snoozed", "interrupted")


class Recorder:
    """What one worker has settled since it last wrote."""

    def __init__(self, worker: UUID) -> None:
        self._worker = worker
        self._counts: dict[tuple[str, str, str], _Counts] = defaultdict(_Counts)

    def add(self, event: Event) -> None:
        self._counts[event.backend, event.queue, event.function].add(event)

    def flush(self, execute: Execute) -> None:
        """Add what was recorded to this minute's rows, by one statement; nothing if there is nothing."""
        if not self._counts:
            return
        keys, counts = list(self._counts), list(self._counts.values())
        parameters: dict[str, Any] = {
            "worker": self._worker,
            "backend": [key[0] for key in keys],
            "queue": [key[1] for key in keys],
            "function": [key[2] for key in keys],
            "run_seconds": [c.run_seconds for c in counts],
            "wait_seconds": [c.wait_seconds for c in counts],
            "run_histogram": [json.dumps(c.run_histogram) for c in counts],
            "wait_histogram": [json.dumps(c.wait_histogram) for c in counts],
        }
        execute(_FLUSH, parameters | {name: [c.counts[name] for c in counts] for name in COUNTED})
        self._counts.clear()


_FLUSH = f"""/* dhara:stats */
INSERT INTO dhara_minute AS minute (minute, worker_id, backend, queue, function, run_seconds, wait_seconds,
                                    run_histogram, wait_histogram, {", ".join(COUNTED)})
SELECT date_trunc('minute', statement_timestamp()), %(worker)s, new.* FROM unnest(
    %(backend)s::text[], %(queue)s::text[], %(function)s::text[], %(run_seconds)s::float8[], %(wait_seconds)s::float8[],
    %(run_histogram)s::text[]::jsonb[], %(wait_histogram)s::text[]::jsonb[],
    {", ".join(f"%({name})s::int[]" for name in COUNTED)}) AS new
ON CONFLICT (minute, worker_id, backend, queue, function) DO UPDATE SET
    run_seconds = minute.run_seconds + excluded.run_seconds,
    wait_seconds = minute.wait_seconds + excluded.wait_seconds,
    run_histogram = (
        SELECT coalesce(jsonb_object_agg(key, n), '{{}}') FROM (
            SELECT key, sum(value::int) AS n FROM (
                SELECT * FROM jsonb_each_text(minute.run_histogram)
                UNION ALL SELECT * FROM jsonb_each_text(excluded.run_histogram)) AS part GROUP BY key) AS added),
    wait_histogram = (
        SELECT coalesce(jsonb_object_agg(key, n), '{{}}') FROM (
            SELECT key, sum(value::int) AS n FROM (
                SELECT * FROM jsonb_each_text(minute.wait_histogram)
                UNION ALL SELECT * FROM jsonb_each_text(excluded.wait_histogram)) AS part GROUP BY key) AS added),
    {", ".join(f"{name} = minute.{name} + excluded.{name}" for name in COUNTED)}
"""


class Total(NamedTuple):
    """What happened to one function of one queue in a range of time."""

    queue: str
    function: str
    #: By what `COUNTED` names.
    counts: dict[str, int]
    #: Histograms; see `percentile`.
    run: dict[str, int]
    wait: dict[str, int]


def totals(alias: str, backend: str, *, minutes: int) -> list[Total]:
    """The aggregates of the last `minutes`, this one included, by queue and function."""
    since = Now() - Value(timedelta(minutes=minutes))
    found: dict[tuple[str, str], Total] = {}
    for row in Minute.objects.using(alias).filter(backend=backend, minute__gt=since).order_by("queue", "function"):
        key = row.queue, row.function
        total = found.setdefault(key, Total(*key, Counter(), Counter(), Counter()))
        for name in COUNTED:
            total.counts[name] += getattr(row, name)
        for histogram, part in ((total.run, row.run_histogram), (total.wait, row.wait_histogram)):
            for number, count in part.items():
                histogram[number] += count
    return list(found.values())


#: A count stops here: "more than 10,000" tells as much, and costs milliseconds at any size of the table.
COUNT_LIMIT = 10_000


class Standing(NamedTuple):
    """The tasks of a backend at one moment; each count stops at `COUNT_LIMIT`."""

    ready: int
    scheduled: int
    running: int
    suspects: int
    dead: int


def standing(alias: str, backend: str) -> Standing:
    """How many tasks there are, by what they wait for."""
    tasks: TaskQuerySet = Task.objects.using(alias).filter(backend=backend)
    return Standing(
        ready=_capped(tasks.ready().trusted()),
        scheduled=_capped(tasks.scheduled().trusted()),
        running=_capped(tasks.running()),
        suspects=_capped(tasks.pending().suspects()),
        dead=_capped(tasks.filter(state=State.DEAD, finished_at__isnull=False)),
    )


def _capped(tasks: TaskQuerySet) -> int:
    return tasks.order_by().values("id")[:COUNT_LIMIT].count()
