"""What there is now: counts that stop early, what waits in each queue, and the workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from django.db.models import Count, Q
from django.db.models.functions import Now

from django_dhara import fleet, sql
from django_dhara.models import Task, TaskQuerySet
from django_dhara.states import State
from django_dhara.stats.past import LIMIT_SECONDS

#: A count stops here: "more than 10,000" tells as much, and costs milliseconds at any size of the table.
COUNT_LIMIT = 10_000
#: What is counted of one queue and priority, and how many of these pairs are looked at.
DEPTH_LIMIT, LANES = 2_000, 1_000
#: Workers that are looked at, and for how many seconds one that is lost is still spoken of.
WORKERS, LOST_SECONDS = 1_000, 3600


class Standing(NamedTuple):
    """The tasks of a backend at one moment; each count stops at `COUNT_LIMIT`."""

    ready: int
    scheduled: int
    running: int
    suspects: int
    dead: int


def standing(alias: str, backend: str | None) -> Standing:
    """How many tasks there are, by what they wait for.

    Args:
        alias: the database.
        backend: only of this one; None: of all in the database.

    Raises:
        TooSlow: one of the counts would take longer than `LIMIT_SECONDS`.
    """
    tasks: TaskQuerySet = Task.objects.using(alias)
    tasks = tasks if backend is None else tasks.filter(backend=backend)
    with sql.time_limit(alias, LIMIT_SECONDS):
        return Standing(
            ready=_capped(tasks.ready().trusted()),
            scheduled=_capped(tasks.scheduled().trusted()),
            running=_capped(tasks.running()),
            suspects=_capped(tasks.pending().suspects()),
            dead=_capped(tasks.filter(state=State.DEAD, finished_at__isnull=False)),
        )


def _capped(tasks: TaskQuerySet) -> int:
    return tasks.order_by().values("id")[:COUNT_LIMIT].count()


class Waiting(NamedTuple):
    """What waits in a queue now. A queue in which nothing waits has none, unless it is paused.

    Each count stops at `DEPTH_LIMIT` for each priority: then `is_capped`.
    """

    backend: str
    queue: str
    ready: int
    scheduled: int
    #: Of the scheduled ones, those that failed before.
    retries: int
    is_capped: bool
    #: When the task that has been ready for longest became so.
    ready_since: datetime | None
    #: When the next of the retries is due.
    next_retry: datetime | None
    paused_at: datetime | None


# A walk over the pairs of queue and priority in which somebody waits, one probe of the index for each, as a claim makes
# it; then a few short looks into each. The ORM knows no WITH RECURSIVE.
_WAITING = f"""/* dhara:stats_waiting */
WITH RECURSIVE lane AS (
    (SELECT backend, queue, priority FROM dhara_task
     WHERE state = 'PENDING' AND lost = 0 AND (%(backend)s::text IS NULL OR backend = %(backend)s)
     ORDER BY backend, queue, priority LIMIT 1)
    UNION ALL
    SELECT following.* FROM lane CROSS JOIN LATERAL (
        SELECT backend, queue, priority FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND (backend, queue, priority) > (lane.backend, lane.queue, lane.priority)
          AND (%(backend)s::text IS NULL OR backend = %(backend)s)
        ORDER BY backend, queue, priority LIMIT 1) AS following
),
looked_at AS (
    SELECT lane.backend, lane.queue, oldest.run_at AS ready_since, ready.number AS ready, later.*
    FROM (SELECT * FROM lane LIMIT {LANES}) AS lane
    LEFT JOIN LATERAL (
        SELECT run_at FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND run_at <= statement_timestamp()
          AND (backend, queue, priority) = (lane.backend, lane.queue, lane.priority)
        ORDER BY backend, queue, priority, run_at LIMIT 1) AS oldest ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT run_at FROM dhara_task
            WHERE state = 'PENDING' AND lost = 0 AND run_at <= statement_timestamp()
              AND (backend, queue, priority) = (lane.backend, lane.queue, lane.priority)
            ORDER BY backend, queue, priority, run_at LIMIT {DEPTH_LIMIT}) AS few) AS ready
    CROSS JOIN LATERAL (
        SELECT count(*) AS scheduled, count(*) FILTER (WHERE failures > 0) AS retries,
               min(run_at) FILTER (WHERE failures > 0) AS next_retry FROM (
            SELECT failures, run_at FROM dhara_task
            WHERE state = 'PENDING' AND lost = 0 AND run_at > statement_timestamp()
              AND (backend, queue, priority) = (lane.backend, lane.queue, lane.priority)
            ORDER BY backend, queue, priority, run_at LIMIT {DEPTH_LIMIT}) AS few) AS later
),
waiting AS (
    SELECT backend, queue AS name, sum(ready) AS ready, sum(scheduled) AS scheduled, sum(retries) AS retries,
           max(greatest(ready, scheduled)) >= {DEPTH_LIMIT} AS is_capped, min(ready_since) AS ready_since,
           min(next_retry) AS next_retry
    FROM looked_at GROUP BY backend, queue
),
paused AS (
    SELECT backend, name, paused_at FROM dhara_queue
    WHERE paused_at IS NOT NULL AND (%(backend)s::text IS NULL OR backend = %(backend)s)
    ORDER BY backend, name LIMIT {LANES}
)
SELECT backend, name, coalesce(ready, 0), coalesce(scheduled, 0), coalesce(retries, 0), coalesce(is_capped, false),
       ready_since, next_retry, paused_at
