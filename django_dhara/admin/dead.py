"""Dead letters by function and error, out of the index `dhara_task_dead` alone.

Of up to `MOST` dead tasks all are counted. Of more, as many of each function: the page says so, and no function is
left out because another one has failed a million times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import BooleanField, F, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Left, Length, Now, Right

from django_dhara.admin import databases, scene, traces
from django_dhara.admin.text import first_line
from django_dhara.models import Attempt, Task, TaskQuerySet
from django_dhara.states import State

#: Dead tasks that are counted, groups that are listed, and functions that are looked at where there are more.
MOST, GROUPS, FUNCTIONS = 200_000, 100, 200
#: Hours of the small chart, and tasks on a page of a group.
HOURS, TASKS = 24, 50
#: Characters of a traceback that are read for its innermost own frame.
FRAMES = 6000
#: Seconds that one query may take.
PATIENCE = 3.0

# The rows come in the order of the index, so nothing is sorted and no row of the table is read.
_ALL = """
SELECT backend, function, error_class, error_fingerprint, count(*) AS number, min(finished_at) AS first,
       max(finished_at) AS last, 0 AS functions
FROM (SELECT backend, function, error_class, error_fingerprint, finished_at FROM dhara_task WHERE state = 'DEAD'
      ORDER BY backend, function, error_class, error_fingerprint, finished_at LIMIT %(most)s + 1) AS dead
GROUP BY 1, 2, 3, 4
"""
# A skip scan finds the functions, each by one probe of the index. The ORM knows no WITH RECURSIVE.
_OF_EACH = """
SELECT few.backend, few.function, error_class, error_fingerprint, number, first, last, (SELECT count(*) FROM few)
FROM few CROSS JOIN LATERAL (
    SELECT error_class, error_fingerprint, count(*) AS number, min(finished_at) AS first, max(finished_at) AS last
    FROM (SELECT error_class, error_fingerprint, finished_at FROM dhara_task AS task
          WHERE state = 'DEAD' AND task.backend = few.backend AND task.function = few.function
          ORDER BY error_class, error_fingerprint, finished_at
          LIMIT (SELECT %(most)s / greatest(count(*), 1) FROM few)) AS dead
    GROUP BY 1, 2) AS one
"""
_FEW = """
WITH RECURSIVE known AS (
    (SELECT backend, function FROM dhara_task WHERE state = 'DEAD' ORDER BY backend, function LIMIT 1)
    UNION ALL
    SELECT following.* FROM known CROSS JOIN LATERAL (
        SELECT backend, function FROM dhara_task
        WHERE state = 'DEAD' AND (backend, function) > (known.backend, known.function)
        ORDER BY backend, function LIMIT 1) AS following
),
few AS MATERIALIZED (
    SELECT * FROM known WHERE %(function)s::text IS NULL OR function = %(function)s LIMIT %(functions)s
)"""
_GROUPS = """/* dhara:dead_letters */ {few}
SELECT backend, function, error_class, error_fingerprint, number, first, last, now(), count(*) OVER (),
       (sum(number) OVER ())::bigint, functions
