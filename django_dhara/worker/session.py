"""A worker's own session with PostgreSQL: never shared with functions, and never waited for without end.

It is built from Django's connection parameters, so custom engines work, but it is a psycopg connection: in autocommit,
with prepared statements, and with a deadline on this side for every statement, because a network that went silent
never answers and no timeout of the server's would reach us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.datetime import TimestamptzLoader

from django_dhara import meter

#: Deadlock, serialization failure, lock timeout, statement timeout: the statement did nothing, and may be tried again.
TRY_AGAIN = frozenset({"40P01", "40001", "55P03", "57014"})
#: A prepared statement is unknown, or known already: a pooler gave us another server session. Go on without them.
NOT_PREPARED = frozenset({"26000", "42P05"})
#: A server that only reads (a standby, or an old primary after a failover): look for the other one.
READ_ONLY = "25006"
#: The server gives a statement up after this share of its deadline here. One that waits for a lock is then known to
#: have done nothing, and none is left behind that would claim tasks for nobody once it gets its lock.
SERVER_SHARE = 0.8

_WHICH_SESSION = "/* dhara:pooler */ SELECT pg_backend_pid()"
#: How often it is asked whether a pooler shares sessions.
POOLER_LOOKS = 10


class Disconnected(Exception):
    """The statement failed because the server is out of reach; whether it was carried out is not known."""

    @property
    def is_shortage(self) -> bool:
        """Did the server say that it is short of disk, memory or connections?"""
        return (getattr(self.__cause__, "sqlstate", None) or "").startswith("53")


#: Pause after a statement that was refused for a passing reason.
BUSY_SECONDS = 0.1


class Busy(Exception):
    """The statement was refused for a passing reason and did nothing."""


class Session:
    """One connection that is opened again when it is needed.

    Args:
        alias: in DATABASES.
        name: what `pg_stat_activity` shows as its application_name.
        deadline_seconds: for one statement.
        dsn: a connection string to use instead of the alias' parameters.
    """

    def __init__(self, alias: str, name: str, *, deadline_seconds: float, dsn: str = "") -> None:
        self.alias = alias
        self.name = name
        self.deadline_seconds = deadline_seconds
        self.dsn = dsn
        #: Prepared statements; off behind a pooler, which may give each transaction another server session.
        self.prepares = True
        #: Is there a pooler in between? Then nothing of the server's session is ours, to alter or to rely on.
        self.is_pooled = False
        self._connection: _Connection | None = None
        #: What it is for, for the metrics: the second word of names such as "dhara worker 0198...".
        self._what = (*name.split(), "")[1]

    def hurry(self) -> None:
        """The worker is to stop: no statement, the one under way included, gets more than 2 seconds from its start."""
        self.deadline_seconds = min(self.deadline_seconds, 2.0)

    def is_overdue(self, since: float) -> bool:
        """Has a statement that was sent at `since` taken too long?"""
        return monotonic() - since > self.deadline_seconds

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def raw(self) -> psycopg.Connection[Any]:
        """The psycopg connection; open it first."""
        if self._connection is None:
            raise Disconnected(f"{self.name} has no connection")
        return self._connection

    def open(self) -> None:
        """Connect, if that is not done yet, to a server that can write.

        Raises:
            Disconnected: with psycopg's message.
        """
        if self._connection is not None:
            return
        try:
            connection = _connect(self)
        except Disconnected:
            meter.DATABASE_ERRORS.add(self._what, "connect")
            raise
        try:
            _prepare(connection)
        except (psycopg.Error, OSError) as error:
            connection.close()
            meter.DATABASE_ERRORS.add(self._what, "connect")
            raise Disconnected(_one_line(error)) from error
        self._connection = connection
        meter.CONNECTS.add(self._what)

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Sequence[tuple[Any, ...]]:
        """Run one statement, which is a transaction of its own, and return its rows.

        Raises:
            Disconnected: the connection is gone, and closed on this side too.
            Busy: try again.
            psycopg.Error: anything else, such as data that the server refuses.
        """
        try:
            cursor = self.raw.execute(statement, parameters, prepare=None if self.prepares else False)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if error.sqlstate in NOT_PREPARED:
                self.prepares = False
            if error.sqlstate in TRY_AGAIN | NOT_PREPARED:
                meter.DATABASE_ERRORS.add(self._what, "busy")
                raise Busy(_one_line(error)) from error
            if self.raw.closed or _is_server_side(error):  # an overdue statement counts as one, too
                meter.DATABASE_ERRORS.add(self._what, "lost")
                self.close()
                raise Disconnected(_one_line(error)) from error
            meter.DATABASE_ERRORS.add(self._what, "refused")
            raise

    def shares_sessions(self, other: Session) -> bool:
        """Does a pooler give a session of the server to us and to others by turns, a transaction each?

        Asked without LISTEN or SET, which would stay behind in a session that is not ours. A pooler gives the session
        that was used last, which `other` has used, or another one each time.
        """
        if not self.is_pooled:
            return False
        ours, theirs = set(), set()
        for _ in range(POOLER_LOOKS):
            ours |= set(self.execute(_WHICH_SESSION))
            theirs |= set(other.execute(_WHICH_SESSION))
        return len(ours) > 1 or bool(ours & theirs)

    def close(self) -> None:
        """Forget the connection; nothing is sent that could wait."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Overdue(psycopg.OperationalError):
    """A statement took longer than its deadline."""


