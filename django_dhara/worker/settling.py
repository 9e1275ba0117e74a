"""Writing how runs ended: many by one statement, and each alone where one of them cannot be stored.

Work that was done must not be done again because its outcome is awkward, nor hold up the outcomes beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from django_dhara import events, lifecycle, meter, news, stats
from django_dhara.conf import Options
from django_dhara.execution import Run
from django_dhara.lifecycle import Ending, Settled
from django_dhara.sql import Execute
from django_dhara.states import Completed, Error, HandedBack
from django_dhara.worker.clerk import Clerk
from django_dhara.worker.portion import Portion
from django_dhara.worker.session import Busy

if TYPE_CHECKING:
    from django_dhara.worker.hand import Hand
    from django_dhara.worker.reports import Reports

#: An ended run waits at most so long for others to be settled with it, while more are still running.
FLUSH_SECONDS = 0.005
#: Pause before endings that were not taken come again: all of them, and those that even alone are refused.
AGAIN_SECONDS, REFUSED_SECONDS = 0.1, 1.0
#: So many runs are settled by one statement, and so many bytes: PostgreSQL takes no value above 1 GB, and a statement
#: has to come through within its deadline.
MOST_RUNS, MOST_BYTES = 1000, 4_000_000
#: So many at once are worth a clerk: their statement takes ten times as long as to hand it over.
CLERK_RUNS = 100

#: Said of a statement whose data the server, or psycopg before it, does not take: it never will.
UNSTORABLE = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.InternalError,
    psycopg.NotSupportedError,
    psycopg.ProgrammingError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.RaiseException,
    UnicodeError,
)


class Settler:
    """Settles what has ended in a hand.

    Args:
        reports: their last words come before the end.
        clerk: settles beside the control loop.
    """

    def __init__(
        self,
        worker: UUID,
        hand: Hand,
        reports: Reports,
        recorder: stats.Recorder,
        clerk: Clerk[Settled | Exception],
        options: Options,
    ) -> None:
        self._worker, self._hand, self._reports, self._recorder = worker, hand, reports, recorder
        self._clerk = clerk
        self._max_interrupted = options.max_interrupted
        #: The jobs of the clerk, the oldest first: since when, and whose endings.
        self._jobs: deque[tuple[float, list[Run]]] = deque()
        self._with_clerk: set[Run] = set()
        self._portion = Portion(MOST_RUNS)
        self._settle_at = 0.0
        self._settled = self._failed = 0
        #: Is there to be a line for each run? Asked once for many.
        self._tells_runs = False

    def due_at(self, *, at_once: bool) -> float:
        """When to settle next; `at_once`: no ended run waits for others to end. The clerk rings."""
        left = len(self._hand.endings) - len(self._with_clerk)
        if self._jobs and not left:
            return inf
        if self._jobs and not at_once and (left < CLERK_RUNS or not self._clerk.is_free):
            return max(self._settle_at, self._jobs[0][0] + AGAIN_SECONDS)  # it may be waiting for a lock
        waits = self._hand.is_busy and len(self._hand.endings) < MOST_RUNS and not at_once
        return max(self._settle_at, self._hand.oldest_ending + FLUSH_SECONDS if waits else 0.0)

    def count(self) -> tuple[int, int]:
        """How many runs were settled since the last call, and how many of them failed."""
        counted, self._settled, self._failed = (self._settled, self._failed), 0, 0
        return counted

    def settle(self, execute: Execute, *, at_once: bool) -> None:
        """Write how runs ended, many by one statement, but never late when nothing else is going on."""
        endings = self._hand.endings
        now = monotonic()
        if not endings or now < self.due_at(at_once=at_once):
            return
        self._settle_at = now + AGAIN_SECONDS
        self._tells_runs = events.RUN_ENDED.is_heard
        runs = batch(endings, now, without=self._with_clerk, most=self._portion.size)
        if self._reports.concern(runs):
            self._reports.write(execute)
        for run in [run for run in runs if run.settled is not None]:
            self._on_answer(run, Settled(run.settled))
        left = [run for run in runs if run in endings]
        job = partial(
            write, worker=self._worker, endings=[endings[run] for run in left], max_interrupted=self._max_interrupted
        )
        if len(left) >= CLERK_RUNS and not at_once and self._clerk.is_free:
            self._jobs.append((now, left))
            self._with_clerk.update(left)
            self._clerk.start(job)
            self._settle_at = 0.0
            return
        try:
            for run, answer in zip(left, job(execute), strict=True):
                self._on_answer(run, answer)
        except Busy:
            self._portion.failed(len(left))
            raise
        self._portion.succeeded()
        self._pause_unless(bool(runs), left, now)

    @property
    def has_news(self) -> bool:
        """Has the clerk done a job?"""
        return self._clerk.has_done

    def take_in(self) -> None:
        """What the clerk has done, if anything; raises what went wrong there."""
        if not self._clerk.has_done:
            return
        began, runs = self._jobs.popleft()
        self._with_clerk.difference_update(runs)
        answers, error = self._clerk.take()
        for run, answer in zip(runs, answers, strict=False):  # fewer, if something went wrong
            self._on_answer(run, answer)
        if isinstance(error, Busy):
            self._portion.failed(len(runs))
        elif answers:
            self._portion.succeeded()
        if error is None and not answers:
            return  # it has no session; the control loop has
        self._pause_unless(True, runs, monotonic())
        self._hand.oldest_ending = began
        if error is not None:
            raise error

    def _pause_unless(self, anything: bool, runs: Sequence[Run], now: float) -> None:
        is_done = anything and not any(run in self._hand.endings for run in runs)
        self._settle_at = 0.0 if is_done else now + AGAIN_SECONDS

    def hand_back_strays(self, execute: Execute) -> None:
        """Tasks of a claim whose answer never came are ours without our knowing; others shall have them at once."""
        held = {run.key for run in self._hand.runs}
        strays = [Ending(*key, HandedBack(), None) for key in lifecycle.owned(execute, self._worker) - held]
        if strays:
            events.STRAYS_RETURNED.tell(count=len(strays))
            lifecycle.settle(execute, self._worker, strays, max_interrupted=self._max_interrupted)

    def _on_answer(self, run: Run, answer: Settled | Exception) -> None:
        if isinstance(answer, Exception):
            self._on_refused(run, answer)
        elif answer.state is not None:
            ending = self._hand.forget(run)
            self._settled += 1
            for event in stats.events_of(run, ending, answer.state, run.alias):
                self._failed += event.what == "failed"
                self._recorder.add(event)
            if self._tells_runs:
                events.RUN_ENDED.tell(**news.facts(run, ending.outcome, answer.state))
            self._hand.tell(*news.of_settled(run, ending.outcome, answer.state))
        elif answer.refused:
            self._hand.forget(run)
            self.on_lost(run)
        # else somebody has the row locked; it comes again

    def _on_refused(self, run: Run, error: Exception) -> None:
        """Nothing can be written of this run. It is tried again, apart from the others, while its lease lasts."""
        events.OUTCOME_REFUSED.murmur(run.claim.id, task_id=run.claim.id, reason=error)
        run.refused_until = monotonic() + REFUSED_SECONDS
        run.is_hopeless = not isinstance(error, psycopg.ProgrammingError)

    def on_lost(self, run: Run) -> None:
        """The task is not this run's any more."""
        self._reports.refuse(run)
        meter.LEASES_LOST.add(run.alias, run.claim.queue)
        self._hand.tell(*news.of_lost(run))


