"""Wake-ups: NOTIFY after a commit, LISTEN in the worker. A hint only; polling is what finds every task.

NOTIFY is never sent inside the caller's transaction: there it would take a lock of the whole database at commit, and
hold it over the flush. It goes out after the commit, on the same connection, and at most once in 10 ms for a queue:
a worker that was woken looks again after 10, 20 and 50 ms, which finds what came in between.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from django.db import connections

if TYPE_CHECKING:
    import psycopg

    from django_dhara.worker.session import Session

#: Seconds in which a process sends one notification for a queue.
QUIET_SECONDS = 0.010
#: When a worker looks again after it was woken, in seconds.
LOOK_AGAIN_SECONDS = (0.010, 0.020, 0.050)
#: A token that does not come back within so many seconds means that LISTEN hears nothing here.
SELF_TEST_SECONDS = 2.0

_NOTIFY = "SELECT pg_notify(%s, queue) FROM unnest(%s::text[]) AS queue"
_TOKEN_MARK = "\x01"

_sent: dict[tuple[str, str], float] = {}


def channel(alias: str) -> str:
    """The channel of a backend; PostgreSQL cuts names above 63 bytes, so a long alias is hashed."""
    name = f"dhara_{alias}"
    return name if len(name.encode()) <= 63 else f"dhara_{hashlib.blake2b(alias.encode(), digest_size=16).hexdigest()}"


def send(database: str, alias: str, queues: Iterable[str]) -> None:
    """Wake the workers of these queues of the backend `alias`, on the caller's connection, which has just committed."""
    now = monotonic()
    due = [queue for queue in queues if now - _sent.get((alias, queue), -1.0) >= QUIET_SECONDS]
    if not due:
        return
    if len(_sent) > 10_000:
        _sent.clear()
    _sent.update({(alias, queue): now for queue in due})
    with connections[database].cursor() as cursor:
        cursor.execute(_NOTIFY, [channel(alias), due])


class Listener:
    """A session that listens, and knows whether it hears anything.

    Behind a pooler in transaction mode LISTEN succeeds and nothing ever arrives; whatever else stands in between may do
    the same. So a token is sent from another session after each LISTEN; while it has not come back, `hears` is None,
    and False once it is overdue.
    """

    def __init__(self, connection: psycopg.Connection, alias: str) -> None:
        self.connection = connection
        self.hears: bool | None = None
        self._channel = channel(alias)
        self._token = _TOKEN_MARK + secrets.token_hex(8)
        self._overdue = monotonic() + SELF_TEST_SECONDS
        connection.execute(f'LISTEN "{self._channel.replace(chr(34), chr(34) * 2)}"')

    def test(self, other: Session) -> None:
        """Send the token from another session."""
        other.execute("SELECT pg_notify(%(channel)s, %(token)s)", {"channel": self._channel, "token": self._token})

    def heard(self) -> list[str]:
        """The queues that were announced since the last call; reads what is there and does not wait.

        Raises:
            psycopg.OperationalError: the session is gone.
        """
        pgconn = self.connection.pgconn
        pgconn.consume_input()
        queues = []
        while notification := pgconn.notifies():
            text = notification.extra.decode("utf-8", "replace")
            if text == self._token:
                self.hears = True
            elif not text.startswith(_TOKEN_MARK):
                queues.append(text)
        return queues

    def overdue(self) -> bool:
        """Has the token just become overdue? True once."""
        if self.hears is None and monotonic() > self._overdue:
            self.hears = False
            return True
        return False
