"""The claim: ready tasks become a worker's."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django_dhara.models import Task
from django_dhara.sql import Execute, compiled, condition, number, text


@dataclass(slots=True)
class Claim:
    """A claimed task: what its run needs, as it came from the database. The payload is not yet decoded."""

    id: UUID
    lease: int
    function: str
    queue: str
    priority: int
    payload: str
    failures: int
    lost: int
    interrupted: int
    snoozed: int
    max_attempts: int
    timeout: float | None
    idempotency_key: str | None
    metadata: str | None
    checkpoint: str | None
    cancel_requested: bool
    enqueued_at: datetime
    run_at: datetime
    started_at: datetime
    attempted_at: datetime
    #: Seconds between being due and being claimed.
    waited: float
    #: Earlier failed and lost runs, as JSON: [[error class, traceback, worker], ...]; None if there are none.
    history: str | None

    @property
    def attempt(self) -> int:
        return self.failures + self.lost + 1

    @property
    def is_suspect(self) -> bool:
        return self.lost > 0


class Order(NamedTuple):
    """A command to this worker, from `dhara_command`."""

    id: int
    verb: str
    argument: Any


class Haul(NamedTuple):
    """What a claim brought: tasks in the order to start them, commands, and seconds until the next one is due."""

    claims: list[Claim]
    orders: list[Order]
    due_in: float | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker serves: a backend, queues by name (none: all), queues to leave out."""

    backend: str
    queues: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def claim(
    execute: Execute,
    alias: str,
    wanted: Wanted,
    worker: UUID,
    *,
    limit: int,
    suspects: int,
    lease_seconds: float,
    unknown: Collection[str] = (),
) -> Haul:
    """pending -> running: at most `limit` ready tasks become this worker's, and its commands are read on the way.

    Args:
        limit: 0 reads the commands only.
        suspects: how many of them may be suspects (0 or 1): a worker holds one at a time, so that a task that kills
            its worker takes no more than one run of each neighbour with it.
        unknown: paths of functions that this process does not have; they are left for others.
    """
    rows = execute(
        _statement(alias, named=bool(wanted.queues)),
        {
            "backend": wanted.backend,
            "queues": list(dict.fromkeys(wanted.queues)),  # a name given twice would spend the limit twice
            "exclude": list(wanted.exclude),
            "unknown": list(unknown),
            "worker": worker,
            "limit": limit,
            "suspects": min(suspects, limit),
            "lease": lease_seconds,
        },
    )
    claims = [Claim(*row[1:]) for row in rows if row[0] is None]
    claims.sort(key=lambda claim: (-claim.priority, claim.run_at, claim.id))
    [notes] = [json.loads(row[0]) for row in rows if row[0] is not None]
    return Haul(claims, [_order(*order) for order in notes["orders"] or ()], notes["due_in"])


def _order(id_: int, verb: str, argument: str | None) -> Order:
    """Anybody may have written the row: what Python's json cannot read is no argument of ours."""
    try:
        return Order(id_, verb, None if argument is None else json.loads(argument))
    except (ValueError, RecursionError):
        return Order(id_, verb, None)


#: A lane is a (queue, priority) in which somebody waits. The walk jumps from lane to lane along the ready index and
#: never sees the rows in between: a claim costs the same with a million scheduled tasks of a higher priority in front.
_LANES_OF_NAMED_QUEUES = """
    SELECT seed.queue, first.priority
    FROM unnest(%(queues)s::text[]) AS seed(queue) CROSS JOIN LATERAL (
        SELECT priority FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND backend = %(backend)s AND queue = seed.queue
        ORDER BY priority LIMIT 1) AS first
    UNION ALL
    SELECT lane.queue, next.priority
    FROM lane CROSS JOIN LATERAL (
        SELECT priority FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND backend = %(backend)s
              AND queue = lane.queue AND priority > lane.priority
        ORDER BY priority LIMIT 1) AS next
"""
_LANES_OF_ALL_QUEUES = """
    (SELECT queue, priority FROM dhara_task
     WHERE state = 'PENDING' AND lost = 0 AND backend = %(backend)s
     ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
    FROM lane CROSS JOIN LATERAL (
        SELECT queue, priority FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND backend = %(backend)s
              AND (queue, priority) > (lane.queue, lane.priority)
        ORDER BY queue, priority LIMIT 1) AS next
"""
#: May this worker take from the queue? Said of a lane and of a suspect.
_OPEN = """{queue} <> ALL (%(exclude)s::text[]) AND {queue} NOT IN (
    SELECT name FROM dhara_queue WHERE backend = %(backend)s AND paused_at IS NOT NULL)"""

