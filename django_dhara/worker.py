"""The worker: claim what fits, hand it out, gather what ended, settle it, wait.

One control loop, on one thread, that runs no user code: functions run in the executors, receivers of signals with the
herald. Everything it asks of the database is one statement on a session of its own, with a deadline. When the database
is away it starts nothing, keeps what ended, and goes on when the database is back: an outage is not a death.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import psycopg

from django_dhara import hygiene, lifecycle, news, orders, presence, stats, wakeup
from django_dhara.alarm import Alarm
from django_dhara.conf import Options
from django_dhara.ears import Ears
from django_dhara.execution import Run
from django_dhara.hand import Hand
from django_dhara.lifecycle import Claim, Ending, Rescued, Settled, Wanted
from django_dhara.reports import Reports
from django_dhara.services import Service
from django_dhara.session import Busy, Disconnected, Session
from django_dhara.states import Completed, Outcome, State

if TYPE_CHECKING:
    from django_dhara.backend import DharaBackend

logger = logging.getLogger("django_dhara.worker")

#: An ended run waits at most so long for others to be settled with it, while more are still running.
FLUSH_SECONDS = 0.005
#: So many are settled by one statement, and without waiting for more.
FLUSH_RUNS = 500
#: Pause after a statement that was refused for a passing reason, and after one that cannot work.
BUSY_SECONDS, BROKEN_SECONDS = 0.1, 1.0
#: The longest pause between two tries to connect; the first is a tenth of a second.
RECONNECT_SECONDS = 3.0
#: After the drain: for the last words to the database.
FAREWELL_SECONDS = 4.0
#: How often statistics are written, and a summary is logged.
STATS_SECONDS, SUMMARY_SECONDS = 10.0, 60.0
#: How often running functions are looked at: overdue ones, blocked event loops, tasks that wait too long here.
CHECK_SECONDS = 0.1


class Worker:
    """One worker process.

    Args:
        backend: what it serves.
        options: the backend's options, with the worker's flags applied.
        wanted: the queues.
        name: for people; its id is new in every process.
        burst: stop when nothing is ready.
        max_tasks: stop after so many tasks.
    """

    def __init__(
        self,
        backend: DharaBackend,
        options: Options,
        wanted: Wanted,
        *,
        name: str = "",
        burst: bool = False,
        max_tasks: int | None = None,
    ) -> None:
        self.id: UUID = uuid4()
        self.backend, self.options, self.wanted = backend, options, wanted
        self.presence = presence.Presence(self.id, name, options, wanted)
        #: Things that tick beside the claims.
        self.services: list[Service] = []
        self.exit_code = 0

        self._burst, self._tasks_left = burst, max_tasks
        self._session = Session(
            options.database, f"dhara worker {self.id}"[:21], deadline_seconds=options.deadline_seconds
        )
        self._alarm = Alarm()
        self._ears = Ears(options, backend.alias, str(self.id))
        self._reports = Reports(self._alarm.ring)
        self._recorder = stats.Recorder(self.id)
        self._hand = Hand(self.id, backend, options, self._reports, self._alarm.ring)

        self._claim_at = self._settle_at = self._renew_at = self._report_at = 0.0
        self._beat_at = self._check_at = 0.0
        self._stats_at, self._summary_at = monotonic() + STATS_SECONDS, monotonic() + SUMMARY_SECONDS
        self._connect_at, self._connect_tries, self._is_registered = 0.0, 0, False
        self._hungry, self._looks_ahead = True, 0
        self._settled = self._failed = 0
        self._stops = 0
        self._drain_ends: float | None = None

    # ---------------------------------------------------------------------------------------------------- its life

    def run(self) -> int:
        """Serve until asked to stop; returns the exit code: 0 after a clean end."""
        hygiene.watch()
        with self._alarm.on_signals(self.stop):
            try:
                while not self._is_done():
                    self._turn()
            except BaseException:
                self.exit_code = 1
                raise
            finally:
                self._leave()
        return self.exit_code

    def stop(self) -> None:
        """Claim nothing more, let functions finish, then leave; asked twice, release them at once.

        May be called by a signal handler, or from another thread.
        """
        self._stops += 1
        self._session.hurry()
        self._alarm.ring()

    def fail(self, reason: str) -> None:
        """Stop, with exit code 1, so that the supervisor starts a new process."""
        if self.exit_code == 0:
            logger.error("Worker %s stops: %s", self.presence.name, reason)
            self.exit_code = 1
            self.stop()

    def _turn(self) -> None:
        self._hand.gather()
        self._check()
        self._follow_stop()
        try:
            if self._is_connected():
                self._speak()
        except Disconnected as error:
            self._on_disconnected(error)
        self._alarm.wait(self._next_due() - monotonic(), self._ears.socket, self._has_news)

    def _has_news(self) -> bool:
        return self._hand.has_news or (self._reports.is_urgent and self._session.is_open)

    def _speak(self) -> None:
        """Say to the database what is due, the most urgent first."""
        for action in (self._settle, self._renew, self._report, self._claim, self._tick_services, self._write_stats):
            try:
                action()
            except Busy as busy:
                logger.info("Worker %s tries again: %s", self.presence.name, busy)
            except psycopg.Error:
                logger.exception("Worker %s: a statement failed", self.presence.name)
                self._claim_at = max(self._claim_at, monotonic() + BROKEN_SECONDS)
                self._hungry = False

    def _next_due(self) -> float:
        if self._session.is_open and self._may_claim_more():
            return 0.0
        due = [self._check_at] if self._hand.is_busy else []
        if not self._session.is_open:
            return min([self._connect_at, *due])
        due += [self._claim_at, self._renew_at, self._stats_at, *(service.due_at for service in self.services)]
        if self._hand.endings:
            due.append(max(self._settle_at, self._flush_at))
        if self._reports:
            due.append(self._report_at)
        return min(due)

    # ------------------------------------------------------------------------------------------- claiming and settling

    def _claim(self) -> None:
        """Take what fits. While a claim brings something the next one follows at once; polling is for an empty queue."""
        self._listen()
        if not self._may_claim_more() and monotonic() < self._claim_at:
            return
        self._claim_at = monotonic() + BUSY_SECONDS
        asked = monotonic()
        demand = self._hand.demand(self._tasks_left if self._stops == 0 else 0)
        haul = lifecycle.claim(
            self._session.execute,
            self.options.database,
            self.wanted,
            self.id,
            limit=demand.limit,
            suspects=demand.suspects,
            lease_seconds=self.options.lease_seconds,
            unknown=demand.left_out,
        )
        if self._tasks_left is not None:
            self._tasks_left -= len(haul.claims)
        self._hand.take(haul.claims, asked + self.options.lease_seconds)
        self._hungry = bool(haul.claims)
        self._claim_at = self._next_poll(haul.due_in)
        orders.obey(self._session.execute, haul.orders, self._hand, self.stop)

    def _listen(self) -> None:
        if self._ears.open(self._session):
            self._claim_at = 0.0  # what was announced before is found by looking
        queues = self._ears.heard()
        if self._ears.hears is False:
            self._session.prepares = False
        if any(self._serves(queue) for queue in queues):
            self._claim_at, self._looks_ahead = 0.0, len(wakeup.LOOK_AGAIN_SECONDS)

    def _serves(self, queue: str) -> bool:
        return (not self.wanted.queues or queue in self.wanted.queues) and queue not in self.wanted.exclude

    def _may_claim_more(self) -> bool:
        return self._hungry and self._is_claiming and self._hand.demand(self._tasks_left).limit > 0

    @property
    def _is_claiming(self) -> bool:
        return self._stops == 0 and self._tasks_left != 0

    def _next_poll(self, due_in: float | None) -> float:
        """When to look again: soon after a wake-up, when the next task is due, at the latest after the poll interval."""
        pause = self.options.poll_seconds * random.uniform(0.9, 1.1)
        if due_in is not None:
            pause = min(pause, due_in + 0.001)
        if self._looks_ahead:
            pause = min(pause, wakeup.LOOK_AGAIN_SECONDS[-self._looks_ahead])
            self._looks_ahead -= 1
        return monotonic() + pause

    def _settle(self) -> None:
        """Write how runs ended, many by one statement, but never late when nothing else is going on."""
        endings = self._hand.endings
        now = monotonic()
        if not endings or now < max(self._settle_at, self._flush_at):
            return
        self._settle_at = now + BUSY_SECONDS
        batch = list(endings)[:FLUSH_RUNS]
        unwritten = [run for run in batch if run.settled is None]
        answers = dict(zip(unwritten, self._write_endings([endings[run] for run in unwritten]), strict=True))
        for run in batch:
            self._on_answer(run, answers.get(run) or Settled(run.settled))
        self._settle_at = 0.0 if not set(batch) & set(endings) else now + BUSY_SECONDS

    @property
    def _flush_at(self) -> float:
        """Until when an ended run waits for others to end, to be settled with them."""
        waits = self._hand.is_busy and len(self._hand.endings) < FLUSH_RUNS and self._stops == 0
        return self._hand.oldest_ending + FLUSH_SECONDS if waits else 0.0

    def _write_endings(self, endings: list[Ending]) -> list[Settled]:
        try:
            return self._write(endings) if endings else []
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError):
            # One of them cannot be stored, for all our care. Alone each, so that it harms only itself.
            return [self._write_alone(ending) for ending in endings]

    def _write_alone(self, ending: Ending) -> Settled:
        try:
            return self._write([ending])[0]
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError):
            logger.exception("The outcome of task %s could not be stored; a minimal one is", ending.id)
            return self._write([ending.minimal()])[0]

    def _write(self, endings: list[Ending]) -> list[Settled]:
        max_interrupted = self.options.max_interrupted
        return lifecycle.settle(self._session.execute, self.id, endings, max_interrupted=max_interrupted)

    def _on_answer(self, run: Run, answer: Settled) -> None:
        if answer.state is None and not answer.refused:
            return  # somebody has the row locked; it comes again
        ending = self._hand.forget(run)
        if run.claim.is_suspect:
            self._hungry = True  # there is room for the next suspect, and no claim has said whether one waits
        if answer.state is None:
            self._on_lost(run)
            return
        self._settled += 1
        self._failed += not isinstance(ending.outcome, Completed)
        for event in stats.events_of(run, ending, answer.state, self.wanted.backend):
            self._recorder.add(event)
        self._hand.tell(news.of_settled(run, ending.outcome, answer.state))

    # ------------------------------------------------------------------------------------------------- keeping leases

    def _renew(self) -> None:
        """Renew the leases of runs that are older than a third of one, all by one statement, with the heartbeat."""
        now = monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + self.options.renew_seconds / 2
        due = self._hand.to_renew(now + self.options.lease_seconds * 2 / 3)
        if due or now >= self._beat_at:
            self._renew_now(due)

    def _renew_now(self, runs: Iterable[Run]) -> None:
        runs = list(runs)
        asked = monotonic()
        leases = [run.key for run in runs]
        answer = lifecycle.renew(self._session.execute, self.id, leases, lease_seconds=self.options.lease_seconds)
        self._beat_at = asked + self.options.renew_seconds
        for run in runs:
            if run.key in answer.renewed:
                run.lease_ends, run.at_risk = asked + self.options.lease_seconds, False
            elif run.key in answer.refused:
                self._hand.lose(run)
                self._on_lost(run)
        if not answer.registered:
            self.presence.register(self._session.execute)

    def _on_lost(self, run: Run) -> None:
        self._reports.refuse(run)
        self._hand.tell(news.of_lost(run))

    def _report(self) -> None:
        if self._reports and (self._reports.is_urgent or monotonic() >= self._report_at):
            self._report_at = monotonic() + 0.5
            self._reports.write(self._session.execute)

    def _check(self) -> None:
        """Look after running functions."""
        now = monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        self._hand.check(now)
        if self._hand.abandoned > self.options.max_abandoned:
            self.fail(f"{self._hand.abandoned} overdue functions could not be stopped")

    # ------------------------------------------------------------------------------------------------- being connected

    def _is_connected(self) -> bool:
        """Connect if it is time to try. Before anything else the leases are renewed, even those that ran out."""
        if self._session.is_open:
            return True
        if monotonic() < self._connect_at:
            return False
        self._connect_tries += 1
        pause = min(0.1 * 2**self._connect_tries, RECONNECT_SECONDS)
        self._connect_at = monotonic() + pause * random.uniform(0.5, 1.0)
        self._session.open()
        if not self._is_registered and not self._is_migrated():
            return False
        self.presence.register(self._session.execute)
        self._renew_now(self._hand.runs)
        self._hand.resume()
        if self._is_registered:
            logger.warning("Worker %s has the database again", self.presence.name)
        self._is_registered, self._connect_tries = True, 0
        self._hungry, self._claim_at = True, 0.0
        return True

    def _is_migrated(self) -> bool:
        missing = presence.missing_migrations(self._session.execute)
        if missing:
            if self._connect_tries == 1:
                logger.warning("Waiting for migrations of dhara: %s. Run `manage.py migrate`.", ", ".join(missing))
            self._session.close()
        return not missing

    def _on_disconnected(self, error: Disconnected) -> None:
        """Start nothing new, tell functions, and keep what ends until the database is back."""
        self._session.close()
        self._hand.suspend()
        if self._connect_tries <= 1:
            logger.warning("Worker %s has lost the database: %s", self.presence.name, error)

    # ------------------------------------------------------------------------------------------------- the rest

    def _tick_services(self) -> None:
        for service in self.services:
            if service.due_at <= monotonic():
                service.due_at = monotonic() + BUSY_SECONDS
                service.tick(self._session.execute)

    def rescued(self, rescued: list[Rescued]) -> None:
        """What the reaper of this process took back."""
        for task in rescued:
            what = "dead" if task.state is State.DEAD else "lost"
            self._recorder.add(stats.Event(self.wanted.backend, task.queue, task.function, what))
        self._hand.tell(news.of_rescued(type(self.backend), rescued))
        self._claim_at = 0.0

    def _write_stats(self) -> None:
        now = monotonic()
        if now >= self._stats_at:
            self._stats_at = now + STATS_SECONDS
            self._recorder.flush(self._session.execute)
        if now >= self._summary_at:
            self._summary_at = now + SUMMARY_SECONDS
            self._summarize()

    def _summarize(self) -> None:
        if self._settled:
            logger.info(
                "Worker %s settled %d runs, %d did not succeed", self.presence.name, self._settled, self._failed
            )
        self._settled = self._failed = 0

    # ------------------------------------------------------------------------------------------------- stopping

    def _follow_stop(self) -> None:
        if self._stops and self._drain_ends is None:
            logger.info("Worker %s drains: %d functions are running", self.presence.name, self._hand.running)
            self._drain_ends = monotonic() + self.options.drain_seconds
            self._hand.drain()
        if self._drain_ends is not None and self._hand.is_busy and self._drain_is_over:
            logger.warning("Worker %s releases %d running tasks", self.presence.name, self._hand.running)
            self._hand.release()

    @property
    def _drain_is_over(self) -> bool:
        return self._stops > 1 or (self._drain_ends is not None and monotonic() >= self._drain_ends)

    def _is_done(self) -> bool:
        if self._hand.is_busy or self._hand.has_news:
            return False
        if self._stops:
            gives_up = self._drain_ends is not None and monotonic() > self._drain_ends + FAREWELL_SECONDS
            return self._drain_ends is not None and (not self._hand.endings or gives_up or self._is_hopeless())
        return not self._hand.endings and self._is_registered and (self._tasks_left == 0 or self._burst_is_over())

    def _is_hopeless(self) -> bool:
        return not self._is_registered

    def _burst_is_over(self) -> bool:
        return self._burst and self._session.is_open and not self._hungry and not self._looks_ahead

    def _leave(self) -> None:
        """Release what is left, say so to the database as far as it answers, and close everything."""
        self._session.hurry()
        self._hand.release()
        try:
            self._last_words()
        except (Disconnected, Busy, psycopg.Error) as error:
            logger.warning("Worker %s could not take its leave: %s", self.presence.name, error)
        if self._hand.endings:
            logger.error("Worker %s leaves %d outcomes unwritten", self.presence.name, len(self._hand.endings))
            self.exit_code = 1
        self._summarize()
        self._hand.close()
        self._ears.close()
        self._session.close()
        self._alarm.close()

    def _last_words(self) -> None:
        if not self._is_registered:
            return
        self._session.open()
        self._hand.gather()
        ends = monotonic() + FAREWELL_SECONDS
        while self._hand.endings and monotonic() < ends:
            self._settle()
        self._recorder.flush(self._session.execute)
        self.presence.stopped(self._session.execute)
