"""What keeps the transaction of a test intact while a function runs in it, and lets the function believe in autocommit.

A worker calls functions in autocommit mode: what a function wrote before it failed stays, and `on_commit` callbacks are
called when its outermost `atomic()` block ends. So a savepoint stands before each function, and is gone back to only
where the function broke the transaction: by a failed query, or by an `atomic()` block that it never left. And three
methods of the connection are others meanwhile: `close`, `on_commit` and `savepoint_commit`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from django_dhara import hygiene

logger = logging.getLogger("django_dhara.testing")

_METHODS = ("close", "on_commit", "savepoint_commit")


class TransactionGone(RuntimeError):
    """A function ended the transaction of the test: by COMMIT or ROLLBACK, or because the connection died.

    What the test wrote is lost or, after a COMMIT, stays in the test database.
    """


class Shield:
    """Around one call of user code: the transactions that are open before it are open and usable after it.

    Without an open transaction (TransactionTestCase) it only undoes what a worker undoes, too.

    Args:
        function: whose name is told.
    """

    def __init__(self, function: str) -> None:
        self._function = function
        self._kept: list[_Kept] = []

    def __enter__(self) -> Self:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block and not connection.needs_rollback and not connection.closed_in_transaction:
                self._kept.append(_Kept.of(connection))
        return self

    def call_hooks(self) -> None:
        """Call `on_commit` callbacks that are left: those of blocks that had no savepoint."""
        for kept in self._kept:
            if not kept.is_broken and not kept.is_left_open:
                kept.call_hooks()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        gone = [kept.connection.alias for kept in reversed(self._kept) if not kept.restore(self._function)]
        if not self._kept and any(_left_open(connection) for connection in connections.all(initialized_only=True)):
            hygiene.after_run(self._function)
        if gone:
            raise TransactionGone(
                f"{self._function} ended the transaction of this test on {', '.join(gone)}: "
                "the connection died, or was told to COMMIT or ROLLBACK."
            ) from error


@dataclass(slots=True)
class _Kept:
    """A connection with an open transaction, and where inside it the call began."""

    connection: BaseDatabaseWrapper
    savepoint: str | None
    depth: int
    blocks: int
    hooks: int
    #: What stood in their place already: the shield around a function that enqueues inline.
    methods: dict[str, Any]

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper) -> _Kept:
        kept = cls(
            connection,
            connection.savepoint(),  # no atomic() block: inside of one, atomic(durable=True) would be refused
            len(connection.savepoint_ids),
            len(connection.atomic_blocks),
            len(connection.run_on_commit),
            {name: connection.__dict__[name] for name in _METHODS if name in connection.__dict__},
        )
        # Long functions call close_old_connections(), which would close this one: its autocommit is off.
        connection.__dict__["close"] = lambda: None
        connection.__dict__["on_commit"] = kept.on_commit
        connection.__dict__["savepoint_commit"] = kept.savepoint_commit
        return kept

    @property
    def is_dead(self) -> bool:
        raw = self.connection.connection
        return raw is None or bool(getattr(raw, "closed", False))

    @property
    def is_broken(self) -> bool:
        """Would the next query be refused?"""
        info = getattr(self.connection.connection, "info", None)
        is_failed = getattr(info, "transaction_status", None) == TransactionStatus.INERROR
        return self.connection.needs_rollback or self.is_dead or is_failed

    @property
    def is_left_open(self) -> bool:
        return len(self.connection.atomic_blocks) > self.blocks

    @property
    def is_inside(self) -> bool:
        """Inside a transaction of the function's own?"""
        return len(self.connection.savepoint_ids) > self.depth

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> None:
        type(self.connection).on_commit(self.connection, func, robust)
        if not self.is_inside:
            self.call_hooks()

    def savepoint_commit(self, sid: str) -> None:
        type(self.connection).savepoint_commit(self.connection, sid)
        if not self.is_inside:
            self.call_hooks()

    def call_hooks(self) -> None:
        """As Django does it after a commit: one that raises and is not robust ends it."""
        waiting: list[Any] = self.connection.run_on_commit[self.hooks :]
        del self.connection.run_on_commit[self.hooks :]
        for _, hook, robust in waiting:
            _call(hook, robust=robust)

    def restore(self, function: str) -> bool:
        """Back into the transaction as it was; False if it is no more."""
        connection = self.connection
        for name in _METHODS:
            del connection.__dict__[name]
        connection.__dict__.update(self.methods)
        if self.is_dead:
            type(connection).close(connection)  # now Django knows, and lets the test end in peace
            return False
        roll_back = self.is_broken or self.is_left_open
        if self.is_left_open:
            logger.warning("%s left an open atomic block: it was rolled back", function)
        connection.in_atomic_block = True
        del connection.atomic_blocks[self.blocks :], connection.savepoint_ids[self.depth :]
        del connection.run_on_commit[self.hooks :]
        connection.needs_rollback = False
        return self._leave_savepoint(roll_back=roll_back)

    def _leave_savepoint(self, *, roll_back: bool) -> bool:
        connection, savepoint = self.connection, str(self.savepoint)
        try:
            if roll_back:
                connection.savepoint_rollback(savepoint)
            type(connection).savepoint_commit(connection, savepoint)
        except DatabaseError:
            connection.needs_rollback = True
            return False
        return True


def _left_open(connection: BaseDatabaseWrapper) -> bool:
    is_open = connection.connection is not None
    return connection.in_atomic_block or (is_open and connection.autocommit != connection.settings_dict["AUTOCOMMIT"])


def _call(hook: Callable[[], Any], *, robust: bool) -> None:
    try:
        hook()
    except Exception:
        if not robust:
            raise
        logger.exception("An on_commit() callback raised")
