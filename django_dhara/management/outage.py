"""What a command says when the database does not do what it asks: one line, with what to do.

All commands have it from `flags.Command`; `dhara_top` goes on after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, OperationalError, connections

from django_dhara.events import one_line

#: No such table, column, schema: our migrations are not applied here, or only some of them.
NOT_MIGRATED = frozenset({"42P01", "42703", "3F000"})
#: The role may not.
NOT_ALLOWED = "42501"
#: SQLSTATE classes of a server that is there, and lacks time or means: resources, a lock, an operator, a system error.
_BUSY = ("40", "53", "54", "55", "57014", "58")


@contextmanager
def in_one_line() -> Iterator[None]:
    """What the database refuses is one line.

    Raises:
        CommandError: instead of what Django's connection raised; `--traceback` shows that, too.
    """
    try:
        yield
    except Error as error:
        raise CommandError(_sentence(error)) from error


def _sentence(error: Error) -> str:
    state = getattr(error.__cause__, "sqlstate", None) or ""
    database, reason = f"DATABASES[{_alias()!r}]", _reason(error)
    if state in NOT_MIGRATED:
        return f"{database} has not all tables of this version ({reason}): run `manage.py migrate`, or `dhara_migrate`."
    if state == NOT_ALLOWED:
        return f"{database} refuses: {reason}. Grant that to its USER, or name another one."
    if isinstance(error, (OperationalError, InterfaceError)) and not state.startswith(_BUSY):
        return f"{database} cannot be reached: {reason}. Is the server up, and are HOST, PORT and USER right?"
    return f"{database} has refused: {reason}. Nothing more was done; --traceback shows where."


def _reason(error: Error) -> str:
    """What the server says, without the statement; or what libpq does, without what it asks."""
    said = getattr(getattr(error.__cause__, "diag", None), "message_primary", None)
    lines = [line for line in str(said or error).splitlines() if not line.rstrip().endswith("?")]
    return one_line(" ".join(lines) or error).rstrip(".")


def _alias() -> str:
    """The connection that Django has marked: an error does not say whose it is."""
    opened = [connection for connection in connections.all(initialized_only=True) if connection.errors_occurred]
    return opened[-1].alias if opened else DEFAULT_DB_ALIAS