FROM ({groups}) AS found(backend, function, error_class, error_fingerprint, number, first, last, functions)
ORDER BY {order} DESC, backend, function, error_class, error_fingerprint LIMIT %(groups)s
"""
#: How the groups may be ordered.
ORDERS = {"last": "last", "count": "number", "first": "first"}


#: Backend, function, class of the error and fingerprint of a group.
Key = tuple[str, str, str | None, str | None]


@dataclass(slots=True)
class Group:
    """Dead tasks of one function with one error."""

    backend: str
    function: str
    error_class: str | None
    #: The fingerprint: of the error's class and place.
    place: str | None
    count: int
    first: datetime
    last: datetime
    #: How many in each hour of the last day, the newest first.
    hours: list[int] = field(default_factory=list)
    #: Of its newest task: the id, the first line of the last error's message, and where it was raised.
    task: UUID | None = None
    message: str = ""
    frame: str = ""

    @property
    def key(self) -> Key:
        return self.backend, self.function, self.error_class, self.place

    @property
    def parameters(self) -> dict[str, str]:
        """What names it in an address; what is NULL is left out."""
        names = {"backend": self.backend, "function": self.function, "error": self.error_class, "place": self.place}
        return {name: value for name, value in names.items() if value is not None}


@dataclass(slots=True)
class Letters:
    """The groups, and what they are a part of."""

    groups: list[Group]
    now: datetime | None = None
    #: Groups and tasks in all; `is_cut`: there are more tasks than were counted.
    number: int = 0
    tasks: int = 0
    is_cut: bool = False


def letters(alias: str, *, function: str | None = None, order: str = "last") -> Letters:
    """The groups of dead tasks, the newest first.

    Args:
        function: only those of this one.
        order: one of `ORDERS`.
    """
    with databases.time_limit(alias, PATIENCE), _by_index(alias):
        found = _read(alias, function, order, of_each=function is not None)
        if not found.is_cut and found.tasks > MOST:
            found = _read(alias, function, order, of_each=True)
            found.is_cut = True
        _add_samples(alias, found.groups)
    return found


@contextmanager
def _by_index(alias: str) -> Iterator[None]:
    """Where the planner believes that few tasks are dead, or knows that no page is all visible, it would read the rows.

    For the transaction that is open, as far as it goes; it holds behind a pooler too.
    """
    switches = "SELECT set_config(name, %s, true) FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan']) AS name"
    with connections[alias].cursor() as cursor:
        cursor.execute(switches, ["off"])
        yield
        cursor.execute(switches, ["on"])


def _read(alias: str, function: str | None, order: str, *, of_each: bool) -> Letters:
    values = {"most": MOST, "function": function, "functions": FUNCTIONS, "groups": GROUPS}
    few, groups = (_FEW, _OF_EACH) if of_each else ("", _ALL)
    with connections[alias].cursor() as cursor:
        cursor.execute(_GROUPS.format(few=few, groups=groups, order=ORDERS[order]), values)
        rows = cursor.fetchall()
    found = Letters([Group(*row[:7]) for row in rows])
    for *_, now, number, tasks, functions in rows[:1]:
        found.now, found.number, found.tasks = now, number, tasks
        found.is_cut = functions == FUNCTIONS or (of_each and tasks >= MOST)
    return found


# The newest task of each group and its last attempt, by one probe of an index each, and how many died in each hour of
# the last day. NULL needs a condition of its own. A condition on `finished_at` alone would let the planner take the
# index `dhara_task_finished`, and so read all dead tasks for each group.
_SINCE = "now() - make_interval(hours => %(hours)s)"
_SAMPLES = """/* dhara:dead_samples */
SELECT wanted.nr, newest.id, last.message, last.traceback, coalesce(day.hours, '{{}}')
FROM unnest(%(backend)s::text[], %(function)s::text[], %(class)s::text[], %(place)s::text[])
     WITH ORDINALITY AS wanted(backend, function, class, place, nr)
CROSS JOIN LATERAL (
    SELECT id FROM dhara_task AS task
    WHERE state = 'DEAD' AND task.backend = wanted.backend AND task.function = wanted.function
          AND task.error_class {class_} AND task.error_fingerprint {place_}
    ORDER BY finished_at DESC LIMIT 1) AS newest
LEFT JOIN LATERAL (
    SELECT left(message, 1000) AS message, right(traceback, %(frames)s) AS traceback FROM dhara_attempt
    WHERE task_id = newest.id ORDER BY dhara_attempt.id DESC LIMIT 1) AS last ON true
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(extract(epoch FROM now() - hour)::int / 3600, number)::text AS hours
    FROM (SELECT date_bin('1 hour', least(finished_at, now() - interval '1 us'), now()) + interval '1 hour' AS hour,
                 count(*) AS number
          FROM dhara_task AS task
          WHERE state = 'DEAD' AND task.backend = wanted.backend AND task.function = wanted.function
                AND task.error_class {class_} AND task.error_fingerprint {place_}
                AND {since}
          GROUP BY 1) AS by_hour) AS day
