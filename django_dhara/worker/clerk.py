"""A second session for settling under load: while it writes how many runs ended, the control loop claims the next ones.

The clerk decides nothing. The control loop gives it one job, goes on, and takes the answers in when it is rung; what
went wrong is raised there, as if the loop had said the statement itself. Claim and settle in turn would leave half of
two processors idle: see docs/explanation/performance.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

from django_dhara.sql import Execute
from django_dhara.worker.session import Disconnected, Session

T = TypeVar("T")
Job = Callable[[Execute], Iterable[T]]

#: Where no further session is to be had, the control loop does without one for so many seconds.
WITHOUT_SECONDS = 5.0


class Clerk(Generic[T]):
    """A thread with a session of its own that does one job at a time.

    Args:
        session: nobody else uses it; it is opened with the first job.
        ring: wakes the control loop.
    """

    def __init__(self, session: Session, ring: Callable[[], None]) -> None:
        self.session, self._ring = session, ring
        self._jobs: SimpleQueue[Job[T] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._absent_until = 0.0
        self.is_busy = False
        #: The job is over and its answers are there.
        self.is_done = False

    @property
    def is_free(self) -> bool:
        return not self.is_busy and monotonic() >= self._absent_until

    def start(self, job: Job[T]) -> None:
        """Begin a job; it gets the session's `execute`, and may yield answers before it fails."""
        self.is_busy = True
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dhara-clerk", daemon=True)
            self._thread.start()

    def take(self) -> tuple[list[T], BaseException | None]:
        """The answers of the job that is done, and what ended it early."""
        answers, error = self._answers, self._error
        self._answers, self._error = [], None
        self.is_busy = self.is_done = False
        return answers, error

    def close(self, seconds: float) -> None:
        """Let the thread end after its job, and wait for that, but no longer than `seconds`."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._has_session():
                    for answer in job(self.session.execute):
                        self._answers.append(answer)
            except BaseException as error:  # noqa: BLE001  # it is the control loop's to judge
                self._error = error
            self.is_done = True
            self._ring()
        self.session.close()

    def _has_session(self) -> bool:
        try:
            self.session.open()
        except Disconnected:
            self._absent_until = monotonic() + WITHOUT_SECONDS
            return False
        return True
