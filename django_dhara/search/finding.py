"""What a search finds: a page, a count, or the next part of a walk. Each looks through a bounded number of rows.

There is no OFFSET that grows: a page begins where a cursor says, and looks through at most a window of rows. Where
the window ends before the page is full, the page says so, and its next one begins there. So everything can be reached,
and nothing has to be read at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Q
from django.utils import timezone

from django_dhara.models import Task, TaskQuerySet
from django_dhara.search.conditions import conditions
from django_dhara.search.language import PAYLOAD, Search
from django_dhara.search.moments import readable
from django_dhara.search.sources import GATHER, Source, source, time_of, uncovered
from django_dhara.sql import TooSlow, time_limit, utc

#: Rows that are looked through for one page. Fewer are tried where that takes too long: payloads can be large.
WINDOWS = (20_000, 2_000, 200)
#: Seconds for each try.
PATIENCE = 1.0
#: A count is exact up to this.
MOST = 10_000

_Key = tuple[Any, ...]
_Answer = TypeVar("_Answer")


class CursorError(ValueError):
    """A cursor was not made by this search."""


class Looked(NamedTuple):
    """What was looked through."""

    #: All that could match: nothing lies beyond.
    complete: bool
    #: Rows, at most.
    rows: int
    #: How far back, or None if that is not known: to an enqueue, or to an end where the list is in that order.
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the tasks that match, newest first; within a final state those that ended last first."""

    ids: Sequence[UUID]
    #: Cursors of what comes after and before; empty where nothing does.
    older: str
    newer: str
    looked: Looked


class Found(NamedTuple):
    """How many tasks match."""

    number: int
    #: `number` is what was found before the count stopped, and there may be more.
    more: bool
    #: What the planner believes there are in all, where that means something.
    estimate: int | None
    looked: Looked


class _Cursor(NamedTuple):
    """A place in a list, and where to go from there. An empty place is the beginning."""

    place: _Key = ()
    is_newer: bool = False

    def __str__(self) -> str:
        parts = [utc(value).isoformat() if isinstance(value, datetime) else str(value) for value in self.place]
        return "~".join(["newer" if self.is_newer else "older", *parts])


def page(alias: str, search: Search, *, cursor: str = "", size: int = 100, now: datetime | None = None) -> Page:
    """The tasks that match, `size` at most.

    Args:
        cursor: `older` or `newer` of another page of the same search; empty for the first one.
        now: from which times are counted; the present by default.

    Raises:
        CursorError: the cursor is none of this search.
        TooSlow: even through few rows it took too long.
    """
    now = now or timezone.now()
    where = source(search, alias, now)
    at = _read_cursor(cursor, where) if cursor else _Cursor()
    matching = conditions(uncovered(search, where), alias, now)
    return _patiently(alias, search, lambda window: _page(alias, where, matching, at, size, window))


#: Rows come from an index in order. With statistics that are missing, or of long ago, the planner believes in a few
#: rows beyond the cursor, or in a few moments with thousands of ends each, and would rather read all and sort them.
_PRESORTED = {"enable_sort": "off"}


def _patiently(alias: str, search: Search, ask: Callable[[int], _Answer]) -> _Answer:
    """The answer of the largest window that is not too slow. Only payloads make a small one necessary."""
    windows = WINDOWS if any(term.field.startswith(PAYLOAD) for term in search.terms) else WINDOWS[:1]
    for window in windows[:-1]:
        try:
            with time_limit(alias, PATIENCE, **_PRESORTED):
                return ask(window)
        except TooSlow:
            continue
    with time_limit(alias, 2 * PATIENCE, **_PRESORTED):
        return ask(windows[-1])


