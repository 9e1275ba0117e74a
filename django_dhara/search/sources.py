"""Through which rows a search looks: those of one index where one serves, the newest rows of the table otherwise.

A source is *gathered* where its rows are few: all of them are read and then sorted. It is *walked* where they may be
millions: in the order of its index, a window at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db import connections

from django_dhara.models import Task, TaskQuerySet
from django_dhara.search.conditions import id_range, is_word_an_id, workers
from django_dhara.search.language import TEXT, Search
from django_dhara.search.moments import moment
from django_dhara.sql import TooSlow, time_limit
from django_dhara.states import FINAL, State

#: So many rows of an index are gathered; of more only a walk is made.
GATHER = 50_000

#: Seconds in which it is to be found out whether there are so many.
PATIENCE = 1.0

#: An id has the time of the caller's clock in it, and may be so much off.
SLACK = timedelta(minutes=10)

Key = Literal["id", "finished_at"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where to look."""

    #: One queryset, or several whose rows are taken together.
    parts: tuple[TaskQuerySet, ...]
    #: The column by which the list is ordered; `id` comes after it.
    key: Key = "id"
    gathered: bool = False
    #: All its rows are in the states that were asked for.
    of_states: bool = False


def source(search: Search, alias: str, now: datetime, *, by_id: bool = False) -> Source:
    """Where to look for what a search means.

    Args:
        by_id: in the order of ids, whatever the search is for.
    """
    tasks = Task.objects.using(alias)
    return (
        _by_key(search, tasks, alias)
        or _by_parent(search, tasks)
        or _by_state(search, tasks, alias, now, by_id=by_id)
        or Source((_between(search, tasks, now),))
    )


def uncovered(search: Search, where: Source) -> Search:
    """The terms that are still to be asked of the rows. A column less to look at may spare a look into the table."""
    if not where.of_states:
        return search
    return Search(tuple(term for term in search.terms if term.field != "state" or term.negated))


def _by_key(search: Search, tasks: TaskQuerySet, alias: str) -> Source | None:
    """By the unique index of keys, whose first column is the function: all functions that have keys are tried."""
    keys = [term for term in search.of("key") if all(value.exact or "*" not in value.text for value in term.values)]
    if not keys:
        return None
    with connections[alias].cursor() as cursor:
        cursor.execute(_KEYED, {"most": MOST_FUNCTIONS + 1})
        functions = [function for [function] in cursor.fetchall()]
    if len(functions) > MOST_FUNCTIONS:
        return None
    keyed = tasks.filter(idempotency_key__isnull=False, function__in=functions, idempotency_key__in=keys[0].texts)
    return Source((keyed,), gathered=True)


#: Functions of keyed tasks; with more of them a key is looked for in a window.
MOST_FUNCTIONS = 2000

# A skip scan: one probe of the index for each function. The ORM knows no WITH RECURSIVE.
_KEYED = """/* dhara:search_keyed */
WITH RECURSIVE keyed AS (
    (SELECT function FROM dhara_task WHERE idempotency_key IS NOT NULL ORDER BY function LIMIT 1)
    UNION ALL
    SELECT following.function FROM keyed CROSS JOIN LATERAL (
        SELECT function FROM dhara_task
        WHERE idempotency_key IS NOT NULL AND function > keyed.function ORDER BY function LIMIT 1) AS following
)
SELECT function FROM keyed LIMIT %(most)s
"""


def _by_parent(search: Search, tasks: TaskQuerySet) -> Source | None:
    parents = search.of("parent")
    if not parents:
        return None
    children = tasks.filter(parent_id__isnull=False, parent_id__in=[UUID(text) for text in parents[0].texts])
    return Source((children.order_by("parent_id", "id"),), gathered=True)