#: Each due lane is asked in turn, the highest priority first and equal ones in random order with equal shares, until
#: `limit` tasks are locked. Suspects stand in an index of their own. Locked rows of other workers are skipped, and
#: a row that somebody claimed meanwhile is looked at again under its lock and no longer matches.
_STATEMENT = """/* dhara:claim */
WITH RECURSIVE lane(queue, priority) AS ({lanes}),
served AS MATERIALIZED (
    SELECT lane.queue, lane.priority, first.run_at
    FROM lane CROSS JOIN LATERAL (
        SELECT run_at FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND backend = %(backend)s
              AND queue = lane.queue AND priority = lane.priority
        ORDER BY run_at, id LIMIT 1) AS first
    WHERE %(limit)s > 0 AND {lane_is_open}
),
due AS MATERIALIZED (
    SELECT queue, priority, ceil(%(limit)s::numeric / count(*) OVER (PARTITION BY priority))::bigint AS share
    FROM served WHERE run_at <= statement_timestamp()
    ORDER BY priority DESC, random()
),
trusted AS MATERIALIZED (SELECT leg.* FROM due CROSS JOIN LATERAL ({leg}) AS leg LIMIT %(limit)s),
suspect AS MATERIALIZED ({suspect}),
chosen AS MATERIALIZED (
    SELECT id FROM (SELECT * FROM trusted UNION ALL SELECT * FROM suspect) AS candidate
    ORDER BY priority DESC, run_at, id LIMIT %(limit)s
),
claimed AS (
    UPDATE dhara_task AS task
    SET state = 'RUNNING', lease = task.lease + 1, worker_id = %(worker)s,
        lease_until = statement_timestamp() + make_interval(secs => %(lease)s),
        attempted_at = statement_timestamp(), started_at = coalesce(task.started_at, statement_timestamp())
    FROM chosen WHERE task.id = chosen.id
    RETURNING task.id, task.lease, task.function, task.queue, task.priority, task.payload::text, task.failures,
              task.lost, task.interrupted, task.snoozed, task.max_attempts, task.timeout, task.idempotency_key,
              task.metadata::text, task.checkpoint::text, task.cancel_requested_at IS NOT NULL, task.enqueued_at,
              task.run_at, task.started_at, task.attempted_at,
              extract(epoch FROM statement_timestamp() - greatest(task.run_at, task.enqueued_at))::float8,
              CASE WHEN task.failures + task.lost > 0 THEN (
                  SELECT jsonb_agg(jsonb_build_array(error_class, traceback, worker_id) ORDER BY attempt.id)::text
                  FROM dhara_attempt AS attempt WHERE attempt.task_id = task.id) END
)
SELECT NULL::text, claimed.* FROM claimed
UNION ALL
SELECT jsonb_build_object(
    'orders', (SELECT jsonb_agg(jsonb_build_array(id, verb, argument::text) ORDER BY id) FROM dhara_command
               WHERE worker_id = %(worker)s AND answered_at IS NULL),
    'due_in', (SELECT extract(epoch FROM min(run_at) - statement_timestamp()) FROM served
               WHERE run_at > statement_timestamp()))::text, {nothing}
"""


@cache
def _statement(alias: str, *, named: bool) -> str:
    """Compiled from `Task.objects.ready()`, the definition that admin, metrics and tests use, too."""
    mine: Any = (
        Task.objects.ready()
        .filter(condition("function <> ALL (%(unknown)s::text[])"), backend=text("%(backend)s"))
        .values_list("id", "priority", "run_at")
        .select_for_update(skip_locked=True)
    )
    leg = mine.trusted().filter(queue=text("due.queue"), priority=number("due.priority")).order_by("run_at", "id")
    suspect = mine.suspects().filter(condition(_OPEN.format(queue="queue")))
    if named:
        suspect = suspect.filter(condition("queue = ANY (%(queues)s::text[])"))
    return _STATEMENT.format(
        lanes=_LANES_OF_NAMED_QUEUES if named else _LANES_OF_ALL_QUEUES,
        lane_is_open=_OPEN.format(queue="lane.queue"),
        leg=compiled(leg, alias, limit="due.share"),
        suspect=compiled(suspect, alias, limit="%(suspects)s"),
        nothing=", ".join(["NULL"] * len(fields(Claim))),
    )
