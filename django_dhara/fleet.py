"""Queues and workers as operators see and steer them: who lives, what is paused; drain and stacks.

Everything names the alias in DATABASES that holds the queues, and costs a bounded number of rows however large the
table is. What waits, and what happened, tells `stats`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, FloatField, Func, QuerySet, TextChoices, Value, When
from django.db.models.functions import Greatest, Now

from django_dhara import operations, registry, sql
from django_dhara.models import Command, Queue, Worker

if TYPE_CHECKING:
    from django_dhara.backend import DharaBackend

# ------------------------------------------------------------------------------------------------------------- workers

#: A worker that has been silent for so many of its leases, and for so many seconds, is lost: nobody waits for it.
LOST_LEASES, LOST_SECONDS = 10, 300.0
#: Rows of workers, and of paused queues, that are read at most.
MOST_ROWS = 10_000


class Status(TextChoices):
    """What is known of a worker from its row."""

    ALIVE = "ALIVE", "Alive"
    DRAINING = "DRAINING", "Draining"
    #: Silent for longer than its lease.
    LATE = "LATE", "Late"
    #: Silent for so long that it will not come back: it was killed, or its machine is gone.
    LOST = "LOST", "Lost"
    STOPPED = "STOPPED", "Stopped"


#: Those that may still come back.
PRESENT = (Status.ALIVE, Status.DRAINING, Status.LATE)


def workers(alias: str) -> QuerySet[Any]:
    """The workers of a database, see `with_status`."""
    return with_status(Worker.objects.using(alias))


def with_status(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Workers, each with its `status`, and `now`, the database's time."""
    lost_after = Greatest(F("lease_seconds") * LOST_LEASES, Value(LOST_SECONDS), output_field=FloatField())
    status = Case(
        When(stopped_at__isnull=False, then=Value(Status.STOPPED)),
        When(heartbeat_at__lt=_ago(lost_after), then=Value(Status.LOST)),
        When(heartbeat_at__lt=_ago(F("lease_seconds")), then=Value(Status.LATE)),
        When(draining_at__isnull=False, then=Value(Status.DRAINING)),
        default=Value(Status.ALIVE),
    )
    annotated: QuerySet[Any] = rows.annotate(now=Now(), status=status)
    return annotated


def _ago(seconds: Any) -> Any:
    return Now() - Func(seconds, template="make_interval(secs => %(expressions)s)")


def names(column: Any) -> list[str]:
    """The names in a JSON column that anybody may have written."""
    listed = column if isinstance(column, list) else [column]
    return [name for name in listed if isinstance(name, str)]


def takes(queue: str, queues: Any, exclude_queues: Any) -> bool:
    """Does a worker with these columns claim tasks of this queue? No queues are all of them."""
    chosen = names(queues)
    return (not chosen or queue in chosen) and queue not in names(exclude_queues)


def is_served(alias: str, queue: str, backend: str | None = None) -> bool:
    """Is there a worker that lives, takes new tasks, and works on this queue, of this backend or of any?"""
    alive = workers(alias).filter(status=Status.ALIVE, **({"backend": backend} if backend else {}))
    return any(takes(queue, *each) for each in alive.values_list("queues", "exclude_queues")[:1000])


def order(alias: str, verb: Command.Verb, ids: Iterable[UUID]) -> list[Worker]:
    """Ask workers to drain, or for their stacks; they are woken and answer within a second.

    Returns:
        Those that were asked now. Not asked: who is gone, who was asked already and has not answered, and for a drain
        who drains.
    """
    able = [Status.ALIVE, Status.LATE] if verb == Command.Verb.DRAIN else PRESENT
    with transaction.atomic(using=alias):
        # Of two people who ask at once the second waits here, and then finds the command of the first.
        rows = workers(alias).filter(pk__in=list(ids), status__in=able).order_by("pk").select_for_update(no_key=True)
        found = {worker.pk: worker for worker in rows}
        commands = Command.objects.using(alias)
        is_open = commands.filter(worker_id__in=list(found), verb=verb, answered_at__isnull=True)
        asked = [found[id_] for id_ in found.keys() - set(is_open.values_list("worker_id", flat=True))]
        commands.bulk_create([Command(worker_id=worker.pk, verb=verb) for worker in asked])
        for backend, queue in {(worker.backend, next(iter(names(worker.queues)), "")) for worker in asked}:
            operations.wake_at_commit(alias, backend, queue)
    return asked


# -------------------------------------------------------------------------------------------------------------- queues


