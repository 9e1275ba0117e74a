"""Between two runs on one thread, Django's connections are as between two requests: nothing of one run leaks on.

Django's own `close_old_connections()` leaves an open transaction, autocommit switched off, a `SET search_path` and a
dead socket for the next run to find. Language, time zone and context variables need no care here: each run has a
context of its own (see `executors.py`).
"""

from __future__ import annotations

import logging
import re
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

logger = logging.getLogger("django_dhara.worker")

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
    if _notice not in connection.execute_wrappers:
        connection.execute_wrappers.append(_notice)


def _notice(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    # One that psycopg composes, as for the name of a tenant's schema, says nothing sensible by str().
    text = sql if isinstance(sql, str) else sql.as_string(None) if isinstance(sql, Composable) else str(sql)
    if _ALTERS_SESSION.search(text):
        context["connection"].dhara_altered = True
    return execute(sql, params, many, context)


def before_run() -> None:
    """Drop connections of this thread that died while they were idle, so that the first query does not find out."""
    if _watching and not _threads.connected:
        return
    for connection in connections.all(initialized_only=True):
        with _forgiven(connection):
            if connection.connection is not None and _is_dead(connection.connection):
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
                logger.warning(
                    "%s left %s on connection %r: it was rolled back and closed", function, left, connection.alias
                )
                _drop(connection)
            elif getattr(connection, "dhara_altered", False):
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
    except Exception:
        logger.exception("Connection %r could not be closed and is forgotten", connection.alias)
        connection.connection = None


def _leftover(connection: BaseDatabaseWrapper) -> str:
    if connection.in_atomic_block:
        return "an open atomic block"
    raw = connection.connection
    if raw is None or raw.closed:
        return ""
    if raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        return "an open transaction"
    return "" if connection.get_autocommit() == connection.settings_dict["AUTOCOMMIT"] else "autocommit switched off"


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close for good, whatever state Django believes the connection to be in; a pool gets it back closed."""
    connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.run_on_commit.clear()
    raw = connection.connection
    if raw is not None and not raw.closed:
        raw.close()
    connection.close()
    connection.connection = None
    connection.dhara_altered = False  # type: ignore[attr-defined]


def _is_dead(raw: Any) -> bool:
    """A server says nothing to an idle session but farewell: a readable socket means that it is gone."""
    if raw.closed:
        return True
    try:
        ready, _, _ = select.select([raw.fileno()], [], [], 0)
    except (OSError, ValueError, PsycopgError):
        return True
    return bool(ready)