def batch(endings: dict[Run, Ending], now: float, without: Collection[Run] = (), most: int = MOST_RUNS) -> list[Run]:
    """Whose endings fit into one statement of at most so many, the oldest first."""
    chosen: list[Run] = []
    size = 0
    for run, ending in endings.items():
        if run.refused_until > now or run in without:
            continue
        size += _bytes(ending)
        if chosen and (size > MOST_BYTES or len(chosen) >= most):
            break
        chosen.append(run)
    return chosen


def _bytes(ending: Ending) -> int:
    outcome = ending.outcome
    if isinstance(outcome, Completed):
        return len(outcome.result)
    error: Error | None = getattr(outcome, "error", None)
    return len(error.message) + len(error.traceback) if error else 0


def write(
    execute: Execute, worker: UUID, endings: Sequence[Ending], *, max_interrupted: int
) -> Iterator[Settled | Exception]:
    """Settle; each answer, in the order of `endings`, comes as soon as it is known, so that none is lost by a failure
    after it.

    An exception instead of an answer: even the least that can be said of this run was refused.
    """
    try:
        answers = _settle(execute, worker, endings, max_interrupted) if endings else []
    except UNSTORABLE as error:
        if len(endings) == 1:
            yield _write_least(execute, worker, endings[0], error, max_interrupted=max_interrupted)
        else:
            for ending in endings:
                yield from write(execute, worker, [ending], max_interrupted=max_interrupted)
        return
    yield from answers


def _settle(execute: Execute, worker: UUID, endings: Sequence[Ending], max_interrupted: int) -> list[Settled]:
    asked = monotonic()
    answers = lifecycle.settle(execute, worker, endings, max_interrupted=max_interrupted)
    meter.SETTLE_SECONDS.observe(monotonic() - asked)
    meter.SETTLE_RUNS.observe(len(endings))
    return answers


def _write_least(
    execute: Execute, worker: UUID, ending: Ending, error: Exception, *, max_interrupted: int
) -> Settled | Exception:
    least = ending.minimal()
    events.OUTCOME_MINIMAL.murmur(ending.id, task_id=ending.id, exc_info=error)
    if least == ending:
        return error
    try:
        return lifecycle.settle(execute, worker, [least], max_interrupted=max_interrupted)[0]
    except UNSTORABLE as also:
        return also
