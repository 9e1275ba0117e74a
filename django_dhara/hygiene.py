"""Between two runs on one thread, Django's connections are as between two requests: nothing of one run leaks on.

Django's own `close_old_connections()` leaves an open transaction, autocommit switched off, a `SET search_path` and a
dead socket for the next run to find. Language, time zone and context variables need no care here, but for the decimal
context: each run has a context of its own (see `executors.py`).
"""

from __future__ import annotations

import decimal
import re
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection as PsycopgConnection
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from django_dhara import events

#: Statements that change the session beyond the transaction. `SET LOCAL` does not. Several may stand in one text, each
#: after comments.
_ALTERS_SESSION = re.compile(
    r"(?:^|;)(?:\s|--[^\n]*\n|/\*.*?\*/)*"
    r"(?:set\s+(?!local\b)|reset\b|discard\b|listen\b|prepare\b|load\b|create\s+(?:local\s+)?temp)"
    r"|\bset_config\s*\(|\bpg_(?:try_)?advisory_lock(?:_shared)?\s*\(",
    re.IGNORECASE | re.DOTALL,
)


class _Threads(threading.local):
    """Of this thread: has it ever opened a connection? Most functions that never do should not pay for the question."""

    connected = False


_threads = _Threads()
_watching = False


def watch() -> None:
    """From now on notice statements that change a session. For worker processes; call it once."""
    global _watching
    connection_created.connect(_watch_connection, dispatch_uid="django_dhara.hygiene")
    _watching = True


def _watch_connection(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    _threads.connected = True
    connection.dhara_altered = False  # type: ignore[attr-defined]
    connection.dhara_fresh = _looks(connection)  # type: ignore[attr-defined]
    if _notice not in connection.execute_wrappers:
        connection.execute_wrappers.append(_notice)


def _notice(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    # One that psycopg composes, as for the name of a tenant's schema, says nothing sensible by str().
    text = sql if isinstance(sql, str) else sql.as_string(None) if isinstance(sql, Composable) else str(sql)
    if _ALTERS_SESSION.search(text):
        context["connection"].dhara_altered = True
    return execute(sql, params, many, context)


def fresh_numbers() -> None:
    """Give this context a decimal context of its own: a copied context shares the one that it was copied from, and the
    precision that one function sets would round the sums of the next."""
    decimal.setcontext(decimal.Context())


def before_run() -> None:
    """Drop connections of this thread that died while they were idle, so that the first query does not find out."""
    if _watching and not _threads.connected:
        return
    for connection in connections.all(initialized_only=True):
        with _forgiven(connection):
            if _is_dead(connection):
                _drop(connection)
            connection.close_if_unusable_or_obsolete()
    reset_queries()


def after_run(function: str) -> None:
    """Undo what the run of `function` left behind on this thread's connections, and say so where it is a mistake."""
    if _watching and not _threads.connected:
        return
    for connection in connections.all(initialized_only=True):
        with _forgiven(connection):
            left = _leftover(connection)
            if left:
                events.CONNECTION_LEFT.murmur(
                    (function, left, connection.alias), function=function, what=left, database=connection.alias
                )
                _drop(connection)
            elif _is_altered(connection):
                _drop(connection)
            connection.close_if_unusable_or_obsolete()


def close_all() -> None:
    """Close this thread's connections."""
    for connection in connections.all(initialized_only=True):
        with _forgiven(connection):
            _drop(connection)


@contextmanager
def _forgiven(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """A function can leave a connection in any state; one that does not let itself be closed is forgotten."""
    try:
        yield
    except Exception:  # noqa: BLE001  # closing is a function's, or a driver's, to spoil
        events.CONNECTION_STUCK.murmur(connection.alias, database=connection.alias, exc_info=True)
        connection.connection = None


def _leftover(connection: BaseDatabaseWrapper) -> str:
    if connection.in_atomic_block:
        return "an open atomic block"
    raw = _session(connection)
    if raw is not None and raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        return "an open transaction"
    if connection.connection is None or getattr(connection.connection, "closed", False) is True:
        return ""
    return "" if connection.get_autocommit() == connection.settings_dict["AUTOCOMMIT"] else "autocommit switched off"


def _is_altered(connection: BaseDatabaseWrapper) -> bool:
    if _session(connection) is None or not hasattr(connection, "dhara_fresh"):
        return False
    return bool(connection.dhara_altered or _looks(connection) != connection.dhara_fresh)  # type: ignore[attr-defined]


#: What a server tells of a session by itself, whoever changed it; search_path since PostgreSQL 18.
_REPORTED = (
    b"search_path", b"TimeZone", b"DateStyle", b"IntervalStyle", b"client_encoding", b"application_name",
    b"default_transaction_read_only", b"standard_conforming_strings", b"session_authorization", b"is_superuser",
)  # fmt: skip


def _looks(connection: BaseDatabaseWrapper) -> tuple[Any, ...]:
    """What can be seen of a session and of psycopg's connection without asking the server."""
    raw = _session(connection)
    if raw is None:
        return ()
    own = (raw.isolation_level, raw.read_only, raw.deferrable, raw.row_factory, raw.cursor_factory)
    return (*own, *map(raw.pgconn.parameter_status, _REPORTED))


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close for good, whatever state Django believes the connection to be in; a pool gets it back closed."""
    connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.run_on_commit.clear()
    raw = _session(connection)
    if raw is not None:
        raw.close()
    connection.close()
    connection.connection = None


def _session(connection: BaseDatabaseWrapper) -> Any:
    """The psycopg connection behind it, if it is open; None, too, for a database of another make."""
    raw = connection.connection
    return raw if isinstance(raw, PsycopgConnection) and not raw.closed else None


def _is_dead(connection: BaseDatabaseWrapper) -> bool:
    """A server says nothing to an idle session but farewell: a readable socket means that it is gone."""
    raw = _session(connection)
    if raw is None:
        return isinstance(connection.connection, PsycopgConnection)
    try:
        ready, _, _ = select.select([raw.fileno()], [], [], 0)
    except (OSError, ValueError, PsycopgError):
        return True
    return bool(ready)
