"""What running functions say: progress and checkpoints, on their way from the functions' threads to the database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from django_dhara import lifecycle
from django_dhara.errors import LeaseLost
from django_dhara.execution import Run
from django_dhara.lifecycle import Report
from django_dhara.sql import Execute


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

    def write(self, execute: Execute) -> None:
        """Write all by one statement. If it fails, all is kept for the next try."""
        progress, checkpoints = dict(self._progress), list(self._checkpoints)
        newest = {waiting.run: waiting.text for waiting in checkpoints}
        runs = list({**progress, **newest})
        taken = lifecycle.report(execute, [Report(*run.key, progress.get(run), newest.get(run)) for run in runs])
        for run, text in progress.items():
            if self._progress.get(run) == text:
                del self._progress[run]
        for waiting in checkpoints:
            self._checkpoints.remove(waiting)
            waiting.answer(waiting.run.key in taken)

    def refuse(self, run: Run) -> None:
        """The run is over or lost: nothing of it is written any more."""
        self._progress.pop(run, None)
        for waiting in [waiting for waiting in list(self._checkpoints) if waiting.run is run]:
            self._checkpoints.remove(waiting)
            waiting.answer(False)