FROM waiting FULL JOIN paused USING (backend, name) ORDER BY backend, name
"""


def waiting(alias: str, backend: str | None) -> list[Waiting]:
    """What waits in each queue, of at most `LANES` pairs of queue and priority.

    Raises:
        TooSlow: it would take longer than `LIMIT_SECONDS`.
    """
    rows = _bounded(alias, _WAITING, {"backend": backend})
    return [Waiting(*row[:2], *map(int, row[2:5]), *row[5:]) for row in rows]


class WorkerSeen(NamedTuple):
    """A worker that lives, is late, or was lost within `LOST_SECONDS`; see `fleet.Status`."""

    id: UUID
    backend: str
    name: str
    host: str
    pid: int
    queues: list[str]
    exclude_queues: list[str]
    concurrency: int
    started_at: datetime
    heartbeat_at: datetime
    status: Literal["alive", "draining", "late", "lost"]
    #: Tasks that are its own, those that wait within it included.
    running: int

    @property
    def lives(self) -> bool:
        """It claims, or finishes what it has."""
        return self.status in ("alive", "draining")

    @property
    def busy(self) -> int:
        """Slots in use."""
        return min(self.running, self.concurrency)

    def serves(self, backend: str, queue: str) -> bool:
        """Would it claim a task of this queue now?"""
        return (
            self.status == "alive" and self.backend == backend and fleet.takes(queue, self.queues, self.exclude_queues)
        )


_SEEN = (
    "id",
    "backend",
    "name",
    "host",
    "pid",
    "queues",
    "exclude_queues",
    "concurrency",
    "started_at",
    "heartbeat_at",
)


def workers(alias: str, backend: str | None) -> list[WorkerSeen]:
    """The workers that live, and those that are late or lost, the lost ones for an hour.

    Raises:
        TooSlow: it would take longer than `LIMIT_SECONDS`.
    """
    since = Now() - timedelta(seconds=LOST_SECONDS)
    known = Q(status__in=fleet.PRESENT) | Q(status=fleet.Status.LOST, heartbeat_at__gt=since)
    rows = fleet.workers(alias).filter(known, **({} if backend is None else {"backend": backend}))
    with sql.time_limit(alias, LIMIT_SECONDS):
        counts: Any = Task.objects.using(alias).running().order_by().values_list("worker_id")
        running = dict(counts.annotate(number=Count("pk")))
        found = list(rows.order_by("host", "pid", "started_at", "id").values_list(*_SEEN, "status")[:WORKERS])
    return [
        WorkerSeen._make([*row[:5], *map(fleet.names, row[5:7]), *row[7:10], row[10].lower(), running.get(row[0], 0)])
        for row in found
    ]


class Died(NamedTuple):
    """Tasks of one function that died lately."""

    function: str
    number: int
    first: datetime
    last: datetime


_DIED = f"""/* dhara:stats_died */
SELECT function, count(*), min(finished_at), max(finished_at) FROM (
    SELECT function, finished_at, backend FROM dhara_task
    WHERE state = 'DEAD' AND finished_at > statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY finished_at DESC LIMIT {DEPTH_LIMIT}) AS dead
WHERE %(backend)s::text IS NULL OR backend = %(backend)s
GROUP BY function ORDER BY count(*) DESC, function
"""


def died(alias: str, backend: str | None, seconds: float) -> list[Died]:
    """What died in the last `seconds`, by function, most first; of at most the last `DEPTH_LIMIT` dead tasks.

    Raises:
        TooSlow: it would take longer than `LIMIT_SECONDS`.
    """
    return [Died(*row) for row in _bounded(alias, _DIED, {"backend": backend, "seconds": seconds})]


class Holder(NamedTuple):
    """Somebody who holds an old snapshot: dead rows stay in the table while they do."""

    kind: Literal["session", "prepared", "slot"]
    #: The application's name, the prepared transaction's, or the slot's.
    name: str
    user: str
    #: Of a session.
    pid: int | None
    #: When its transaction began; of a slot nobody knows.
    since: datetime | None
    #: Transactions that began since.
    transactions: int


#: A snapshot is old after this many seconds, or after so many transactions where its time is not known.
HELD_SECONDS, HELD_TRANSACTIONS = 300, 200_000

# Without the role pg_read_all_stats PostgreSQL shows the transactions of one's own role only.
_HOLDERS = f"""/* dhara:stats_holders */
SELECT * FROM (
    SELECT 'session' AS kind, coalesce(application_name, '') AS name, coalesce(usename, '')::text, pid,
           xact_start AS since, greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
      AND backend_type NOT LIKE 'autovacuum%%' AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT 'prepared', gid, owner::text, NULL, prepared, age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'slot', slot_name::text, '', active_pid, NULL, age(xmin)
    FROM pg_replication_slots WHERE xmin IS NOT NULL) AS holder
WHERE since < statement_timestamp() - interval '{HELD_SECONDS} seconds'
   OR (since IS NULL AND transactions > {HELD_TRANSACTIONS})
ORDER BY since NULLS LAST, transactions DESC LIMIT 20
"""


def holders(alias: str) -> list[Holder]:
    """Who holds vacuum back in this database, the oldest first.

    Raises:
        TooSlow: it would take longer than `LIMIT_SECONDS`.
    """
    return [Holder(*row) for row in _bounded(alias, _HOLDERS, {})]


def _bounded(alias: str, statement: str, parameters: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
    with sql.time_limit(alias, LIMIT_SECONDS):
        return sql.on(alias)(statement, parameters)
