"""What a worker has done: statistics for the database every ten seconds, a line for the log every minute."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from django_dhara import events, news, stats
from django_dhara.sql import Execute
from django_dhara.worker.hand import Hand, Load

#: How often statistics are written, and a summary is logged.
STATS_SECONDS, SUMMARY_SECONDS = 10.0, 60.0


class Glance(NamedTuple):
    """How a worker stands."""

    #: What it has settled since it began, by backend, queue and function.
    totals: dict[tuple[str, str, str], stats.Counts]
    load: Load
    #: Since the control loop turned last.
    silent_seconds: float
    has_database: bool
    is_draining: bool


class Ledger:
    """That of a worker.

    Args:
        recorder: adds up what was settled.
        count: how many runs were settled since the last call, and how many of them failed.
        hand: tells receivers.
    """

    def __init__(
        self,
        backend: type,
        worker: str,
        recorder: stats.Recorder,
        count: Callable[[], tuple[int, int]],
        hand: Hand,
    ) -> None:
        self._backend, self._worker, self._recorder = backend, worker, recorder
        self._count, self._tell = count, hand.tell
        #: When to write next, by the monotonic clock.
        self.due_at = monotonic() + STATS_SECONDS
        self._summary_at = monotonic() + SUMMARY_SECONDS

    def write(self, execute: Execute) -> None:
        """Write what is due."""
        now = monotonic()
        if now >= self.due_at:
            self.due_at = now + STATS_SECONDS
            self._recorder.flush(execute)
        if now >= self._summary_at:
            self._summary_at = now + SUMMARY_SECONDS
            self.sum_up()

    def sum_up(self) -> None:
        """Say how much was done since the last time."""
        settled, failed = self._count()
        if settled:
            events.WORKER_SUMMARY.tell(worker=self._worker, settled=settled, failed=failed)
        self._tell(*news.of_summary(self._backend, self._worker, settled, failed))
