"""Keeping leases: they are renewed at a third of their length, all by one statement that is the heartbeat, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from django_dhara import lifecycle
from django_dhara.conf import Options
from django_dhara.execution import Run
from django_dhara.sql import Execute
from django_dhara.worker.portion import Portion
from django_dhara.worker.session import BUSY_SECONDS, Busy

if TYPE_CHECKING:
    from django_dhara.worker.hand import Hand

#: Leases that one statement renews.
MOST_RENEWED = 10_000


class Leases:
    """Those of a worker's runs.

    Args:
        hand: whose runs they are.
        on_lost: called with a run whose lease another process has taken.
        register: writes the worker's row, should the heartbeat not find it.
    """

    def __init__(
        self,
        worker: UUID,
        hand: Hand,
        options: Options,
        *,
        on_lost: Callable[[Run], None],
        register: Callable[[Execute], None],
    ) -> None:
        self._worker, self._hand, self._options = worker, hand, options
        self._on_lost, self._register = on_lost, register
        self._portion = Portion(MOST_RENEWED)
        #: When to look again, by the monotonic clock.
        self.due_at = 0.0
        self._beat_at = 0.0
        #: The last renewal was given up for want of time, and the next comes before anything that could wait.
        self.is_late = False

    def renew(self, execute: Execute) -> None:
        """Renew those that are older than a third of their length."""
        now = monotonic()
        if now < self.due_at:
            return
        self.due_at = now + self._options.renew_seconds / 2
        due = self._hand.to_renew(now + self._options.lease_seconds * 2 / 3)
        if due or self.is_late or now >= self._beat_at:
            self._renew(execute, due)

    def renew_all(self, execute: Execute) -> None:
        """Renew even those that ran out: an outage is over."""
        self._renew(execute, self._hand.runs)

    def _renew(self, execute: Execute, runs: Iterable[Run]) -> None:
        """By one statement, if the server is fast enough; the first to run out come first."""
        try:
            if self.is_late:
                lifecycle.beat(execute, self._worker)  # the reapers wait
            self._portion.each(
                sorted(runs, key=lambda run: run.lease_ends), lambda part: self._renew_part(execute, part)
            )
        except Busy:
            self.due_at, self.is_late = monotonic() + BUSY_SECONDS, True
            raise
        self.is_late = False

    def _renew_part(self, execute: Execute, runs: Sequence[Run]) -> None:
        asked = monotonic()
        leases = [run.key for run in runs]
        answer = lifecycle.renew(execute, self._worker, leases, lease_seconds=self._options.lease_seconds)
        self._beat_at = asked + self._options.renew_seconds
        for run in runs:
            if run.key in answer.renewed:
                run.lease_ends, run.at_risk = asked + self._options.lease_seconds, False
            elif run.key in answer.refused and run not in self._hand.endings:
                # One that has ended may be settled already, by a statement whose answer never came: settling finds out.
                self._hand.lose(run)
                self._on_lost(run)
        if not answer.registered:
            self._register(execute)