def _by_state(search: Search, tasks: TaskQuerySet, alias: str, now: datetime, *, by_id: bool) -> Source | None:
    states = _states(search)
    if states == {State.RUNNING}:
        return _if_few((_running(search, tasks, alias),))
    if states == {State.PENDING}:
        return _if_few(_pending(search, tasks))
    if len(states) == 1 and states < set(FINAL):
        ended = _ended(search, tasks.filter(state=states.pop(), finished_at__isnull=False), now)
        return _if_few((ended.order_by("finished_at"),)) if by_id else Source((ended,), "finished_at", of_states=True)
    return None


def _states(search: Search) -> set[State]:
    """The states that a task may have; all of them where the search says nothing."""
    states = set(State)
    for term in search.of("state"):
        states &= {State(text.upper()) for text in term.texts}
    for term in search.of("is"):
        states &= {State.RUNNING if text in ("late", "stopping") else State.PENDING for text in term.texts}
    return states


def _if_few(parts: tuple[TaskQuerySet, ...]) -> Source | None:
    """A source that is gathered, unless it would be too much. Without statistics the planner would rather sort."""
    try:
        with time_limit(parts[0].db, PATIENCE, enable_sort="off"):
            if any(part.values("id")[GATHER : GATHER + 1] for part in parts):
                return None
    except TooSlow:
        return None
    return Source(parts, gathered=True, of_states=True)


def _running(search: Search, tasks: TaskQuerySet, alias: str) -> TaskQuerySet:
    running = tasks.running().order_by("worker_id")
    for term in search.of("worker"):
        if not any(is_word_an_id(value) for value in term.values):
            running = running.filter(worker_id__in=[id_ for value in term.values for id_ in workers(value, alias)])
    return running


def _pending(search: Search, tasks: TaskQuerySet) -> tuple[TaskQuerySet, ...]:
    """By the index of what is ready or scheduled, and by that of suspects."""
    pending = tasks.pending()
    for term in search.of("queue"):
        if all(value.exact or "*" not in value.text for value in term.values):
            pending = pending.filter(queue__in=term.texts)
    return (
        pending.trusted().order_by("backend", "queue", "priority", "run_at", "id"),
        pending.suspects().order_by("backend", "-priority", "run_at", "id"),
    )


def _ended(search: Search, tasks: TaskQuerySet, now: datetime) -> TaskQuerySet:
    """Nothing ends before it is enqueued."""
    for term in (*search.of("after"), *search.of("finished_after")):
        tasks = tasks.filter(finished_at__gte=moment(term.texts[0], now))
    for term in search.of("finished_before"):
        tasks = tasks.filter(finished_at__lt=moment(term.texts[0], now))
    return tasks


def _between(search: Search, tasks: TaskQuerySet, now: datetime) -> TaskQuerySet:
    """Ids from the first that may match to the last one."""
    for low, high in _id_ranges(search):
        tasks = tasks.filter(id__gte=low, id__lte=high)
    for term in search.of("after"):
        tasks = tasks.filter(id__gte=_id_at(moment(term.texts[0], now) - SLACK))
    for term in search.of("before"):
        tasks = tasks.filter(id__lte=_id_at(moment(term.texts[0], now) + SLACK))
    return tasks


def _id_ranges(search: Search) -> Any:
    ids = [term.texts for term in search.of("id")]
    ids += [term.texts for term in search.of(TEXT) if is_word_an_id(term.values[0])]
    for texts in ids:
        ranges = [id_range(text) for text in texts]
        yield min(low for low, _ in ranges), max(high for _, high in ranges)


def _id_at(when: datetime) -> UUID:
    """The first UUIDv7 of a moment, without its version: it only stands for a place in the order."""
    return UUID(int=max(round(when.timestamp() * 1000), 0) << 80)


def time_of(id_: UUID) -> datetime | None:
    """When an id was made, if it is a UUIDv7."""
    return datetime.fromtimestamp((id_.int >> 80) / 1000, UTC) if id_.version == 7 else None


__all__ = ["GATHER", "Source", "source", "time_of", "uncovered"]
