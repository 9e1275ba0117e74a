"""What the database says: queues, workers, tables. Every site says the same, so these are gauges to take the maximum
of, not the sum: `max without (instance) (dhara_queue_tasks)`.

Each look is a few statements that are stopped after two seconds, at most once in five seconds for each process, and by
one thread at a time. A part that takes too long is left out, and `dhara_look_failed` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Any

from django.db import Error
from django.utils import timezone
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from django_dhara import events, meter, sql, stats
from django_dhara.backend import DharaBackend
from django_dhara.metrics.families import gauge

#: What was read is told again for so long.
FRESH_SECONDS = 5.0
#: A statement may take so long.
STATEMENT_SECONDS = 2.0

Values = dict[tuple[str, ...], float]


class QueueFamilies(Collector):
    """Of the databases of these backends.

    Args:
        backends: asked at each look, since settings are read when they are needed.
    """

    def __init__(self, backends: Callable[[], list[DharaBackend]], clock: Callable[[], float] = monotonic) -> None:
        self._backends, self._clock = backends, clock
        self._guard = threading.Lock()
        self._told: list[Metric] = []
        self._looked_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        with self._guard:
            if self._clock() - self._looked_at >= FRESH_SECONDS:
                self._told = list(Look(self._backends()).families())
                self._looked_at = self._clock()
            return self._told


class Look:
    """One look at everything, part by part."""

    def __init__(self, backends: list[DharaBackend]) -> None:
        self._backends = backends
        self._values: dict[str, Values] = {name: {} for name in _GAUGES}
        self._failed: Values = {}

    def families(self) -> Iterator[Metric]:
        for backend in self._backends:
            alias = backend.settings.database
            self._try(alias, f"tasks of {backend.alias}", partial(self._tasks, backend))
            self._try(alias, f"queues of {backend.alias}", partial(self._queues, backend))
            self._try(alias, f"workers of {backend.alias}", partial(self._workers, backend))
        for alias in dict.fromkeys(backend.settings.database for backend in self._backends):
            self._try(alias, "tables", partial(self._tables, alias))
        for name, (text, labels) in _GAUGES.items():
            yield gauge(name, text, labels, self._values[name])
        text = "1 where this part could not be read in time, or not at all, and is missing."
        yield gauge("dhara_look_failed", text, ("database", "part"), self._failed)

    def _try(self, alias: str, part: str, look: Callable[[], None]) -> None:
        try:
            look()
            self._failed[alias, part] = 0
        except (stats.TooSlow, Error) as error:
            self._failed[alias, part] = 1
            events.METRICS_FAILED.murmur((alias, part), part=part, database=alias, reason=error)

    def _tasks(self, backend: DharaBackend) -> None:
        for status, number in stats.standing(backend.settings.database, backend.alias)._asdict().items():
            self._values["dhara_tasks"][backend.alias, status] = number

    def _queues(self, backend: DharaBackend) -> None:
        now = timezone.now()
        for waiting in stats.waiting(backend.settings.database, backend.alias):
            pair = backend.alias, waiting.queue
            tasks = self._values["dhara_queue_tasks"]
            if len(tasks) >= 3 * meter.most_series:
                pair = backend.alias, meter.OTHER
            for status in ("ready", "scheduled", "retries"):
                tasks[*pair, status] = tasks.get((*pair, status), 0) + getattr(waiting, status)
            age = (now - waiting.ready_since).total_seconds() if waiting.ready_since else 0.0
            ages = self._values["dhara_queue_oldest_ready_seconds"]
            ages[pair] = max(ages.get(pair, 0.0), age)
            paused = self._values["dhara_queue_paused"]
            paused[pair] = max(paused.get(pair, 0), waiting.paused_at is not None)

    def _workers(self, backend: DharaBackend) -> None:
        seen = stats.workers(backend.settings.database, backend.alias)
        for status in ("alive", "draining", "late", "lost"):
            found = [worker for worker in seen if worker.status == status]
            self._values["dhara_workers"][backend.alias, status] = len(found)
        living = [worker for worker in seen if worker.lives]
        self._values["dhara_slots"][backend.alias, "all"] = sum(worker.concurrency for worker in living)
        self._values["dhara_slots"][backend.alias, "busy"] = sum(worker.busy for worker in living)

    def _tables(self, alias: str) -> None:
        with sql.time_limit(alias, STATEMENT_SECONDS):
            rows: Any = sql.on(alias)(_TABLES, {})
        for name, label, value in rows:
            self._values[name][(alias, label) if label else (alias,)] = float(value)


#: Each gauge that is read from the database: its help, and its labels.
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dhara_tasks": (
        f"Tasks by what they wait for, counted up to {stats.COUNT_LIMIT}; suspects were running when a worker died.",
        ("backend", "status"),
    ),
    "dhara_queue_tasks": (
        f"Waiting tasks of a queue, counted up to {stats.DEPTH_LIMIT} for each priority; retries are scheduled, too.",
        ("backend", "queue", "status"),
    ),
    "dhara_queue_oldest_ready_seconds": ("For how long the oldest ready task has waited.", ("backend", "queue")),
    "dhara_queue_paused": ("1 while nothing is claimed from a queue.", ("backend", "queue")),
    "dhara_workers": ("Workers; late ones have given no sign of life for their lease.", ("backend", "status")),
    "dhara_slots": ("Plain functions that the workers can run at once, and slots in use.", ("backend", "status")),
    "dhara_table_rows": ("Rows by PostgreSQL's estimate; dead ones wait for vacuum.", ("database", "kind")),
    "dhara_table_bytes": ("Size of the table of tasks, and of the index that claims walk.", ("database", "part")),
    "dhara_vacuum_age_seconds": ("Since the table of tasks was last vacuumed.", ("database",)),
    "dhara_oldest_snapshot_seconds": (
        "Age of the oldest transaction in this database: while it lasts no dead row can be removed.",
        ("database",),
    ),
}

#: The ready index by its name: a partitioned or renamed one is not ours.
_TABLES = """/* dhara:metrics_tables */
SELECT 'dhara_table_rows', kind, n FROM pg_stat_user_tables
CROSS JOIN LATERAL (VALUES ('live', n_live_tup), ('dead', n_dead_tup)) AS tuple(kind, n)
WHERE relid = 'dhara_task'::regclass
UNION ALL
SELECT 'dhara_table_bytes', 'table', pg_table_size('dhara_task')
UNION ALL
SELECT 'dhara_table_bytes', 'ready index', pg_relation_size(to_regclass('dhara_task_ready'))
WHERE to_regclass('dhara_task_ready') IS NOT NULL
UNION ALL
SELECT 'dhara_vacuum_age_seconds', NULL,
       extract(epoch FROM statement_timestamp() - greatest(last_vacuum, last_autovacuum))
FROM pg_stat_user_tables
WHERE relid = 'dhara_task'::regclass AND greatest(last_vacuum, last_autovacuum) IS NOT NULL
UNION ALL
SELECT 'dhara_oldest_snapshot_seconds', NULL,
       coalesce(extract(epoch FROM statement_timestamp() - min(xact_start)), 0)
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
  AND backend_type NOT LIKE 'autovacuum%%' AND (datname = current_database() OR datname IS NULL)
"""
