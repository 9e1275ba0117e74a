"""What workers write: each adds up what it settles, by minute, queue and function.

Each worker writes its own rows, at most one a minute, queue and function: no two workers ever write into the same row.
What a killed worker had not yet written (ten seconds at most) is missing from the statistics; nothing but they depend
on it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from django_dhara import meter
from django_dhara.lifecycle import Ending
from django_dhara.sql import Execute
from django_dhara.states import State
from django_dhara.stats.histogram import bucket

if TYPE_CHECKING:
    from django_dhara.execution import Run


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
    elif state is State.CANCELED:
        what = "canceled"  # whatever the function made of it: it did as it was told
    if what:
        waited = None if ending.outcome.verb == "hand back" else claim.waited
        yield Event(backend, claim.queue, claim.function, what, ending.seconds, waited)
    if state is State.DEAD:
        yield Event(backend, claim.queue, claim.function, "dead")


@dataclass(slots=True)
class Counts:
    """What happened to one function of one queue."""

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

    def plus(self, other: Counts) -> Counts:
        """Both, as a new one."""
        return Counts(
            _sum(self.counts, other.counts),
            self.run_seconds + other.run_seconds,
            self.wait_seconds + other.wait_seconds,
            _sum(self.run_histogram, other.run_histogram),
            _sum(self.wait_histogram, other.wait_histogram),
        )


K = TypeVar("K")


def _sum(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    """Of what another thread may be adding to: it is copied first."""
    found = dict(one)
    for key, number in dict(other).items():
        found[key] = found.get(key, 0) + number
    return found


#: The columns of `Minute` and `Quarter` that count, and those that hold histograms.
COUNTED = ("completed", "failed", "dead", "canceled", "lost", "snoozed", "interrupted")
HISTOGRAMS = ("run_histogram", "wait_histogram")


#: Backend, queue and function.
Key = tuple[str, str, str]
_NOTHING = Counts()


class Recorder:
    """What one worker has settled since it last wrote, and in all."""

    def __init__(self, worker: UUID) -> None:
        self._worker = worker
        self._counts: dict[Key, Counts] = defaultdict(Counts)
        #: What was written, and what was not yet: in one piece, for the thread that reads the metrics.
        self._state: tuple[Mapping[Key, Counts], Mapping[Key, Counts]] = {}, self._counts

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
        sums, self._counts = self.totals(), defaultdict(Counts)
        self._state = sums, self._counts

    def totals(self) -> dict[Key, Counts]:
        """All that was ever added, by backend, queue and function; from any thread. Of pairs beyond the limit of the
        metrics the first comers keep their names."""
        written, new = self._state
        sums = dict(written)
        for key, counts in list(new.items()):
            name: Key = key if key in sums or len(sums) < meter.most_series else (key[0], meter.OTHER, meter.OTHER)
            sums[name] = sums.get(name, _NOTHING).plus(counts)
        return sums


def added(row: str) -> str:
    """The SET of an upsert that adds `excluded` to the row that is there, whose alias is `row`."""
    histograms = (f"{name} = {_sum_of(f'{row}.{name}', f'excluded.{name}')}" for name in HISTOGRAMS)
    plain = (f"{name} = {row}.{name} + excluded.{name}" for name in ("run_seconds", "wait_seconds", *COUNTED))
    return ", ".join([*plain, *histograms])


def _sum_of(one: str, other: str) -> str:
    return f"""(
        SELECT coalesce(jsonb_object_agg(key, n), '{{}}') FROM (
            SELECT key, sum(value::int) AS n FROM (
                SELECT * FROM jsonb_each_text({one}) UNION ALL SELECT * FROM jsonb_each_text({other})
            ) AS part GROUP BY key) AS added)"""


def merged(column: str) -> str:
    """The histograms of a group as one: a column of a SELECT with GROUP BY."""
    return f"""(
        SELECT coalesce(jsonb_object_agg(key, n), '{{}}') FROM (
            SELECT key, sum(value::int) AS n
            FROM jsonb_array_elements(jsonb_agg({column})) AS part(histogram)
            CROSS JOIN LATERAL jsonb_each_text(part.histogram) AS bucket(key, value)
            GROUP BY key) AS added) AS {column}"""


_FLUSH = f"""/* dhara:stats */
INSERT INTO dhara_minute AS minute (minute, worker_id, backend, queue, function, run_seconds, wait_seconds,
                                    run_histogram, wait_histogram, {", ".join(COUNTED)})
SELECT date_trunc('minute', statement_timestamp()), %(worker)s, new.* FROM unnest(
    %(backend)s::text[], %(queue)s::text[], %(function)s::text[], %(run_seconds)s::float8[], %(wait_seconds)s::float8[],
    %(run_histogram)s::text[]::jsonb[], %(wait_histogram)s::text[]::jsonb[],
    {", ".join(f"%({name})s::int[]" for name in COUNTED)}) AS new
ON CONFLICT (minute, worker_id, backend, queue, function) DO UPDATE SET {added("minute")}
"""
