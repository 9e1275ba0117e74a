"""A worker's listening session: opened when it can be, tested, and done without when it hears nothing."""

from __future__ import annotations

import random
from time import monotonic

import psycopg

from django_dhara import events
from django_dhara.conf import Options
from django_dhara.wakeup import Listener
from django_dhara.worker.session import Busy, Disconnected, Session

#: Pause before a lost listening session is opened again, in seconds; doubled while that fails, up to the second number.
AGAIN_SECONDS, LONGEST_SECONDS = 1.0, 15.0
#: The control loop waits for a statement of this session no longer: it can do without.
DEADLINE_SECONDS = 2.0


class Ears:
    """Hears which queues got something new.

    Args:
        options: NOTIFY off means that there is nothing to hear; LISTEN_DSN is a way past a pooler.
    """

    def __init__(self, options: Options, alias: str, name: str) -> None:
        self._alias = alias
        self._session = Session(
            options.database,
            f"dhara listen {name}"[:21],
            deadline_seconds=min(options.deadline_seconds, DEADLINE_SECONDS),
            dsn=options.listen_dsn,
        )
        self._listener: Listener | None = None
        self.open_at = 0.0 if options.notify else float("inf")
        self._pause = AGAIN_SECONDS

    @property
    def socket(self) -> int | None:
        """What to select on."""
        return self._listener.connection.fileno() if self._listener else None

    @property
    def hears(self) -> bool | None:
        """True: a wake-up came through. False: none does, here. None: not known."""
        return self._listener.hears if self._listener else None

    def open(self, other: Session) -> bool:
        """Listen, if it is time to try; True if that is new. Whatever came before is only found by looking."""
        if self._listener is not None or monotonic() < self.open_at:
            return False
        self.open_at = monotonic() + self._pause * random.uniform(0.5, 1.5)
        self._pause = min(self._pause * 2, LONGEST_SECONDS)
        try:
            self._listen(other)
        except (Disconnected, Busy, psycopg.Error) as error:
            events.LISTEN_WAITS.murmur("", reason=error)
            self.close()
        return self._listener is not None

    def _listen(self, other: Session) -> None:
        self._session.open()
        if self._session.shares_sessions(other):
            self._give_up()
            return
        self._listener = Listener(self._session.raw, self._alias)
        self._listener.test(other)
        self._pause = AGAIN_SECONDS

    def heard(self) -> list[str]:
        """The queues that were announced since the last call."""
        if self._listener is None:
            return []
        try:
            queues = self._listener.heard()
        except psycopg.Error as error:
            events.LISTEN_LOST.murmur("", reason=error)
            self.close()
            return []
        if self._listener.overdue():
            self._give_up()
        return queues

    def hurry(self) -> None:
        """The worker is to stop."""
        self._session.hurry()

    def _give_up(self) -> None:
        events.LISTEN_DEAF.tell()
        self.close()
        self.open_at = float("inf")

    def close(self) -> None:
        self._listener = None
        self._session.close()