def _page(alias: str, where: Source, matching: Q, at: _Cursor, size: int, window: int) -> Page:
    found = _keys(alias, where, matching, at, size + 1, window)
    end = None if len(found) > size else _end(where, at, window)
    is_full = len(found) > size
    found = found[:size]
    if at.is_newer:
        if end is None and not is_full:
            return _page(alias, where, matching, _Cursor(), size, window)
        return _going_back(found[::-1], at, end, window)
    older = found[-1] if is_full else end
    newer = found[0] if found else _beside(at.place, -1)
    return Page(
        ids=[key[-1] for key in found],
        older=str(_Cursor(older)) if older else "",
        newer=str(_Cursor(newer, is_newer=True)) if at.place else "",
        looked=_looked(where, end, window, is_full=is_full),
    )


def _going_back(found: Sequence[_Key], at: _Cursor, end: _Key | None, window: int) -> Page:
    """A page before another one; where its window ended early, the next one back begins there."""
    first = end or found[0]
    return Page(
        ids=[key[-1] for key in found],
        older=str(_Cursor(found[-1] if found else _beside(at.place, 1))),
        newer=str(_Cursor(first, is_newer=True)),
        looked=Looked(complete=False, rows=window, until=None),
    )


def _beside(place: _Key, step: int) -> _Key:
    """The place next to one, so that who turns around there meets the row that it is."""
    return (*place[:-1], UUID(int=min(max(place[-1].int + step, 0), 2**128 - 1))) if place else ()


def _looked(where: Source, end: _Key | None, window: int, *, is_full: bool) -> Looked:
    if where.gathered:
        return Looked(complete=not is_full, rows=GATHER, until=None)
    return Looked(complete=end is None and not is_full, rows=window, until=_time(end))


def _time(key: _Key | None) -> datetime | None:
    if not key:
        return None
    return key[0] if len(key) > 1 else time_of(key[0])


def _read_cursor(text: str, where: Source) -> _Cursor:
    way, *parts = text.split("~")
    try:
        place = (*(map(readable, parts[:-1])), UUID(parts[-1]))
    except (ValueError, IndexError) as error:
        raise CursorError(text) from error
    if way not in ("older", "newer") or len(place) != len(_columns(where)):
        raise CursorError(text)
    return _Cursor(place, way == "newer")


def count(
    alias: str,
    search: Search,
    *,
    most: int = MOST,
    now: datetime | None = None,
    below: UUID | None = None,
    until: datetime | None = None,
) -> Found:
    """How many tasks match: exact up to `most`, as far as one window reaches.

    Args:
        below, until: of a walk, how many it has before it.

    Raises:
        TooSlow: even through few rows it took too long.
    """
    now = now or timezone.now()
    where = source(search, alias, now, by_id=below is not None)
    matching = conditions(uncovered(search, where), alias, now) & _enqueued(until)
    at = _Cursor((below,)) if below else _Cursor()

    def ask(window: int) -> Found:
        number = _count(alias, where, matching, at, most + 1, window)
        end = None if number > most else _end(where, at, window)
        more = number > most or end is not None
        looked = _looked(where, end, window, is_full=number > most)
        return Found(min(number, most), more, _estimate(alias, search, now) if number > most else None, looked)

    return _patiently(alias, search, ask)


