"""A second session for settling under load: while it writes how many runs ended, the control loop claims the next ones.

The clerk decides nothing. The control loop gives it a job, goes on, and takes the answers in when it is rung; what went
wrong is raised there, as if the loop had said the statement itself. Claim and settle in turn would leave half of two
processors idle: see docs/explanation/performance.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from django_dhara.sql import Execute
from django_dhara.worker.executors import Fail, start_thread
from django_dhara.worker.session import Disconnected, Session

T = TypeVar("T")
Job = Callable[[Execute], Iterable[T]]

#: Where no further session is to be had, the control loop does without one for so many seconds.
WITHOUT_SECONDS = 5.0
#: One job and the next, so that the clerk need not wait until the control loop has time.
MOST_JOBS = 2


class Done(NamedTuple, Generic[T]):
    """A job's answers, and what ended it early. Neither: there was no session for it."""

    answers: list[T]
    error: BaseException | None


class Clerk(Generic[T]):
    """A thread with a session of its own that does one job after the other.

    Args:
        session: nobody else uses it; it is opened with the first job.
        ring: wakes the control loop.
        fail: called when the thread has died.
        voice: while it lasts, log lines of the thread are written elsewhere; see `voice.py`.
    """

    def __init__(
        self,
        session: Session,
        ring: Callable[[], None],
        fail: Fail,
        voice: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.session, self._ring, self._fail, self._voice = session, ring, fail, voice
        self._jobs: SimpleQueue[Job[T] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._done: deque[Done[T]] = deque()
        self._absent_until = 0.0
        self._given = 0

    @property
    def is_free(self) -> bool:
        """May it be given a job?"""
        return self._given < MOST_JOBS and monotonic() >= self._absent_until

    @property
    def has_done(self) -> bool:
        """Is there a job whose answers were not taken yet?"""
        return bool(self._done)

    def start(self, job: Job[T]) -> None:
        """Begin a job; it gets the session's `execute`, and may yield answers before it fails."""
        self._given += 1
        self._jobs.put(job)
        if self._thread is None:
            self._thread = start_thread("dhara-clerk", self._work, self._fail)

    def take(self) -> Done[T]:
        """What became of the first job of those that are done."""
        self._given -= 1
        return self._done.popleft()

    def close(self, seconds: float) -> None:
        """Let the thread end after its jobs, and wait for that, but no longer than `seconds`."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        with self._voice():
            self._do_jobs()
        self.session.close()

    def _do_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            answers: list[T] = []
            failure: BaseException | None = None
            try:
                if self._has_session():
                    answers.extend(job(self.session.execute))
            except BaseException as error:  # noqa: BLE001  # it is the control loop's to judge
                failure = error
            self._done.append(Done(answers, failure))
            self._ring()

    def _has_session(self) -> bool:
        try:
            self.session.open()
        except Disconnected:
            self._absent_until = monotonic() + WITHOUT_SECONDS
            return False
        return True