"""


def _add_samples(alias: str, groups: Iterable[Group]) -> None:
    def shape(group: Group) -> tuple[bool, bool]:
        return group.error_class is None, group.place is None

    for (no_class, no_place), alike in groupby(sorted(groups, key=shape), key=shape):
        statement = _SAMPLES.format(
            class_="IS NULL" if no_class else "= wanted.class",
            place_="IS NULL" if no_place else "= wanted.place",
            since=f"finished_at > {_SINCE}"
            if no_place
            else f"(error_fingerprint, finished_at) > (wanted.place, {_SINCE})",
        )
        _add_samples_to(alias, statement, list(alike))


def _add_samples_to(alias: str, statement: str, groups: list[Group]) -> None:
    backends, functions, classes, places = (list(names) for names in zip(*(group.key for group in groups), strict=True))
    values = {"backend": backends, "function": functions, "class": classes, "place": places}
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, {**values, "frames": FRAMES, "hours": HOURS})
        for number, id_, message, trace, hours in cursor.fetchall():
            group, by_hour = groups[number - 1], json.loads(hours)
            group.hours = [by_hour.get(str(hour), 0) for hour in range(HOURS)]
            group.task, group.message = id_, first_line(message or "")
            group.frame = traces.own_frame(trace or "", group.function)


# One group


def members(alias: str, key: Key) -> TaskQuerySet:
    """Its dead tasks."""
    backend, function, error_class, place = key
    tasks = Task.objects.using(alias).filter(state=State.DEAD, backend=backend, function=function)
    by_class = Q(error_class__isnull=True) if error_class is None else Q(error_class=error_class)
    by_place = Q(error_fingerprint__isnull=True) if place is None else Q(error_fingerprint=place)
    return tasks.filter(by_class, by_place)


def count(tasks: TaskQuerySet) -> int:
    """How many there are, or `MOST` + 1 if there are more."""
    return tasks.order_by("-finished_at").values("finished_at")[: MOST + 1].count()


_UNTIL = "(error_fingerprint, finished_at) <= (%s, %s)"


def newest(tasks: TaskQuerySet, place: str | None, before: tuple[datetime, UUID] | None) -> list[Any]:
    """A page of them, newest first, and one more if there is another page.

    Args:
        place: of the group.
        before: `finished_at` and id of the last one of the page before.
    """
    if before is not None:
        when, id_ = before
        # As in `_SAMPLES`: said of two columns it is the index of dead letters that serves.
        bound = RawSQL(_UNTIL, [place, when], output_field=BooleanField())  # noqa: S611 - parameters
        tasks = tasks.filter(Q(finished_at__lte=when) if place is None else bound)
        tasks = tasks.exclude(finished_at=when, id__gte=id_)
    ordered = tasks.order_by("-finished_at", "-id").annotate(now=Now())
    shown = ("id", "function", "queue", "failures", "lost", "max_attempts", "state", "enqueued_at", "finished_at")
    return list(ordered.only(*shown)[: TASKS + 1])


@dataclass(slots=True)
class Sample:
    """The last error of a task, and its arguments."""

    task: Any
    attempt: Any = None
    pieces: list[traces.Piece] = field(default_factory=list)
    payload: scene.Document | None = None


def sample(alias: str, tasks: TaskQuerySet) -> Sample | None:
    """Of the newest one."""
    first = tasks.order_by("-finished_at").values_list("pk", flat=True).first()
    task = scene.with_documents(Task.objects.using(alias)).filter(pk=first).first() if first else None
    if task is None:
        return None
    attempts = Attempt.objects.using(alias).filter(task_id=task.pk).defer("traceback", "message")
    attempt: Any = (
        attempts.annotate(
            told=Left("message", 2000), trace=Right("traceback", scene.TRACEBACK), size=Length(F("traceback"))
        )
        .order_by("-id")
        .first()
    )
    pieces = traces.pieces(attempt.trace, task.function) if attempt else []
    payload = next((each for each in scene.documents(task) if each.name == "payload"), None)
    return Sample(task, attempt, pieces, payload)
