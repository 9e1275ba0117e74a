"""Lists of tasks in bounded steps, whatever the size of the table.

A list walks an index from where the cursor says, and looks at so many rows of it and no more. What a filter leaves of
them is the page; a page that is not full has a cursor all the same, until the walk is at its end. So a filter that no
index serves costs many calls, and none of them costs much.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django_dhara import sql
from django_dhara.api.problems import Problem
from django_dhara.models import MAX_PRIORITY, MIN_PRIORITY, READABLE
from django_dhara.payload import check_text
from django_dhara.states import FINAL, State

#: Rows of one look, and looks of one call.
WINDOW, LOOKS = 10_000, 5
#: An id holds the time of its enqueue by the clock of who enqueued; clocks that are wrong by more are not believed.
_CLOCKS = timedelta(hours=1)

_Key = Callable[[Any], Any]


def _uuid(value: Any) -> UUID:
    return UUID(check_text(value, "it", max_length=36))


def _name(value: Any) -> str:
    return check_text(value, "it", max_length=255)


def _priority(value: Any) -> int:
    if not isinstance(value, int) or not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise ValueError("no priority")
    return value


def _time(value: Any) -> datetime:
    read = datetime.fromisoformat(check_text(value, "it", max_length=40))
    if read.tzinfo is None or not READABLE[0] <= read <= READABLE[1]:
        raise ValueError("no time")
    return read


class Walk(NamedTuple):
    """A way through the table along one index.

    Args:
        where: the condition of the index.
        order: its order.
        after: what lies behind a place in that order; parameters are the keys.
        keys: the columns of a place, and how the cursor's values of them are read.
    """

    where: str
    order: str
    after: str
    keys: dict[str, _Key]


WALKS: dict[str, Walk] = {
    "all": Walk("{ids}", "id DESC", "id < %(id)s", {"id": _uuid}),
    "waiting": Walk(
        "state = 'PENDING' AND lost = 0 AND backend = %(backend)s {of_queue}",
        "queue, priority, run_at, id",
        "(queue, priority, run_at, id) > (%(queue_)s, %(priority)s, %(run_at)s, %(id)s)",
        {"queue": _name, "priority": _priority, "run_at": _time, "id": _uuid},
    ),
    "suspects": Walk(
        "state = 'PENDING' AND lost > 0 AND backend = %(backend)s",
        "priority DESC, run_at, id",
        "priority <= %(priority)s AND (priority < %(priority)s OR (run_at, id) > (%(run_at)s, %(id)s))",
        {"priority": _priority, "run_at": _time, "id": _uuid},
    ),
    "running": Walk(
        "state = 'RUNNING'",
        "worker_id, id",
        "(worker_id, id) > (%(worker_id)s, %(id)s)",
        {"worker_id": _uuid, "id": _uuid},
    ),
    **{
        state.lower(): Walk(
            f"state = '{state}' AND finished_at IS NOT NULL",
            "finished_at DESC, id DESC",
            "(finished_at, id) < (%(finished_at)s, %(id)s)",
            {"finished_at": _time, "id": _uuid},
        )
        for state in FINAL
    },
}
#: The walks that find the tasks of a status, one after the other.
ROUTES: dict[State | None, tuple[str, ...]] = {
    None: ("all",),
    State.PENDING: ("waiting", "suspects"),
    State.RUNNING: ("running",),
    **{state: (state.lower(),) for state in FINAL},
}

_COLUMNS = "id, backend, queue, function, state, failures, lost, enqueued_at, priority, run_at, worker_id, finished_at"
#: The planner takes the rows of the inner query from the index one by one, and the outer LIMIT ends it early.
_LOOK = """/* dhara:list */
SELECT id, {keys} FROM (
    SELECT {columns} FROM dhara_task WHERE {where} {after} ORDER BY {order} LIMIT %(window)s) AS task
