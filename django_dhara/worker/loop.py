"""The worker: claim what fits, hand it out, gather what ended, settle it, wait.

One control loop, on one thread, that runs no user code: functions run in the executors, receivers of signals with the
herald. Everything it asks of the database is one statement on a session of its own, with a deadline; under load the
clerk says what it would settle, on another one. When the database is away it starts nothing, keeps what ended, and goes
on when the database is back: an outage is not a death.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import psycopg

from django_dhara import events, hygiene, lifecycle, meter, news, signals, stats, wakeup
from django_dhara.conf import Options
from django_dhara.lifecycle import Rescued, Settled, Wanted
from django_dhara.states import State
from django_dhara.worker import presence, voice
from django_dhara.worker.alarm import Alarm
from django_dhara.worker.clerk import Clerk
from django_dhara.worker.contact import Contact
from django_dhara.worker.ears import Ears
from django_dhara.worker.hand import Hand
from django_dhara.worker.lanes import Lanes
from django_dhara.worker.leases import Leases
from django_dhara.worker.ledger import Glance, Ledger
from django_dhara.worker.orders import Orders
from django_dhara.worker.pulse import Pulse
from django_dhara.worker.reports import Reports
from django_dhara.worker.session import BUSY_SECONDS, Busy, Disconnected, Session
from django_dhara.worker.settling import Settler

if TYPE_CHECKING:
    from django_dhara.backend import DharaBackend
    from django_dhara.services import Service

#: Pause after a statement that cannot work.
BROKEN_SECONDS = 1.0
#: After the drain: for the last words to the database.
FAREWELL_SECONDS = 4.0
#: How long a burst waits for a database that is away, or not migrated, before it fails: nobody watches it.
BURST_PATIENCE_SECONDS = 10.0
#: A worker that is not woken looks so often while functions run: a cancel reaches them within a second.
COMMAND_SECONDS = 0.8
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
        #: Shows that the control loop turns.
        self.pulse = Pulse()
        #: Things that tick beside the claims.
        self.services: list[Service] = []
        self.exit_code = 0

        self._burst, self._tasks_left = burst, max_tasks
        self._session, clerks_session = (
            Session(options.database, f"dhara {what} {self.id}"[:21], deadline_seconds=options.deadline_seconds)
            for what in ("worker", "settle")
        )
        self._alarm = Alarm()
        self._clerk: Clerk[Settled | Exception] = Clerk(clerks_session, self._alarm.ring, self.fail, self._voice)
        self._ears = Ears(options, backend.alias, str(self.id))
        self._reports = Reports(self._alarm.ring)
        self._recorder = stats.Recorder(self.id)
        self._hand = Hand(self.id, backend, options, self._reports, ring=self._alarm.ring, fail=self.fail)
        self._orders = Orders(self._hand, self.stop, self._alarm.ring)
        self._settler = Settler(self.id, self._hand, self._reports, self._recorder, self._clerk, options)
        self._leases = Leases(
            self.id, self._hand, options, on_lost=self._settler.on_lost, register=self.presence.register
        )
        self._ledger = Ledger(type(backend), self.presence.name, self._recorder, self._settler.count, self._hand)
        self._contact = Contact(self._session, self.presence, options, self._on_back)

        self._claim_at = self._report_at = self._check_at = 0.0
        self._strays_at: list[float] = []
        self._lanes = Lanes()
        self._looks_ahead, self._pauses_until = 0, 0.0
        self._is_stopping, self._told_draining, self._signals = False, False, 0
        self._drain_ends: float | None = None

    # ---------------------------------------------------------------------------------------------------- its life

    def run(self) -> int:
        """Serve until asked to stop; returns the exit code: 0 after a clean end."""
        hygiene.watch()
        signals.sums_up.set()
        try:
            with self._alarm.on_signals(self.on_signal), self._voice():
                self._serve()
        finally:
            signals.sums_up.clear()
            self.pulse.end()
            self._alarm.close()
        return self.exit_code

    def _voice(self) -> AbstractContextManager[None]:
        return voice.handed_on(self._hand.tell, self._hand.is_heard)

    def _serve(self) -> None:
        try:
            while not self._is_done():
                self._turn()
                if not self._is_done():  # a burst does not wait for its last poll
                    self._alarm.wait(self._next_due() - monotonic(), self._ears.socket, self._has_news)
        except BaseException:
            self.exit_code = 1
            raise
        finally:
            self._leave()

    def stop(self) -> None:
        """Claim nothing more, let functions finish, then leave. Asked again it changes nothing.

        May be called from another thread.
        """
        self._is_stopping = True
        for session in (self._session, self._clerk.session, self._ears):
            session.hurry()
        self._alarm.ring()

    def on_signal(self) -> None:
        """Stop; at the second signal release functions at once. A command to drain is no signal."""
        self._signals += 1
        self.stop()

    def fail(self, reason: str) -> None:
        """Stop, with exit code 1, so that the supervisor starts a new process."""
        if self.exit_code == 0:
            events.WORKER_FAILS.tell(worker=self.presence.name, reason=reason)
            self.exit_code = 1
            self.stop()

    def _turn(self) -> None:
        self.pulse.beat()
        self._hand.gather()
        self._check()
        self._follow_stop()
        try:
            self._attempt(self._settler.take_in)
            if self._contact.is_there():
                self._speak()
        except Disconnected as error:
            self._on_disconnected(error)

    def _has_news(self) -> bool:
        return (
            self._hand.is_urgent
            or self._settler.has_news
            or (self._orders.has_news and self._session.is_open)
            or (self._reports.is_urgent and self._session.is_open)
            or (self._is_stopping and self._drain_ends is None)
        )

    def _speak(self) -> None:
        """Say to the database what is due, the most urgent first; nothing else while leases cannot be renewed."""
        for action in (self._settle, self._renew):
            self._attempt(action)
        if self._leases.is_late:
            return
        actions = (
            self._tell_memory,
            self._report,
            self._answer,
            self._hand_back_strays,
            self._claim,
            self._tick_services,
            self._write_stats,
            self._tell_draining,
        )
        for action in actions:
            self._attempt(action)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Busy as busy:
            events.STATEMENT_BUSY.murmur(action.__name__, worker=self.presence.name, reason=busy)
        except (psycopg.Error, UnicodeError) as error:
            events.STATEMENT_FAILED.murmur((action.__name__, type(error)), worker=self.presence.name, exc_info=True)
            if action == self._claim:
                self._claim_at = self._pauses_until = monotonic() + BROKEN_SECONDS

    def _next_due(self) -> float:
        due = [self.pulse.due_at, *([self._check_at] if self._hand.is_busy else [])]
        if not self._session.is_open:
            return min([self._contact.due_at, *due])
        due.append(self._leases.due_at)
        if self._hand.endings:
            due.append(self._settler.due_at(at_once=self._is_stopping))
        if self._leases.is_late:
            return min(due)
        if self._may_claim_more():
            return 0.0
        due += [self._claim_at, self._ledger.due_at, *(service.due_at for service in self.services)]
        if self._reports:
            due.append(self._report_at)
        return min(due + self._strays_at[:1])

    # ------------------------------------------------------------------------------------------- claiming and settling

    def _claim(self) -> None:
        """Take what fits. While a claim brings something the next follows at once; polling is for an empty queue."""
        self._listen()
        if not self._may_claim_more() and monotonic() < self._claim_at:
            return
        self._claim_at = monotonic() + BUSY_SECONDS
        asked = monotonic()
        demand = self._hand.demand(0 if self._is_stopping else self._tasks_left)
        if rests := self._lanes.rests(demand):
            demand = demand._replace(limit=0)
        haul = lifecycle.claim(
            self._session.execute,
            self.options.database,
            self.wanted,
            self.id,
            limit=demand.limit,
            suspects=demand.suspects,
            lease_seconds=self.options.lease_seconds,
            unknown=demand.left_out,
            view=self._lanes.look(),
        )
        meter.CLAIM_SECONDS.observe(monotonic() - asked)
        if demand.limit:
            meter.CLAIM_TASKS.observe(len(haul.claims))
            self._lanes.learn(demand, haul)
        if self._tasks_left is not None:
            self._tasks_left -= len(haul.claims)
        self._hand.take(haul.claims, asked + self.options.lease_seconds)
        self._pauses_until = 0.0
        again_at = self._lanes.rests_until if rests else self._lanes.look_again_at
        self._claim_at = min(self._next_poll(haul.due_in), again_at)
        self._orders.obey(self._session.execute, haul.orders)

    def _listen(self) -> None:
        if self._ears.open(self._session):
            self._claim_at = 0.0  # what was announced before is found by looking
        queues = self._ears.heard()
        if any(self._serves(queue) for queue in queues):
            self._claim_at, self._looks_ahead = 0.0, len(wakeup.LOOK_AGAIN_SECONDS)

    def _serves(self, queue: str) -> bool:
        return (not self.wanted.queues or queue in self.wanted.queues) and queue not in self.wanted.exclude

    def _may_claim_more(self) -> bool:
        if not self._is_claiming or monotonic() < self._pauses_until:
            return False
        demand = self._hand.demand(self._tasks_left)
        return demand.limit > 0 and self._lanes.may_bring(demand)

    @property
    def _is_claiming(self) -> bool:
        return not self._is_stopping and self._tasks_left != 0

    def _next_poll(self, due_in: float | None) -> float:
        """When to look again: soon after a wake-up, when the next task is due, at last after the poll interval."""
        pause = self.options.poll_seconds * random.uniform(0.9, 1.1)
        if self._hand.is_busy and not self._ears.hears:
            pause = min(pause, COMMAND_SECONDS)
        if due_in is not None:
            pause = min(pause, due_in + 0.001)
        if self._looks_ahead:
            pause = min(pause, wakeup.LOOK_AGAIN_SECONDS[-self._looks_ahead])
            self._looks_ahead -= 1
        return monotonic() + pause

    def _settle(self) -> None:
        self._settler.settle(self._session.execute, at_once=self._is_stopping)

    # ------------------------------------------------------------------------------------------------- what else is due

    def _renew(self) -> None:
        self._leases.renew(self._session.execute)

    def _tell_memory(self) -> None:
        self.presence.tell_memory(self._session.execute, self._hand.children)

    def _report(self) -> None:
        if self._reports and (self._reports.is_urgent or monotonic() >= self._report_at):
            self._report_at = monotonic() + 0.5
            self._reports.write(self._session.execute)

    def _answer(self) -> None:
        self._orders.answer(self._session.execute)

    def _check(self) -> None:
        """Look after running functions."""
        now = monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        self._hand.check(now)
        if self._hand.abandoned > self.options.max_abandoned:
            self.fail(f"{self._hand.abandoned} overdue functions could not be stopped")
        if self._burst and not self._session.is_open and now > self._contact.seen_at + BURST_PATIENCE_SECONDS:
            self.fail("the database is away or not migrated, and a burst does not wait for it")
        if self._hand.is_stuck:
            self.fail("an overdue function blocks the event loop")

    # ------------------------------------------------------------------------------------------------- being connected

    def _on_back(self) -> None:
        """Before anything else the leases are renewed, even those that ran out."""
        self._leases.renew_all(self._session.execute)
        self._hand.resume()
        self._lanes.forget()
        self._claim_at = 0.0
        self._strays_at = [monotonic(), monotonic() + self._session.deadline_seconds]

    def _on_disconnected(self, error: Disconnected) -> None:
        """Start nothing new, tell functions, and keep what ends until the database is back."""
        if error.is_shortage:
            for service in self.services:
                service.on_shortage()
        self._ears.close()  # its socket, at its end, would wake us all the time
        self._hand.suspend()
        self._contact.lost(error)

    def _hand_back_strays(self) -> None:
        """When the database is back, and again when a claim that was still waiting there must have ended."""
        if self._strays_at and monotonic() >= self._strays_at[0]:
            self._strays_at[0] = monotonic() + BUSY_SECONDS
            self._settler.hand_back_strays(self._session.execute)
            self._strays_at.pop(0)

    def _tick_services(self) -> None:
        for service in self.services:
            if service.due_at <= monotonic():
                service.due_at = monotonic() + BUSY_SECONDS
                service.tick(self._session.execute)

    def glance(self) -> Glance:
        """How it stands, for the metrics; from any thread."""
        return Glance(
            totals=self._recorder.totals(),
            load=self._hand.load(),
            silent_seconds=max(monotonic() - self.pulse.turned_at, 0.0),
            has_database=self._session.is_open,
            is_draining=self._is_stopping,
        )

    def rescued(self, rescued: list[Rescued]) -> None:
        """What the reaper of this process took back."""
        for task in rescued:
            what = "dead" if task.state is State.DEAD else "lost"
            self._recorder.add(stats.Event(self.wanted.backend, task.queue, task.function, what))
            meter.RESCUED.add(self.wanted.backend, task.queue)
        self._hand.tell(*news.of_rescued(type(self.backend), self.options.database, rescued))
        self._claim_at = 0.0

    def _write_stats(self) -> None:
        self._ledger.write(self._session.execute)

    # ------------------------------------------------------------------------------------------------- stopping

    def _follow_stop(self) -> None:
        if self._is_stopping and self._drain_ends is None:
            seconds = self.options.drain_seconds
            events.WORKER_DRAINS.tell(worker=self.presence.name, running=self._hand.running, seconds=seconds)
            self._drain_ends = monotonic() + seconds
            self._hand.drain()
        if self._drain_ends is not None and self._hand.is_busy and self._drain_is_over:
            events.WORKER_RELEASES.tell(worker=self.presence.name, running=self._hand.running)
            self._hand.release()

    def _tell_draining(self) -> None:
        if self._drain_ends is not None and not self._told_draining:
            self._told_draining = True
            self.presence.draining(self._session.execute)

    @property
    def _drain_is_over(self) -> bool:
        return self._signals > 1 or (self._drain_ends is not None and monotonic() >= self._drain_ends)

    def _is_done(self) -> bool:
        if self._hand.is_busy or self._hand.has_news:
            return False
        if self._is_stopping:
            gives_up = self._drain_ends is not None and monotonic() > self._drain_ends + FAREWELL_SECONDS
            return self._drain_ends is not None and (not self._hand.endings or gives_up)
        is_idle = not self._hand.endings and self._contact.is_registered
        return is_idle and (self._tasks_left == 0 or self._burst_is_over())

    def _burst_is_over(self) -> bool:
        is_empty = self._hand.demand(self._tasks_left).kinds <= self._lanes.found_none_of
        return self._burst and self._session.is_open and self._hand.is_ready and is_empty and not self._looks_ahead

    def _leave(self) -> None:
        """Release what is left, say so to the database as far as it answers, and close everything."""
        self._session.hurry()
        self._hand.release()
        try:
            self._last_words()
        except (Disconnected, Busy, psycopg.Error, UnicodeError) as error:
            events.LEAVE_FAILED.tell(worker=self.presence.name, reason=error)
        if self._hand.endings:
            events.OUTCOMES_UNWRITTEN.tell(worker=self.presence.name, count=len(self._hand.endings))
            self.exit_code = 1
        self._ledger.sum_up()
        self._hand.close()
        self._clerk.close(self._session.deadline_seconds)
        self._ears.close()
        self._session.close()

    def _last_words(self) -> None:
        if not self._contact.is_registered:
            return
        self._session.open()
        self._hand.gather()
        ends = monotonic() + FAREWELL_SECONDS
        while self._hand.endings and monotonic() < ends:
            with suppress(Busy):
                self._settle()
            with suppress(Busy, Disconnected):  # of the clerk, whose session is another one
                self._settler.take_in()
            until = min(self._settler.due_at(at_once=True), ends)
            self._alarm.wait(until - monotonic(), None, lambda: not self._hand.endings or self._settler.has_news)
        self._recorder.flush(self._session.execute)
        self.presence.stopped(self._session.execute)
