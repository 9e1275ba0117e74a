"""What is examined: a database with the backends whose queues are in it, seen through one bounded session.

Every question is a transaction of its own that only reads, gives up after two seconds, and waits for no lock longer
than half of one. So the doctor can be called on a server that is in trouble without adding to it.

What waits and who works is asked here and not in `stats`: of each lane only its first task is wanted, where `stats`
counts; silent workers are spoken of for a day, and their versions compared, where `stats` lists those of an hour; and
`stats` asks on Django's connection, which in trouble is what may not be had. A draining worker is the same to both: it
is alive, and serves no queue.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from django_dhara import migrations
from django_dhara.backend import DharaBackend
from django_dhara.conf import Options
from django_dhara.worker.session import Session

#: A question takes no longer on the server, and waits no longer for a lock, in milliseconds.
STATEMENT_MS, LOCK_MS = 2000, 500
#: Nor does it take longer on this side, in seconds: the server may be out of reach.
DEADLINE_SECONDS = 5.0

_BOUNDS = f"""/* dhara:doctor */ SELECT set_config('statement_timeout', '{STATEMENT_MS}', true),
    set_config('lock_timeout', '{LOCK_MS}', true), set_config('transaction_read_only', 'on', true)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From when on something is a finding."""

    #: Seconds that a transaction may hold a snapshot or locks: a claim reads past everything that died since.
    held_seconds: float = 600.0
    #: Seconds that somebody may hold, or wait for, a lock of a whole table of ours: everybody else waits behind.
    table_lock_seconds: float = 5.0
    #: Seconds that a ready task may wait.
    ready_seconds: float = 300.0
    #: Seconds that workers of two versions may work side by side: a deploy is over by then.
    deploy_seconds: float = 3600.0
    #: Seconds by which the clock of this machine may differ from the server's.
    skew_seconds: float = 2.0
    #: Times the number of dead rows at which autovacuum should have begun.
    overdue_vacuums: float = 5.0
    #: Bytes that the index of ready tasks may have before its size is compared with what it holds.
    small_index_bytes: float = 8e6
    #: Bytes for each ready task in that index: a fresh one has about 100.
    entry_bytes: float = 1000.0
    #: Of the transaction ids: a table whose oldest row is older is not vacuumed any more. The server stops at 2.1e9.
    xid_age: float = 5e8
    #: Transactions since the snapshot of a standby or a slot, which has no time of its own.
    xmin_age: float = 1e6
    #: Share of the notification queue that may be used.
    notify_share: float = 0.1
    #: Share of the connections that may be used.
    connection_share: float = 0.9
    #: Bytes of WAL that a replication slot may keep.
    slot_bytes: float = 1e10
    #: Milliseconds below which a statement_timeout or lock_timeout ends enqueues and settles that only had to wait.
    timeout_ms: float = 1000.0
    #: Dead letters of an hour, at least.
    dead_count: int = 10
    #: So many times the hourly mean of the day before.
    dead_factor: float = 3.0
    #: Days before the end of a server version's life.
    end_of_life_days: int = 0


class Case:
    """A database, and the backends that have their queues there."""

    def __init__(self, database: str, backends: Sequence[DharaBackend], limits: Limits) -> None:
        self.database, self.backends, self.limits = database, backends, limits
        self.session = Session(database, "dhara doctor", deadline_seconds=DEADLINE_SECONDS)

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """Ask one bounded question; rows with named columns.

        Raises:
            psycopg.Error: the server refused it, or gave no answer in time.
        """
        raw = self.session.raw
        try:
            with raw.transaction():
                raw.execute(_BOUNDS, prepare=False)
                with raw.cursor(row_factory=namedtuple_row) as cursor:
                    return cursor.execute(statement, parameters, prepare=False).fetchall()
        except psycopg.Error as error:
            if error.sqlstate is None:
                self.session.close()
            raise

    def row(self, statement: str, **parameters: Any) -> Any:
        """The only row of an answer."""
        [row] = self.rows(statement, **parameters)
        return row

    @cached_property
    def settings(self) -> dict[str, str]:
        """Every setting as a new session of this role has it, in its basic unit."""
        found = self.rows("SELECT name, coalesce(reset_val, setting, '') AS value FROM pg_settings")
        return {row.name: row.value for row in found}

    @cached_property
    def has_table(self) -> bool:
        return bool(self.row("SELECT to_regclass('dhara_task') IS NOT NULL AS found").found)

    @cached_property
    def unapplied(self) -> list[str]:
        """Migrations of ours that the code has and the database has not; its tables are then other ones, rightly."""
        known = sorted(module.name for module in pkgutil.iter_modules(migrations.__path__))
        applied = set[str]()
        if self.row("SELECT to_regclass('django_migrations') IS NOT NULL AS found").found:
            applied = {row.name for row in self.rows("SELECT name FROM django_migrations WHERE app = 'dhara'")}
        return [name for name in known if name not in applied]

    def of_backends(self) -> list[BackendCase]:
        return [BackendCase(self, backend) for backend in self.backends]


class BackendCase:
    """One backend in a database: what waits there, and who works."""

    def __init__(self, case: Case, backend: DharaBackend) -> None:
        self.case, self.alias, self.limits = case, backend.alias, case.limits
        self.options: Options = backend.settings

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """As `Case.rows`; `%(backend)s` is the alias."""
        return self.case.rows(statement, backend=self.alias, **parameters)

    @property
    def aggregates(self) -> str:
        """A FROM clause: what was settled at which time. Minutes are moved to quarters in time (`stats.rollup`)."""
        quarters = " UNION ALL SELECT start, backend, function, interrupted, dead FROM dhara_quarter"
        minutes = "SELECT minute AS start, backend, function, interrupted, dead FROM dhara_minute"
        return f"({minutes}{quarters if '0003_operators' not in self.case.unapplied else ''}) AS aggregate"

    @cached_property
    def lanes(self) -> list[Any]:
        """Each (queue, priority) in which a trusted task waits, with its first one's age in seconds; at most 1,000."""
        return self.rows(f"""WITH RECURSIVE {LANES}
            SELECT queue, priority, extract(epoch FROM statement_timestamp() - run_at)::float8 AS seconds
            FROM lane LIMIT 1000""")

    @cached_property
    def ready_queues(self) -> dict[str, float]:
        """Queues with a ready task, and how long its oldest one has waited, in seconds."""
        found: dict[str, float] = {}
        for lane in self.lanes:
            if lane.seconds > 0:
                found[lane.queue] = max(lane.seconds, found.get(lane.queue, 0.0))
        return found

    @cached_property
    def paused(self) -> dict[str, float]:
        """Paused queues, and for how long, in seconds."""
        found = self.rows("""
            SELECT name, extract(epoch FROM statement_timestamp() - paused_at)::float8 AS seconds FROM dhara_queue
            WHERE backend = %(backend)s AND paused_at IS NOT NULL""")
        return {row.name: row.seconds for row in found}

    @cached_property
    def workers(self) -> list[Any]:
        """Workers that have not taken their leave in the last day, with the age of their last word, in seconds."""
        return self.rows("""
            SELECT id, name, host, version, lease_seconds,
                   ARRAY(SELECT jsonb_array_elements_text(queues)) AS queues,
                   ARRAY(SELECT jsonb_array_elements_text(exclude_queues)) AS exclude,
                   draining_at IS NOT NULL AS is_draining,
                   extract(epoch FROM statement_timestamp() - heartbeat_at)::float8 AS silent,
                   extract(epoch FROM statement_timestamp() - started_at)::float8 AS age
            FROM dhara_worker
            WHERE backend = %(backend)s AND stopped_at IS NULL
                  AND heartbeat_at > statement_timestamp() - interval '1 day'
            ORDER BY name LIMIT 1000""")

    @property
    def alive(self) -> list[Any]:
        return [worker for worker in self.workers if worker.silent <= worker.lease_seconds]

    @property
    def claiming(self) -> list[Any]:
        """Those that are alive and take new tasks."""
        return [worker for worker in self.alive if not worker.is_draining]


_WAITS = "backend = %(backend)s AND state = 'PENDING' AND lost = 0"
#: A CTE: the first waiting task of each lane. It jumps along the index `dhara_task_ready` from lane to lane.
LANES = f"""lane AS (
    (SELECT queue, priority, run_at FROM dhara_task WHERE {_WAITS} ORDER BY queue, priority, run_at, id LIMIT 1)
    UNION ALL
    SELECT next.* FROM lane CROSS JOIN LATERAL (
        SELECT queue, priority, run_at FROM dhara_task
        WHERE {_WAITS} AND (queue, priority) > (lane.queue, lane.priority)
        ORDER BY queue, priority, run_at, id LIMIT 1) AS next
)"""