WHERE {filters} ORDER BY {order} LIMIT %(wanted)s
"""
#: Where the rows of a look end.
_END = """/* dhara:list_end */
SELECT {keys} FROM dhara_task WHERE {where} {after} ORDER BY {order} OFFSET %(window)s - 1 LIMIT 1
"""


@dataclass(slots=True, kw_only=True)
class Filter:
    """Which tasks are listed."""

    backend: str
    status: str | None = None
    type: str | None = None
    queue: str | None = None
    retrying: bool | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    #: The only queues that the caller has to do with; empty: all.
    queues: tuple[str, ...] = ()

    @property
    def route(self) -> tuple[str, ...]:
        status = State.PENDING if self.retrying and self.status is None else self.status
        return ROUTES[None if status is None else State(status)]

    def conditions(self) -> Iterator[str]:
        yield "backend = %(backend)s"
        if self.type is not None:
            yield "function = %(type)s"
        if self.queue is not None:
            yield "queue = %(queue)s"
        if self.queues:
            yield "queue = ANY (%(queues)s)"
        if self.retrying is not None:
            yield ("" if self.retrying else "NOT ") + "(state = 'PENDING' AND failures + lost > 0)"
        if self.created_after:
            yield "enqueued_at >= %(created_after)s"
        if self.created_before:
            yield "enqueued_at < %(created_before)s"

    def parameters(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "type": self.type,
            "queue": self.queue,
            "queues": list(self.queues),
            "created_after": self.created_after,
            "created_before": self.created_before,
            "first_id": _id_at(self.created_after, -_CLOCKS),
            "last_id": _id_at(self.created_before, _CLOCKS),
        }

    def walk(self, name: str) -> Walk:
        """The walk, narrowed by what its index can use."""
        walk = WALKS[name]
        ids = " AND ".join(
            [
                "id >= %(first_id)s" if self.created_after else "true",
                *(["id <= %(last_id)s"] if self.created_before else []),
            ]
        )
        of_queue = "AND queue = %(queue)s" if self.queue is not None else ""
        return walk._replace(where=walk.where.format(ids=ids, of_queue=of_queue))


def _id_at(time: datetime | None, slack: timedelta) -> UUID | None:
    """The smallest UUIDv7 of a time."""
    if time is None:
        return None
    milliseconds = int((time.timestamp() + slack.total_seconds()) * 1000)
    return UUID(int=min(max(milliseconds, 0), 2**48 - 1) << 80)


class Place(NamedTuple):
    """Where a list goes on: in which walk of its route, and behind which row; no keys: at the walk's beginning."""

    walk: str
    keys: tuple[Any, ...] = ()


@dataclass(slots=True)
class Page:
    ids: list[UUID] = field(default_factory=list)
    #: The cursor of the next one.
    next: str | None = None


def page(alias: str, filter_: Filter, *, limit: int, cursor: str | None = None, offset: int = 0) -> Page:
    """The next tasks of a list.

    Raises:
        Problem: the cursor is none of this list, or the offset reaches too far.
    """
    place: Place | None = _place(cursor, filter_.route)
    found = Page()
    skipped = 0
    for _ in range(LOOKS):
        if place is None:
            break
        ids, place = _look(alias, filter_, place, limit + offset - skipped - len(found.ids))
        left_out = min(offset - skipped, len(ids))
        skipped += left_out
        found.ids += ids[left_out:]
        if len(found.ids) == limit:
            break
    if place is not None and skipped < offset:
        raise Problem(
            "invalid", "The offset reaches further than this list is looked through; use `next`.", field="offset"
        )
    found.next = None if place is None else _cursor(place)
    return found


def _look(alias: str, filter_: Filter, place: Place, wanted: int) -> tuple[list[UUID], Place | None]:
    """One look: at most `wanted` tasks, and where to go on."""
    walk = filter_.walk(place.walk)
    parts = {
        "columns": _COLUMNS,
        "keys": ", ".join(walk.keys),
        "where": walk.where,
        "order": walk.order,
        "after": f"AND {walk.after}" if place.keys else "",
        "filters": " AND ".join(filter_.conditions()),
    }
    # A queue is a filter, and a key of one walk.
    keys = {"queue_" if name == "queue" else name: key for name, key in zip(walk.keys, place.keys, strict=False)}
    parameters = {**filter_.parameters(), **keys, "window": WINDOW, "wanted": wanted + 1}
    rows = sql.on(alias)(_LOOK.format(**parts), parameters)
    if len(rows) > wanted:
        return [row[0] for row in rows[:wanted]], Place(place.walk, tuple(rows[wanted - 1][1:]))
    end = sql.on(alias)(_END.format(**parts), parameters)
    behind = Place(place.walk, tuple(end[0])) if end else _next_walk(filter_.route, place.walk)
    return [row[0] for row in rows], behind


def _next_walk(route: tuple[str, ...], name: str) -> Place | None:
    rest = route[route.index(name) + 1 :]
    return Place(rest[0]) if rest else None


def _cursor(place: Place) -> str:
    told = [key.isoformat() if isinstance(key, datetime) else key for key in place.keys]
    return urlsafe_b64encode(json.dumps([place.walk, *told], default=str).encode()).decode().rstrip("=")


def _place(cursor: str | None, route: tuple[str, ...]) -> Place:
    if cursor is None:
        return Place(route[0])
    try:
        name, *keys = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        readers = WALKS[route[route.index(name)]].keys.values()
        return Place(name, tuple(read(key) for read, key in zip(readers, keys, strict=True)) if keys else ())
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise Problem("invalid", "This is no cursor of this list.", field="cursor") from error
