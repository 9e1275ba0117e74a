"""Things that tick: the reaper and the pruner. A worker ticks them between claims; `dhara_reaper` ticks one alone.

Any number of them may tick side by side: each statement locks what it takes and skips what another has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Protocol

import psycopg

from django_dhara import events, lifecycle, stats
from django_dhara.conf import Options
from django_dhara.lifecycle import Rescued
from django_dhara.sql import Execute
from django_dhara.states import State
from django_dhara.worker.alarm import Alarm
from django_dhara.worker.session import Busy, Disconnected, Session


class Service(Protocol):
    """Something that wants to be called again and again."""

    #: When to tick next, by the monotonic clock.
    due_at: float

    def tick(self, execute: Execute) -> None:
        """Do a little, and set `due_at`. What the database raises is for the caller."""

    def on_shortage(self) -> None:
        """The server refused a statement of this process because it is short of something: disk, memory, connections;
        so it may do to all others."""


class Reaper:
    """Takes back the tasks of runs whose lease ran out.

    An outage is not a death. When this process could not see the database for a while, other workers could not either:
    the reaper gives them one lease to come back and renew before it takes anything. The same holds after a restart of
    the server, which the statement itself looks at.

    A network that went silent may deliver a statement when it is over, and everybody else has yet to renew. So each
    rescue says until when it is good for: no longer after the last contact than a gap may be.

    A full disk is an outage in which reads go on, and some of the writes. So for one lease after a shortage the reaper
    renews what it finds instead of taking it, whose-ever it is: as soon as it can write, the others have time to.
    """

    def __init__(
        self, alias: str, backend: str, options: Options, told: Callable[[list[Rescued]], None] = lambda _: None
    ) -> None:
        self.due_at = 0.0
        self._alias, self._backend, self._options, self._told = alias, backend, options, told
        #: From its birth on: a reaper that could not reach the database at once was cut off like everybody else.
        self._last_contact = monotonic()
        self._grace_ends = self._sweep_at = 0.0
        #: By the database's clock, in seconds since 1970.
        self._good_until = 0.0
        #: Until a whole pass that begins after it; 0: nothing is spared.
        self._spares_until = 0.0
        #: Leases are renewed when half of them is left, so who comes back after a third of one, and some seconds to
        #: connect, comes in time. Contact is sought twice as often as that, however rare the sweeps are.
        self._longest_gap = options.lease_seconds / 3

    def tick(self, execute: Execute) -> None:
        """Rescue until nothing abandoned is left, unless the grace of an outage lasts."""
        self._meet_database(execute)
        now = monotonic()
        if now >= max(self._sweep_at, self._grace_ends):
            self._sweep_at = now + self._options.sweep_seconds
            if self._spares_until:
                self._spare(execute)
            else:
                self._sweep(execute)
        self.due_at = monotonic() + min(self._options.sweep_seconds, self._longest_gap / 2)

    def _meet_database(self, execute: Execute) -> None:
        gap = monotonic() - self._last_contact
        [[now]] = execute("/* dhara:reaper */ SELECT extract(epoch FROM statement_timestamp())::float8", {})
        self._good_until = now + self._longest_gap
        if gap > self._longest_gap:
            self._grace_ends = monotonic() + self._options.lease_seconds
        self._last_contact = monotonic()

    def on_shortage(self) -> None:
        self._spares_until = monotonic() + self._options.lease_seconds

    def _spare(self, execute: Execute) -> None:
        began = monotonic()
        while lifecycle.spare(execute, self._alias, self._backend, lease_seconds=self._options.lease_seconds):
            self._last_contact = monotonic()
        if began >= self._spares_until:
            self._spares_until = 0.0

    def _sweep(self, execute: Execute) -> None:
        while True:
            rescued = lifecycle.rescue(
                execute,
                self._alias,
                self._backend,
                max_lost=self._options.max_lost,
                grace_seconds=self._options.lease_seconds,
                until=self._good_until,
            )
            self._last_contact = monotonic()
            if not rescued:
                return
            self._told(rescued)


class Pruner:
    """Deletes finished tasks and bulk changes after their time and records of workers that nobody needs any more, and
    rolls statistics up, in batches that are over in milliseconds."""

    #: Rows deleted by one statement.
    BATCH = 1000

    def __init__(self, alias: str, backend: str, options: Options) -> None:
        self.due_at = monotonic() + options.prune_seconds
        self._turns: list[Callable[[Execute], int]] = [
            partial(prune, alias=alias, backend=backend, options=options, state=state, seconds=seconds)
            for state, seconds in retention(options)
        ]
        self._turns += [stats.roll_up, prune_records, partial(prune_bulk_changes, options=options)]
        self._pause = options.prune_seconds / len(self._turns)

    def tick(self, execute: Execute) -> None:
        """One batch; the next follows soon while there is more."""
        if self._turns[0](execute) < self.BATCH:
            self._turns.append(self._turns.pop(0))
            self.due_at = monotonic() + self._pause
        else:
            self.due_at = monotonic() + 0.05

    def on_shortage(self) -> None:
        """It waits until there is room again, as all do."""


def serve(services: list[Service], options: Options, name: str) -> int:
    """Tick the services on a session of their own until SIGTERM or SIGINT; for a process without a worker.

    Returns:
        The exit code.
    """
    session = Session(options.database, name, deadline_seconds=options.deadline_seconds)
    alarm, stops = Alarm(), [False]

    def stop() -> None:
        stops[0] = True
        session.hurry()

    with alarm.on_signals(stop):
        while not stops[0]:
            for service in services:
                _tick(service, session)
            alarm.wait(min(s.due_at for s in services) - monotonic(), None, lambda: stops[0])
    session.close()
    return 0


def _tick(service: Service, session: Session) -> None:
    if service.due_at > monotonic():
        return
    service.due_at = monotonic() + 1.0
    try:
        session.open()
        service.tick(session.execute)
    except (Disconnected, Busy, psycopg.Error) as error:
        if isinstance(error, Disconnected) and error.is_shortage:
            service.on_shortage()
        events.SERVICE_WAITS.murmur(type(error).__name__, service=session.name, reason=error)


def retention(options: Options) -> Iterable[tuple[State, float]]:
    """How long tasks stay after they ended, in seconds by state."""
    yield State.COMPLETED, options.retain_completed_seconds
    yield State.CANCELED, options.retain_canceled_seconds
    yield State.DEAD, options.retain_dead_seconds


def prune(execute: Execute, *, alias: str, backend: str, options: Options, state: State, seconds: float) -> int:
    """Delete one batch; returns how many tasks."""
    return lifecycle.prune(
        execute,
        alias,
        backend,
        state,
        older_than=seconds,
        keyed_older_than=options.retain_keyed_seconds,
        limit=Pruner.BATCH,
    )


#: Days that minutes stay which nobody has rolled up (the longest range shown is a week), and answered commands.
STATISTICS_DAYS, COMMANDS_DAYS = 8, 7
#: Days that workers stay which have stopped or are lost, and commands that nobody answers: who comes back after longer
#: makes its row anew, and must not drain for what was asked of it days ago.
GONE_DAYS = 1

_PRUNE_RECORDS = f"""/* dhara:prune_records */
WITH minute AS (
    DELETE FROM dhara_minute WHERE id = ANY (ARRAY(
        SELECT id FROM dhara_minute WHERE minute < statement_timestamp() - interval '{STATISTICS_DAYS} days'
        ORDER BY minute LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING 1
),
worker AS (
    DELETE FROM dhara_worker WHERE id = ANY (ARRAY(
        SELECT id FROM dhara_worker WHERE heartbeat_at < statement_timestamp() - interval '{GONE_DAYS} days'
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING 1
),
command AS (
    DELETE FROM dhara_command WHERE id = ANY (ARRAY(
        SELECT id FROM dhara_command
        WHERE created_at < statement_timestamp() - interval '{COMMANDS_DAYS} days'
              OR (answered_at IS NULL AND created_at < statement_timestamp() - interval '{GONE_DAYS} days')
        ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT greatest((SELECT count(*) FROM minute), (SELECT count(*) FROM worker), (SELECT count(*) FROM command))
"""


def prune_records(execute: Execute) -> int:
    """Delete one batch of each kind of old record; returns the largest count."""
    [[count]] = execute(_PRUNE_RECORDS, {"limit": Pruner.BATCH})
    return int(count)


_HAS_BULK_CHANGES = "/* dhara:has_bulk_changes */ SELECT to_regclass('dhara_bulk_change') IS NOT NULL"
_PRUNE_BULK_CHANGES = """/* dhara:prune_bulk_changes */
WITH gone AS (
    DELETE FROM dhara_bulk_change WHERE id = ANY (ARRAY(
        SELECT id FROM dhara_bulk_change WHERE changed_at < statement_timestamp() - make_interval(secs => %(seconds)s)
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone
"""


def prune_bulk_changes(execute: Execute, *, options: Options) -> int:
    """Delete one batch of bulk changes; returns how many.

    They stay, ended or not, as long after their last step as the finished tasks do that stay longest. Nothing is done
    where migration 0003, which makes their table, is not applied yet.
    """
    [[is_there]] = execute(_HAS_BULK_CHANGES, {})
    if not is_there:
        return 0
    longest = max(seconds for _state, seconds in retention(options))
    [[count]] = execute(_PRUNE_BULK_CHANGES, {"seconds": longest, "limit": Pruner.BATCH})
    return int(count)
