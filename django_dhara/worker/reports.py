"""What running functions say: progress and checkpoints, on their way from the functions' threads to the database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from django_dhara import events, lifecycle
from django_dhara.errors import LeaseLost
from django_dhara.execution import Run
from django_dhara.lifecycle import Report
from django_dhara.sql import Execute
from django_dhara.worker.settling import UNSTORABLE


class _Checkpoint:
    """A function that waits until its checkpoint is stored, or refused."""

    def __init__(self, run: Run, text: str) -> None:
        self.run, self.text = run, text
        self.answered = threading.Event()
        self.accepted = False

    def answer(self, accepted: bool) -> None:
        self.accepted = accepted
        self.answered.set()


class Reports:
    """The `Reporter` of a worker: functions' threads put in, the control loop writes.

    Args:
        ring: wakes the control loop.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._progress: dict[Run, str] = {}
        self._checkpoints: deque[_Checkpoint] = deque()

    def progress(self, run: Run, text: str) -> None:
        self._progress[run] = text

    def checkpoint(self, run: Run, text: str) -> None:
        waiting = _Checkpoint(run, text)
        self._checkpoints.append(waiting)
        self._ring()
        waiting.answered.wait()
        if not waiting.accepted:
            raise LeaseLost(f"task {run.claim.id} is no longer this run's; the checkpoint was not stored")

    @property
    def is_urgent(self) -> bool:
        """A function waits for an answer."""
        return bool(self._checkpoints)

    def __bool__(self) -> bool:
        return bool(self._progress or self._checkpoints)

    def concern(self, runs: Iterable[Run]) -> bool:
        """Is there something that one of these has said last?"""
        return any(run in self._progress for run in runs)

    def write(self, execute: Execute) -> None:
        """Write all by one statement. If the database is away or busy, all is kept for the next try."""
        progress, checkpoints = dict(self._progress), list(self._checkpoints)
        newest = {waiting.run: waiting.text for waiting in checkpoints}
        reports = {run: Report(*run.key, progress.get(run), newest.get(run)) for run in [*progress, *newest]}
        taken = self._write(execute, list(reports.values()))
        for run, text in progress.items():
            if self._progress.get(run) == text:
                del self._progress[run]
        missing = [waiting.run for waiting in checkpoints if waiting.run.key not in taken]
        # Somebody may have the task's row locked; then it is still this run's, and its word comes again.
        locked = lifecycle.owned(execute, missing[0].worker) if missing else set()
        for waiting in checkpoints:
            if waiting.run.key in taken or waiting.run.key not in locked:
                self._checkpoints.remove(waiting)
                waiting.answer(waiting.run.key in taken)

    def _write(self, execute: Execute, reports: list[Report]) -> set[tuple[UUID, int]]:
        try:
            return lifecycle.report(execute, reports)
        except UNSTORABLE:
            if len(reports) > 1:  # alone each, so that it harms only itself
                return {key for report in reports for key in self._write(execute, [report])}
            events.REPORT_REFUSED.murmur(reports[0].id, task_id=reports[0].id, exc_info=True)
            return set()

    def refuse(self, run: Run) -> None:
        """The run is over or lost: nothing of it is written any more."""
        self._progress.pop(run, None)
        for waiting in [waiting for waiting in list(self._checkpoints) if waiting.run is run]:
            self._checkpoints.remove(waiting)
            waiting.answer(False)
