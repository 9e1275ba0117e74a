"""What this process counts since it began, for the metrics: plain numbers in memory, written where things happen.

Nothing is counted for each run here: what a worker settles its `stats.Recorder` adds up anyway. Here are the tasks that
were enqueued, and what happens once for many: a statement, a lost lease, a rescue, a new session.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

#: Pairs of queue and function that are told apart; what comes with a further one is counted as `OTHER`. Names of queues
#: may be made at run time, and each would be a time series for ever. `DHARA["METRICS_MAX_SERIES"]`.
most_series = 200
OTHER = "other"


def limit_series(number: int) -> None:
    global most_series
    most_series = number


class Counts:
    """A counter for each combination of labels.

    Args:
        labels: their names. With more than `most_series` combinations the last two are counted as `OTHER`.
    """

    def __init__(self, *labels: str) -> None:
        self.labels = labels
        self._guard = threading.Lock()
        self._counts: dict[tuple[str, ...], int] = {}
        #: Is told of each addition; see `metrics/shared.py`.
        self.also: Callable[[tuple[str, ...], int], None] | None = None

    def add(self, *values: str, amount: int = 1) -> None:
        with self._guard:
            key = values if values in self._counts or len(self._counts) < most_series else fold(values)
            self._counts[key] = self._counts.get(key, 0) + amount
        if self.also is not None:
            self.also(key, amount)

    def all(self) -> dict[tuple[str, ...], int]:
        with self._guard:
            return dict(self._counts)

    def take(self) -> dict[tuple[str, ...], int]:
        """What was counted, which is forgotten here: of a child process, for its parent to add."""
        with self._guard:
            taken, self._counts = self._counts, {}
        return taken

    def add_all(self, counts: Mapping[tuple[str, ...], int]) -> None:
        for key, amount in counts.items():
            self.add(*key, amount=amount)


def fold(values: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of what is not told apart: only the first, the backend, stays."""
    return (*values[:1], *[OTHER] * (len(values) - 1))


class Sum(NamedTuple):
    """A histogram: counts by upper bound, the last of what is above all of them, and the sum of all values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class Histogram:
    """Values by size."""

    def __init__(self, *bounds: float) -> None:
        self._bounds = bounds
        self._guard = threading.Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        place = bisect_left(self._bounds, value)
        with self._guard:
            self._counts[place] += 1
            self._total += value

    def sum(self) -> Sum:
        with self._guard:
            return Sum(self._bounds, list(self._counts), self._total)


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NUMBERS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

#: Tasks whose enqueue was committed.
ENQUEUED = Counts("backend", "queue", "function")
#: Tasks that the reaper of this process took back.
RESCUED = Counts("backend", "queue")
#: Runs whose task had gone to somebody else.
LEASES_LOST = Counts("backend", "queue")
#: Statements of a worker that failed: `lost` with the connection, `busy` (it comes again), `refused`; or
#: `connect`, which none was had for.
DATABASE_ERRORS = Counts("session", "kind")
#: Sessions that a worker has opened, by what they are for.
CONNECTS = Counts("session")
#: Tasks that a claim brought, and how long it took.
CLAIM_TASKS, CLAIM_SECONDS = Histogram(*_NUMBERS), Histogram(*_SECONDS)
#: Runs that were settled by one statement, and how long it took.
SETTLE_RUNS, SETTLE_SECONDS = Histogram(*_NUMBERS), Histogram(*_SECONDS)
