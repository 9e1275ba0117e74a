"""What the database says after the play, and whether that is what was promised."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from example_project.shop.demo.stage import FUNCTIONS
from example_project.shop.orders import LARGE


class Comeback(NamedTuple):
    """The tasks that a killed worker had in its hands."""

    worker: str
    tasks: int
    #: How many of them run again, or did, and after how many seconds since the kill.
    back: int
    first: float | None
    last: float | None
    #: Receipts that the killed runs had written before the kill.
    written: int

    @property
    def span(self) -> str:
        first, last = f"{self.first:.1f}", f"{self.last:.1f}"
        return f"{last} s" if first == last else f"{first} to {last} s"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it counted by the database, except how many transactions the demo rolled back."""

    orders: int
    rolled_back: int
    tasks: dict[str, int]
    failed_runs: int
    lost_runs: int
    per_worker: dict[str, int]
    #: Milliseconds from due to started: the median, and what 95 % and 99 % of the tasks did not exceed.
    latency: tuple[float, float, float] | None
    comeback: Comeback | None
    #: The four that must be 0.
    duplicates: int
    strangers: int
    unserved: int
    pieces_off: int

    @property
    def zeros(self) -> dict[str, int]:
        return {
            "duplicate receipts": self.duplicates,
            "receipts without an order": self.strangers,
            "orders without a receipt": self.unserved,
            "pieces reordered twice or never": self.pieces_off,
        }

    def wrong(self) -> str:
        """What is not as promised, in one line; empty if all is well."""
        return ", ".join(f"{name}: {count}" for name, count in self.zeros.items() if count)


def read(rolled_back: int, killed: "Killed | None") -> Report:
    """Ask the database."""
    counts = dict(zip(_COUNTED, _row(_COUNTS, {"functions": FUNCTIONS, "large": LARGE}), strict=True))
    return Report(
        rolled_back=rolled_back,
        tasks=dict(
            _rows("SELECT state, count(*) FROM dhara_task WHERE function = ANY(%(f)s) GROUP BY 1 ORDER BY 1", _F)
        ),
        per_worker=dict(_rows(_PER_WORKER, _F)),
        latency=_latency(),
        comeback=killed and comeback(killed),
        **counts,
    )


_F = {"f": FUNCTIONS}
_COUNTED = ("orders", "failed_runs", "lost_runs", "duplicates", "strangers", "unserved", "pieces_off")
_COUNTS = """
WITH attempt AS (SELECT ended FROM dhara_attempt WHERE task_id IN (
    SELECT id FROM dhara_task WHERE function = ANY(%(functions)s)))
SELECT (SELECT count(*) FROM shop_order),
       (SELECT count(*) FROM attempt WHERE ended <> 'LOST'),
       (SELECT count(*) FROM attempt WHERE ended = 'LOST'),
       (SELECT count(*) - count(DISTINCT order_id) FROM shop_receipt),
       (SELECT count(*) FROM shop_receipt WHERE order_id NOT IN (SELECT id FROM shop_order)),
       (SELECT count(*) FROM shop_order WHERE id NOT IN (SELECT order_id FROM shop_receipt)),
       (SELECT coalesce(sum(abs(product.reordered - coalesce(wanted.pieces, 0))), 0)::int FROM shop_product AS product
        LEFT JOIN (SELECT product_id, sum(quantity) AS pieces FROM shop_order WHERE quantity >= %(large)s
                   GROUP BY product_id) AS wanted ON wanted.product_id = product.id)
"""
_PER_WORKER = """
SELECT coalesce(worker.name, 'a worker without a row'), count(*)
FROM dhara_task AS task LEFT JOIN dhara_worker AS worker ON worker.id = task.worker_id
WHERE function = ANY(%(f)s) AND state = 'COMPLETED' GROUP BY 1 ORDER BY 1
"""


#: None of the demo's tasks is scheduled for later: each is due when it is enqueued. `run_at` tells no more, since a
#: retry moves it.
_LATENCY = """
SELECT percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (
    ORDER BY 1000 * extract(epoch FROM started_at - enqueued_at)::float8)
FROM dhara_task WHERE function = ANY(%(f)s) AND started_at IS NOT NULL
"""


def _latency() -> tuple[float, float, float] | None:
    (found,) = _row(_LATENCY, _F)
    return found and tuple(found)


class Killed(NamedTuple):
    """The worker that was killed, when by the database's clock, and what it had in its hands."""

    name: str
    id: UUID
    at: datetime
    tasks: list[UUID]


#: The start of the run after the lost one: of the next run that left an attempt, else of the newest run. The worker of
#: a task that waits is none, and that of a task nobody has taken back yet is still the killed one.
_COMEBACK = """
WITH again AS (
    SELECT task.id, task.function, task.payload, CASE WHEN lost.id IS NOT NULL THEN coalesce(
        (SELECT min(started_at) FROM dhara_attempt AS later WHERE later.task_id = task.id AND later.id > lost.id),
        CASE WHEN task.worker_id <> %(worker)s THEN task.attempted_at END) END AS at
    FROM dhara_task AS task
    LEFT JOIN dhara_attempt AS lost ON lost.task_id = task.id AND lost.worker_id = %(worker)s AND lost.ended = 'LOST'
    WHERE task.id = ANY(%(tasks)s)
)
SELECT count(at), extract(epoch FROM min(at) - %(killed)s)::float8, extract(epoch FROM max(at) - %(killed)s)::float8,
       count(*) FILTER (WHERE function = %(receipt)s AND EXISTS (
           SELECT FROM shop_receipt WHERE order_id = (payload->'args'->>0)::bigint AND sent_at <= %(killed)s))
FROM again
"""


def comeback(killed: Killed) -> Comeback:
    """Where the tasks of the killed worker are now."""
    values = {"worker": killed.id, "tasks": killed.tasks, "killed": killed.at, "receipt": FUNCTIONS[0]}
    back, first, last, written = _row(_COMEBACK, values)
    return Comeback(killed.name, len(killed.tasks), back, first, last, written)


def told(report: Report) -> Iterator[tuple[str, str]]:
    """The report as lines: a name and what there is to say."""
    yield "orders", f"{report.orders} placed, {report.rolled_back} rolled back with their tasks"
    yield "tasks", ", ".join(f"{count} {state}" for state, count in report.tasks.items()) or "none"
    yield "runs that failed", f"{report.failed_runs} (a flaky mail server), tried again"
    for name, count in report.per_worker.items():
        killed = report.comeback and report.comeback.worker == name
        yield f"tasks done by {name}", f"{count}, then killed" if killed else str(count)
    if report.latency:
        yield "from due to started", "p50 {:.0f} ms, p95 {:.0f} ms, p99 {:.0f} ms".format(*report.latency)
    if report.comeback:
        yield from _told_comeback(report.comeback)
    else:
        yield "runs cut off by a kill", "none: no worker was caught in mid-work"


def _told_comeback(found: Comeback) -> Iterator[tuple[str, str]]:
    yield "runs cut off by the kill", f"{found.tasks}; {found.back} repeated by other workers"
    if found.back:
        yield "running again after", f"{found.span} (lease 3 s, sweep 1 s)"
    written = f"{found.written}, found by the repetition, not repeated" if found.written else "none yet"
    yield "receipts these had written", written


def _row(statement: str, values: dict[str, Any]) -> tuple:
    (row,) = _rows(statement, values)
    return row


def _rows(statement: str, values: dict[str, Any]) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()