class _Connection(psycopg.Connection[Any]):
    session: Session

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_limited(self.session, gen), *args, **kwargs)


def _limited(session: Session, gen: Any) -> Any:
    """psycopg's generator, ended when time is up; psycopg resumes it every 0.1 s while nothing arrives."""
    since = monotonic()
    try:
        ready = yield next(gen)
        while True:
            if not ready and session.is_overdue(since):
                raise _Overdue(f"no answer within {session.deadline_seconds:g} s")
            ready = yield gen.send(ready)
    except StopIteration as end:
        return end.value


def _connect(session: Session) -> _Connection:
    try:
        # Of a custom engine's making: it may ask a service for a password, and be told that it is away.
        parameters: dict[str, Any] = connections[session.alias].get_connection_params()
    except ImproperlyConfigured:
        raise
    except Exception as error:  # whatever that service's client raises
        raise Disconnected(_one_line(error)) from error
    parameters |= {"cursor_factory": psycopg.Cursor, "prepare_threshold": 5, "application_name": session.name}
    if session.dsn:
        parameters = {"conninfo": session.dsn, "application_name": session.name, "context": parameters["context"]}
    try:
        given = conninfo_to_dict(session.dsn) if session.dsn else parameters
        parameters |= _in_time(given, session.deadline_seconds)
        connection = _Connection.connect(autocommit=True, **parameters)
    except (psycopg.Error, OSError) as error:
        raise Disconnected(_one_line(error)) from error
    connection.session = session
    # Django's own loader, which is Python, would take most of the time of a claim; see `results.in_django_time`.
    connection.adapters.register_loader("timestamptz", TimestamptzLoader)
    return connection


def _in_time(given: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What is to be added to the connection parameters `given`: that all hosts are tried within about `seconds`, and at
    least 2 each, and that of several hosts the one that can write is taken."""
    hosts = str(given.get("host") or given.get("hostaddr") or "").count(",") + 1
    most, own = max(2, int(seconds / hosts)), str(given.get("connect_timeout") or 0)
    added: dict[str, Any] = {}
    if own.isdecimal():  # else psycopg says what is wrong with it
        added["connect_timeout"] = min(int(own) or most, most)
    if hosts > 1 and not given.get("target_session_attrs"):
        added["target_session_attrs"] = "read-write"
    return added


def _prepare(connection: _Connection) -> None:
    """See that this is a server that can write, and set the session up."""
    session = connection.session
    if role := connections[session.alias].settings_dict.get("OPTIONS", {}).get("assume_role"):
        connection.execute(psycopg.sql.SQL("SET ROLE {}").format(psycopg.sql.Identifier(role)))
    [(recovering, isolation, pid)] = connection.execute(
        "SELECT pg_is_in_recovery(), current_setting('default_transaction_isolation'), pg_backend_pid()"
    ).fetchall()
    if recovering:
        raise psycopg.OperationalError("the server is a standby and only reads")
    session.is_pooled = pid != connection.info.backend_pid  # a pooler tells a number of its own making
    if session.is_pooled:
        # It would hand our settings on to others. Above READ COMMITTED more statements come to be tried again.
        session.prepares = False
        return
    if isolation != "read committed":
        connection.execute("SET default_transaction_isolation = 'read committed'")
    limit = str(max(int(session.deadline_seconds * SERVER_SHARE * 1000), 1))
    # Our statements have one right plan, whatever their values; to plan a claim anew takes as long as to claim 50.
    connection.execute(
        "SELECT set_config('statement_timeout', %s, false), "
        "set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false)",
        [limit],
    )


def _is_server_side(error: psycopg.Error) -> bool:
    """Is the server the trouble, not the statement (57P: shutdown, 53: resources, 08: connection, or it only reads)?

    Without a code an error was made on this side: an operational one by a lost connection, any other by our data.
    """
    if error.sqlstate is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate[:3] == "57P" or error.sqlstate[:2] in ("08", "53") or error.sqlstate == READ_ONLY


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
