"""Querysets as text: one definition of a question serves the ORM and the statements that the ORM cannot write.

A claim is `Task.objects.ready()...select_for_update(skip_locked=True)` inside a materialized CTE under
`UPDATE ... RETURNING`. The queryset is compiled here, once; what changes from call to call is a `Placeholder`, and
everything else becomes a literal, because the planner proves a partial index only from literals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django.db import OperationalError, connections, models, transaction
from django.db.models.expressions import Expression
from django.utils import timezone
from psycopg import sql

#: Runs one statement with named parameters and returns its rows.
Execute = Callable[[str, Mapping[str, Any]], Sequence[tuple[Any, ...]]]

#: Stands for a LIMIT while Django compiles, which writes limits into the text.
_LIMIT = 987_654_321


class Placeholder(Expression):
    """A value that is given when the statement runs, or a piece of SQL such as a column of an outer query."""

    def __init__(self, text: str, output_field: models.Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self.text = text

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        return self.text, []


def text(value: str) -> Placeholder:
    return Placeholder(value, models.CharField())


def number(value: str) -> Placeholder:
    return Placeholder(value, models.IntegerField())


def condition(value: str) -> Placeholder:
    return Placeholder(value, models.BooleanField())


def compiled(queryset: models.QuerySet[Any], alias: str, *, limit: str | None = None) -> str:
    """The SQL of a queryset, its values written into the text.

    Args:
        limit: the text of its LIMIT, such as "%(limit)s".
    """
    if limit is not None:
        queryset = queryset[:_LIMIT]
    # select_for_update() insists on an open transaction; the statement that this becomes part of is its own.
    connection: Any = connections[alias].copy()
    connection.get_autocommit = lambda: False
    statement, values = queryset.query.get_compiler(connection=connection).as_sql()
    literals = iter([sql.Literal(value).as_string(None) for value in values])
    statement = re.sub("%s", lambda _: next(literals).replace("%", "%%"), statement)
    return statement if limit is None else statement.replace(f"LIMIT {_LIMIT}", f"LIMIT {limit}")


def array(values: Sequence[object]) -> str:
    """An array as PostgreSQL reads it, for a parameter that is cast to its type: psycopg asks each element for its type
    and dumps it by itself, which for a batch of settled runs costs more than all else that is done for them.

    Args:
        values: None, texts, numbers, UUIDs, datetimes, bytes.
    """
    if values.count(None) == len(values):  # of most columns
        return "{" + ",".join(["NULL"] * len(values)) + "}"
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (int, float)):
        return str(value)
    text_ = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return '"' + text_.replace("\\", "\\\\").replace('"', '\\"') + '"'


def on(alias: str) -> Execute:
    """Run statements on Django's connection of this thread, in whatever transaction is open there."""

    def execute(statement: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        with connections[alias].cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return rows

    return execute


def utc(when: datetime) -> datetime:
    """A time that Django has read, in UTC: without USE_TZ it has none but the time on a wall in TIME_ZONE."""
    aware = timezone.make_aware(when, timezone.get_default_timezone()) if timezone.is_naive(when) else when
    return aware.astimezone(UTC)


class TooSlow(Exception):
    """A query was stopped because it took too long."""


@contextmanager
def time_limit(alias: str, seconds: float, **settings: str) -> Iterator[None]:
    """No statement of this block on `alias` runs longer than `seconds`, nor than an outer block lets it.

    Args:
        settings: further ones of the server, as long as the block lasts.

    Raises:
        TooSlow: one would have.
    """
    is_within = connections[alias].in_atomic_block
    try:
        with transaction.atomic(using=alias):
            before = _set(alias, {"statement_timeout": f"{round(seconds * 1000)}ms", **settings}, _SHORTEST)
            yield
            if is_within:  # otherwise they end with the transaction
                _set(alias, before, "%(statement_timeout)s::text")
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != "57014":
            raise
        raise TooSlow from error


#: The limit that is asked for, or the one that is set already; 0 is none.
_SHORTEST = """CASE WHEN current_setting('statement_timeout') = '0' THEN %(statement_timeout)s::text
    ELSE (1000 * extract(epoch FROM least(
        current_setting('statement_timeout')::interval, %(statement_timeout)s::text::interval)))::int::text END"""


def _set(alias: str, settings: Mapping[str, str], timeout: str) -> dict[str, str]:
    """Change settings of the transaction, which may have begun before this block; returns what they were."""
    names = ", ".join(f"current_setting('{name}')" for name in settings)
    values = {name: timeout if name == "statement_timeout" else f"%({name})s::text" for name in settings}
    changes = ", ".join(f"set_config('{name}', {value}, true)" for name, value in values.items())
    [row] = on(alias)(f"SELECT {names}, {changes}", settings)
    return dict(zip(settings, row, strict=False))
