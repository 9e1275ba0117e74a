"""One `dhara_migrate` at a time: an advisory lock, held by the very session that migrates.

So the lock lasts exactly as long as the work. When the process is killed the server first ends the statement that it
is at, and then frees the lock; a lock on a session beside it would be free while, say, an index is still being built.
And when the session is lost the migration fails with it, instead of going on without the lock.

Who waits asks again and again (`pg_try_advisory_lock`). One that stood waiting in a statement would hold a snapshot for
which `CREATE INDEX CONCURRENTLY` waits: a deadlock.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

import psycopg
from django.core.management.base import CommandError
from django.db import Error, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.conninfo import conninfo_to_dict

#: The number of the lock, the same for every version of ours; "dhara_mg" in ASCII. It is of one database.
LOCK = int.from_bytes(b"dhara_mg", "big")
#: Between two tries for the lock.
PAUSE_SECONDS = 0.5
#: Exit code: another one had the lock all the time.
STILL_LOCKED = 3

_HOLDER = """/* dhara:migrating */
SELECT lock.pid, coalesce(session.application_name, ''), lock.pid = pg_backend_pid()
FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS session USING (pid)
WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND lock.classid::bigint << 32 | lock.objid::bigint = %s
"""
_POOLER = (
    "The way to DATABASES[{alias!r}] leads through a pooler (the server calls the session {there}, the pooler {here}), "
    "and the lock would stay behind in a session that serves others too. Give the address of the server itself by "
    "--dsn or DHARA_MIGRATE_DSN, such as 'host=db.internal port=5432'; the rest is as in DATABASES."
)
_LOST = (
    "The session that migrates DATABASES[{alias!r}] has lost its lock{reason}. Another dhara_migrate may have it now. "
    "Run this again: it goes on with what is not applied."
)


@contextmanager
def direct(connection: BaseDatabaseWrapper, dsn: str) -> Iterator[None]:
    """Django's connection, opened by the address `dsn`; what that leaves out is as in DATABASES.

    Raises:
        CommandError: the address cannot be read, or nobody answers there.
    """
    if dsn:
        _reopen_at(connection, dsn)
    try:
        _ensure(connection)
        yield
    finally:
        if dsn:
            del connection.get_connection_params
            _close(connection)


def _ensure(connection: BaseDatabaseWrapper) -> None:
    try:
        connection.ensure_connection()
    except OperationalError as error:
        raise CommandError(f"DATABASES[{connection.alias!r}] cannot be reached: {_one_line(error)}") from error


def _reopen_at(connection: Any, dsn: str) -> None:
    try:
        address = conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeEncodeError) as error:
        raise CommandError(f"--dsn cannot be read: {_one_line(error)}") from None
    _close(connection)
    parameters = connection.get_connection_params
    connection.get_connection_params = lambda: {**parameters(), **address}


def _close(connection: Any) -> None:
    connection.close()
    connection.close_pool()


class Lock:
    """The right to migrate a database."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    def take(self) -> bool:
        """Is it ours now?"""
        [[taken]] = self._ask("SELECT pg_try_advisory_lock(%s)")
        return bool(taken)

    def holder(self) -> str:
        """Who has it, in words; empty: nobody, any more."""
        return "".join(f"session {pid}, {name!r}" for pid, name, _ in self._ask(_HOLDER))

    def is_held(self) -> bool:
        """Has this session got it? Asked by what comes next, since a migration may have closed the connection."""
        try:
            return [ours for *_, ours in self._ask(_HOLDER)] == [True]
        except Error:
            return False

    def must_be_held(self, error: BaseException | None = None) -> None:
        """Stop if it is lost; `error` is what made somebody ask.

        Raises:
            CommandError: it is.
        """
        if not self.is_held():
            reason = f" ({_one_line(error)})" if error else ""
            raise CommandError(_LOST.format(alias=self._connection.alias, reason=reason)) from error

    def release(self) -> None:
        """Give it back, and the session as it was; the end of the session does that too."""
        with suppress(Error), self._connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
            cursor.execute("RESET application_name")

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, [LOCK])
            return list(cursor.fetchall())


@contextmanager
def alone(connection: BaseDatabaseWrapper, wait_seconds: float, tell: Callable[[str], None]) -> Iterator[Lock]:
    """Hold the lock, as soon as it is free.

    Args:
        wait_seconds: for somebody else to finish.
        tell: is called with a sentence when there is somebody else.

    Raises:
        CommandError: the connection cannot keep a lock, or the lock is still somebody else's.
    """
    _introduce(connection)
    lock = Lock(connection)
    _wait_for(lock, wait_seconds, tell)
    try:
        yield lock
    finally:
        lock.release()


def _introduce(connection: Any) -> None:
    """See that the session is ours alone, and give it a name for those who wait."""
    here = connection.connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [there] = cursor.fetchone()
        if there != here:  # a pooler makes its own numbers up
            raise CommandError(_POOLER.format(alias=connection.alias, there=there, here=here))
        name = f"dhara migrate {socket.gethostname()}:{os.getpid()}"
        cursor.execute("SELECT set_config('application_name', %s, false)", [name[:63]])


def _wait_for(lock: Lock, seconds: float, tell: Callable[[str], None]) -> None:
    until, told = monotonic() + seconds, False
    while not lock.take():
        who = lock.holder() or "which has just ended"
        left = until - monotonic()
        if left <= 0:
            raise CommandError(
                f"Another dhara_migrate is at work ({who}); waited {seconds:g} s for it.", returncode=STILL_LOCKED
            )
        if not told:
            tell(f"Another dhara_migrate is at work ({who}): waiting for up to {seconds:g} s.")
        told = True
        sleep(min(PAUSE_SECONDS, left))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
