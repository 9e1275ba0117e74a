"""Being in contact with the database: connecting with pauses that grow, and coming back as somebody it knows."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

import psycopg

from django_dhara import events
from django_dhara.conf import Options
from django_dhara.worker import presence
from django_dhara.worker.session import Busy, Disconnected, Session

#: Between two tries to connect; the pause is doubled each time, from a tenth of a second to the second number.
CONNECT_SECONDS, RECONNECT_SECONDS = 0.05, 3.0


class Contact:
    """That of a worker.

    Args:
        session: that of the control loop.
        worker: its row is written at every return.
        on_back: called then, when all can be asked of the database; the first thing is to renew the leases.
    """

    def __init__(
        self, session: Session, worker: presence.Presence, options: Options, on_back: Callable[[], None]
    ) -> None:
        self._session, self._worker, self._options, self._on_back = session, worker, options, on_back
        #: When to try again, by the monotonic clock, and when there was contact last.
        self.due_at, self.seen_at = 0.0, monotonic()
        self._pause = CONNECT_SECONDS
        #: Has the worker a row? Before that there was no contact yet.
        self.is_registered = False
        self._told_away = self._told_migrations = False

    def is_there(self) -> bool:
        """Is there contact? Connects if it is time to try.

        Raises:
            Disconnected: there is none, or not the whole of it.
        """
        if self._session.is_open:
            self.seen_at = monotonic()
            return True
        if monotonic() < self.due_at:
            return False
        # Never so long that the reapers' grace, one lease, is over before we are back.
        self._pause = min(self._pause * 2, RECONNECT_SECONDS, self._options.lease_seconds / 4)
        self.due_at = monotonic() + self._pause * random.uniform(0.5, 1.0)
        self._session.open()
        try:
            return self._is_back()
        except (Busy, psycopg.Error) as error:
            # Not half of it: without renewed leases, or without a row, we are not back. Another try does all again.
            raise Disconnected(" ".join(str(error).split())) from error

    def _is_back(self) -> bool:
        if not self.is_registered and not self._is_migrated():
            return False
        self._worker.register(self._session.execute)
        self._on_back()
        if self._told_away:
            events.DATABASE_BACK.tell(worker=self._worker.name)
        self.is_registered, self._told_away, self._pause = True, False, CONNECT_SECONDS
        return True

    def _is_migrated(self) -> bool:
        missing = presence.missing_migrations(self._session.execute)
        if missing:
            self._session.close()
            if not self._told_migrations:
                events.MIGRATIONS_MISSING.tell(worker=self._worker.name, migrations=", ".join(missing))
            self._told_migrations = True
        return not missing

    def lost(self, error: Disconnected) -> None:
        """Every try that fails is one more of these: who reads the log learns that the outage lasts, not of each."""
        self._session.close()
        event = events.DATABASE_LOST if self.is_registered else events.DATABASE_AWAY
        if event.murmur("", worker=self._worker.name, reason=error):
            self._told_away = True