def _estimate(alias: str, search: Search, now: datetime) -> int | None:
    """The planner's guess, where it is one column's statistics; a product of several is worth nothing."""
    if len(search.terms) > 1 or not {term.field for term in search.terms} <= {"state", "queue"}:
        return None
    tasks = Task.objects.using(alias).filter(conditions(search, alias, now))
    [plan] = json.loads(tasks.order_by().values("id").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


class Walked(NamedTuple):
    """The next part of a walk through all that matches."""

    ids: Sequence[UUID]
    #: The last id that was looked at, to go on from there; None at the end.
    last: UUID | None


def walk(alias: str, search: Search, *, below: UUID, size: int, until: datetime | None = None) -> Walked:
    """The next tasks with ids below `below` that match, in falling order. A window may hold none of them.

    However tasks change meanwhile, a walk meets none of them twice.

    Args:
        until: the last time of an enqueue; times of the search are counted from there.

    Raises:
        TooSlow: even through few rows it took too long.
    """
    now = until or timezone.now()
    where = source(search, alias, now, by_id=True)
    matching = conditions(uncovered(search, where), alias, now) & _enqueued(until)
    at = _Cursor((below,))

    def ask(window: int) -> Walked:
        found = _keys(alias, where, matching, at, size, window)
        if len(found) == size:
            return Walked([id_ for [id_] in found], found[-1][0])
        end = _end(where, at, window)
        return Walked([id_ for [id_] in found], end[0] if end else None)

    return _patiently(alias, search, ask)


def _enqueued(until: datetime | None) -> Q:
    return Q(enqueued_at__lte=until) if until else Q()


# The rows


def _columns(where: Source) -> tuple[str, ...]:
    return ("id",) if where.key == "id" else (where.key, "id")


def _order(where: Source, at: _Cursor) -> list[str]:
    return [name if at.is_newer else f"-{name}" for name in _columns(where)]


def _beyond(where: Source, at: _Cursor) -> Q:
    """Rows that come after the cursor's place. The first column stands alone, too, for the index."""
    if not at.place:
        return Q()
    than = "gt" if at.is_newer else "lt"
    if where.key == "id":
        return Q((f"id__{than}", at.place[0]))
    time, id_ = at.place
    return Q((f"{where.key}__{than}e", time)) & (Q((f"{where.key}__{than}", time)) | Q((f"id__{than}", id_)))


def _window(where: Source, at: _Cursor, window: int) -> list[TaskQuerySet]:
    """The rows that are looked through."""
    if where.gathered:
        # There were no more than that a moment ago.
        return [part[: 2 * GATHER] for part in where.parts]
    [rows] = where.parts
    return [rows.filter(_beyond(where, at)).order_by(*_order(where, at))[:window]]


def _end(where: Source, at: _Cursor, window: int) -> _Key | None:
    """The last row of a window; None where the rows end before it is full."""
    if where.gathered:
        return None
    [rows] = where.parts
    ordered = rows.filter(_beyond(where, at)).order_by(*_order(where, at))
    return ordered.values_list(*_columns(where))[window - 1 : window].first()


def _keys(alias: str, where: Source, matching: Q, at: _Cursor, limit: int, window: int) -> list[_Key]:
    """The first `limit` rows of the window that match."""
    tasks = Task.objects.using(alias).filter(matching)
    tasks = tasks.filter(_beyond(where, at)) if where.gathered else tasks
    wanted = tasks.order_by(*_order(where, at)).values_list(*_columns(where))[:limit]
    return _rows(alias, wanted, _window(where, at, window))


def _count(alias: str, where: Source, matching: Q, at: _Cursor, limit: int, window: int) -> int:
    tasks = Task.objects.using(alias).filter(matching)
    tasks = tasks.filter(_beyond(where, at)) if where.gathered else tasks
    wanted = tasks.order_by().values_list("id")[:limit]
    [[number]] = _rows(alias, wanted, _window(where, at, window), around="SELECT count(*) FROM ({}) AS found") or [(0,)]
    return int(number)


_TABLE = ' FROM "dhara_task"'


def _rows(alias: str, wanted: Any, parts: Sequence[TaskQuerySet], around: str = "{}") -> list[_Key]:
    """`wanted`, from these parts of the table only.

    The parts stand in the place of the table's name. They have a LIMIT each, through which the planner pushes no
    condition, so that whatever it knows about the table it reads them and nothing else.
    """
    try:
        inner = [part.query.get_compiler(alias).as_sql() for part in parts]
        statement, parameters = wanted.query.get_compiler(alias).as_sql()
    except EmptyResultSet:
        return []
    head, table, tail = statement.partition(_TABLE)
    assert table
    rows = " UNION ALL ".join(f"({text})" for text, _ in inner)
    values = [value for _, given in inner for value in given]
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "/* dhara:search */ " + around.format(f'{head} FROM ({rows}) AS "dhara_task"{tail}'), [*values, *parameters]
        )
        return list(cursor.fetchall())