class PausedQueue(NamedTuple):
    """A queue of which workers claim nothing."""

    backend: str
    queue: str
    since: datetime
    #: The database's time.
    now: datetime


def paused_queues(alias: str) -> list[PausedQueue]:
    """The paused queues of a database, longest pause first."""
    paused = Queue.objects.using(alias).filter(paused_at__isnull=False).order_by("paused_at", "pk")
    rows: QuerySet[Any, Any] = paused.values_list("backend", "name", "paused_at", Now())
    return [PausedQueue(*row) for row in rows[:MOST_ROWS]]


class Held(NamedTuple):
    """Tasks of a queue beside those that wait in turn."""

    running: int
    #: Pending ones that were running when a worker died.
    suspects: int


#: Running tasks and suspects that are counted, in all.
MOST_HELD = 10_000

#: Both from small partial indexes, in whose order they are read, so that the planner takes them. The ORM would count
#: without a limit.
_HELD = f"""/* dhara:held */
SELECT backend, queue, count(*) FILTER (WHERE NOT is_suspect), count(*) FILTER (WHERE is_suspect) FROM (
    (SELECT backend, queue, false AS is_suspect FROM dhara_task WHERE state = 'RUNNING'
     ORDER BY worker_id LIMIT {MOST_HELD})
    UNION ALL
    (SELECT backend, queue, true FROM dhara_task WHERE state = 'PENDING' AND lost > 0
     ORDER BY backend, priority DESC, run_at, id LIMIT {MOST_HELD})) AS task
GROUP BY backend, queue
"""
_SERVED = """/* dhara:served */
SELECT backend, queue FROM dhara_minute WHERE minute > statement_timestamp() - interval '1 day'
UNION
SELECT backend, queue FROM dhara_quarter WHERE start > statement_timestamp() - interval '1 day'
"""


def lately_served(alias: str) -> set[tuple[str, str]]:
    """Backends and queues of which something was run in the last day."""
    return {(backend, queue) for backend, queue in sql.on(alias)(_SERVED, {})}


def held(alias: str) -> dict[tuple[str, str], Held]:
    """What runs, and what waits as a suspect, by backend and queue; of at most `MOST_HELD` tasks each."""
    return {(backend, queue): Held(*counts) for backend, queue, *counts in sql.on(alias)(_HELD, {})}


#: Tasks as in `_HELD`, and the first that waits, each in the order of its index, so that the planner takes that. The
#: tables of statistics are small, and hold 35 days.
_KNOWN = f"""/* dhara:known_queue */
SELECT (SELECT 1 FROM dhara_task
        WHERE backend = %(backend)s AND queue = %(queue)s AND state = 'PENDING' AND lost = 0
        ORDER BY backend, queue, priority, run_at LIMIT 1) IS NOT NULL
    OR EXISTS (SELECT FROM (SELECT backend, queue FROM dhara_task WHERE state = 'RUNNING'
                            ORDER BY worker_id LIMIT {MOST_HELD}) AS running
               WHERE backend = %(backend)s AND queue = %(queue)s)
    OR EXISTS (SELECT FROM (SELECT backend, queue FROM dhara_task WHERE state = 'PENDING' AND lost > 0
                            ORDER BY backend, priority DESC, run_at, id LIMIT {MOST_HELD}) AS suspect
               WHERE backend = %(backend)s AND queue = %(queue)s)
    OR EXISTS (SELECT FROM dhara_worker
               WHERE backend = %(backend)s AND (queues ? %(queue)s OR exclude_queues ? %(queue)s))
    OR EXISTS (SELECT FROM dhara_minute WHERE backend = %(backend)s AND queue = %(queue)s)
    OR EXISTS (SELECT FROM dhara_quarter WHERE backend = %(backend)s AND queue = %(queue)s)
"""


def is_known(backend: DharaBackend, queue: str) -> bool:
    """Does anything know a queue of this name: QUEUES, a function, a task that waits or runs, a worker that was told to
    serve it or to leave it out, or the statistics? If not it may be misspelt."""
    if queue in backend.queues or queue in registry.queues(backend.alias):
        return True
    return is_in_tables(sql.on(backend.settings.database), backend.alias, queue)


def is_in_tables(execute: sql.Execute, backend: str, queue: str) -> bool:
    """Does a row of ours name the queue, beside finished tasks and what was decided about it?"""
    [[known]] = execute(_KNOWN, {"backend": backend, "queue": queue})
    return bool(known)
