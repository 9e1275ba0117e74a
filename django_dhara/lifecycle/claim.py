"""The claim: ready tasks become a worker's."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
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


class View(NamedTuple):
    """What a claim need not look at. As it is made, it leaves out nothing.

    Args:
        since: lanes that are not in `places` are looked at from this `run_at` on; "-infinity": all lanes from their
            beginning.
        places: where each known lane began at the last look, as JSON.
    """

    since: str = "-infinity"
    places: str = "[]"

    @property
    def is_whole(self) -> bool:
        return self.since == "-infinity"


WHOLE = View()


class Haul(NamedTuple):
    """What a claim brought: tasks in the order to start them, commands, and seconds until the next one is due.

    `view` is for the next claim of the same worker: what lies before it was not waiting any more.
    """

    claims: list[Claim]
    orders: list[Order]
    due_in: float | None
    view: View


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
    view: View = WHOLE,
) -> Haul:
    """pending -> running: at most `limit` ready tasks become this worker's, and its commands are read on the way.

    Args:
        limit: 0 reads the commands only.
        suspects: how many of them may be suspects (0 or 1): a worker holds one at a time, so that a task that kills
            its worker takes no more than one run of each neighbour with it.
        unknown: paths of functions that this process does not have; they are left for others.
        view: of an earlier claim, for a look that is cheap though the rows of claimed tasks cannot be removed; see
            `worker/lanes.py`, which knows when everything must be looked at again.
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
            "since": view.since,
            "places": view.places,
        },
    )
    haul = _haul(rows)
    return haul if limit else haul._replace(view=view)


def _haul(rows: Sequence[tuple[Any, ...]]) -> Haul:
    """A row for each claimed task, and one of notes."""
    claims = [Claim(*row[3:]) for row in rows if row[0] is None]
    claims.sort(key=lambda claim: (-claim.priority, claim.run_at, claim.id))
    [(told, since, places)] = [row[:3] for row in rows if row[0] is not None]
    notes = json.loads(told)
    seen = WHOLE if places is None else View(since, places)
    return Haul(claims, [_order(*order) for order in notes["orders"] or ()], notes["due_in"], seen)


def _order(id_: int, verb: str, argument: str | None) -> Order:
    """Anybody may have written the row: what Python's json cannot read is no argument of ours."""
    try:
        return Order(id_, verb, None if argument is None else json.loads(argument))
    except (ValueError, RecursionError):
        return Order(id_, verb, None)


#: What the index `dhara_task_ready` has.
_WAITS = "state = 'PENDING' AND lost = 0 AND backend = %(backend)s"

#: A lane is a (queue, priority) in which somebody waits. The walk jumps from lane to lane along the ready index and
#: never sees the rows in between: a claim costs the same with a million scheduled tasks of a higher priority in front.
#: Known lanes are asked from their place on (see `served`); the walk looks for others in the gaps between them.
_LANES_OF_NAMED_QUEUES = f"""gap AS MATERIALIZED (
    SELECT queue, priority, lead(priority, 1, 101::smallint) OVER (PARTITION BY queue ORDER BY priority) AS until
    FROM (SELECT queue, priority FROM place
          UNION ALL SELECT unnest(%(queues)s::text[]), (-101)::smallint) AS edge
),
lane(queue, priority, run_at, id, until) AS (
    SELECT queue, priority, NULL::timestamptz, NULL::uuid, until FROM gap
    UNION ALL
    SELECT lane.queue, next.priority, next.run_at, next.id, lane.until
    FROM lane CROSS JOIN LATERAL (
        SELECT priority, run_at, id FROM dhara_task
        WHERE {_WAITS} AND queue = lane.queue AND priority > lane.priority AND priority < lane.until
              AND run_at >= %(since)s::timestamptz
        ORDER BY priority, run_at, id LIMIT 1) AS next
)"""
_LANES_OF_ALL_QUEUES = f"""gap AS MATERIALIZED (
    SELECT queue, priority, lead(queue) OVER edges AS until_queue, lead(priority) OVER edges AS until
    FROM (SELECT queue, priority FROM place UNION ALL SELECT '', 0::smallint) AS edge
    WINDOW edges AS (ORDER BY queue, priority)
),
lane(queue, priority, run_at, id, until_queue, until) AS (
    SELECT queue, priority, NULL::timestamptz, NULL::uuid, until_queue, until FROM gap
    UNION ALL
    SELECT next.queue, next.priority, next.run_at, next.id, lane.until_queue, lane.until
    FROM lane CROSS JOIN LATERAL (
        (SELECT queue, priority, run_at, id FROM dhara_task
         WHERE {_WAITS} AND (queue, priority) > (lane.queue, lane.priority)
               AND (queue, priority) < (lane.until_queue, lane.until) AND run_at >= %(since)s::timestamptz
         ORDER BY queue, priority, run_at, id LIMIT 1)
        UNION ALL  -- the last gap has no end
        (SELECT queue, priority, run_at, id FROM dhara_task
         WHERE lane.until IS NULL AND {_WAITS} AND (queue, priority) > (lane.queue, lane.priority)
               AND run_at >= %(since)s::timestamptz
         ORDER BY queue, priority, run_at, id LIMIT 1)) AS next
)"""
#: May this worker take from the queue? Said of a lane and of a suspect.
_OPEN = """{queue} <> ALL (%(exclude)s::text[]) AND {queue} NOT IN (
    SELECT name FROM dhara_queue WHERE backend = %(backend)s AND paused_at IS NOT NULL)"""

#: Transactions of up to so many seconds that enqueue while a worker looks are seen by its next look, whatever its view.
LATE_SECONDS = 0.25
#: Lanes in which nobody has waited for so many seconds are forgotten, and with more lanes than that all of them are.
EMPTY_SECONDS, MOST_LANES = 600, 1000

#: `served` is each lane with the first that waits in it, and so the place from which to look the next time. Each due
#: lane is asked in turn, the highest priority first and equal ones in random order with equal shares, until `limit`
#: tasks are locked. What some leave of their shares goes to the others of that priority (`rest`), before a lower one
#: gets any. Suspects stand in an index of their own. Locked rows of other workers are skipped, and a row that somebody
#: claimed meanwhile is looked at again under its lock and no longer matches. The rows are updated by a list of ids: the
#: planner takes every list for a short one and goes to each row by its key, whatever it believes about the rest.
_STATEMENT = """/* dhara:claim */
WITH RECURSIVE place AS MATERIALIZED (
    SELECT queue, priority, least(run_at, %(since)s::timestamptz) AS run_at, id, seen_at
    FROM jsonb_to_recordset(%(places)s::jsonb)
         AS place(queue text, priority smallint, run_at timestamptz, id uuid, seen_at timestamptz)
),
{lanes},
served AS MATERIALIZED (
    SELECT lane.*, {lane_is_open} AS is_open
    FROM (SELECT queue, priority, run_at, id, NULL::timestamptz AS seen_at FROM lane WHERE run_at IS NOT NULL
          UNION ALL
          SELECT place.queue, place.priority, first.run_at, first.id, place.seen_at
          FROM place LEFT JOIN LATERAL (
              SELECT run_at, id FROM dhara_task
              WHERE {waits} AND queue = place.queue AND priority = place.priority
                    AND (run_at, id) >= (place.run_at, place.id)
              ORDER BY run_at, id LIMIT 1) AS first ON true) AS lane
    WHERE %(limit)s > 0
),
due AS MATERIALIZED (
    SELECT queue, priority, run_at, id,
           ceil(%(limit)s::numeric / count(*) OVER (PARTITION BY priority))::bigint AS share
    FROM served WHERE is_open AND run_at <= statement_timestamp()
    ORDER BY priority DESC, random()
),
trusted AS MATERIALIZED (
    SELECT leg.*, due.share FROM due CROSS JOIN LATERAL ({leg}) AS leg LIMIT %(limit)s
),
generous AS MATERIALIZED (
    SELECT queue, priority, run_at, id, room FROM (
        SELECT DISTINCT ON (queue, priority) *,
               count(*) OVER (PARTITION BY queue, priority) AS taken,
               %(limit)s - count(*) OVER (ORDER BY priority DESC) AS room
        FROM trusted ORDER BY queue, priority, run_at DESC, id DESC) AS last
    WHERE taken = share AND room > 0 ORDER BY priority DESC
),
rest AS MATERIALIZED (SELECT leg.* FROM generous CROSS JOIN LATERAL ({rest}) AS leg LIMIT %(limit)s),
suspect AS MATERIALIZED ({suspect}),
chosen AS MATERIALIZED (
    SELECT id FROM (SELECT id, priority, run_at, false AS is_rest FROM trusted
                    UNION ALL SELECT id, priority, run_at, true FROM rest
                    UNION ALL SELECT id, priority, run_at, false FROM suspect) AS candidate
    ORDER BY priority DESC, is_rest, run_at, id LIMIT %(limit)s
),
claimed AS (
    UPDATE dhara_task AS task
    SET state = 'RUNNING', lease = task.lease + 1, worker_id = %(worker)s,
        lease_until = statement_timestamp() + make_interval(secs => %(lease)s),
        attempted_at = statement_timestamp(), started_at = coalesce(task.started_at, statement_timestamp())
    WHERE id = ANY (ARRAY(SELECT id FROM chosen))
    RETURNING task.id, task.lease, task.function, task.queue, task.priority, task.payload::text, task.failures,
              task.lost, task.interrupted, task.snoozed, task.max_attempts, task.timeout, task.idempotency_key,
              task.metadata::text, task.checkpoint::text, task.cancel_requested_at IS NOT NULL, task.enqueued_at,
              task.run_at, task.started_at, task.attempted_at,
              extract(epoch FROM statement_timestamp() - greatest(task.run_at, task.enqueued_at))::float8,
              CASE WHEN task.failures + task.lost > 0 THEN (
                  SELECT jsonb_agg(jsonb_build_array(error_class, traceback, worker_id) ORDER BY attempt.id)::text
                  FROM dhara_attempt AS attempt WHERE attempt.task_id = task.id) END
),
moment AS (SELECT statement_timestamp() - make_interval(secs => {late_seconds}) AS ago),
seen AS (
    SELECT queue, priority, least(run_at, ago) AS run_at,
           CASE WHEN run_at < ago THEN id ELSE '00000000-0000-0000-0000-000000000000' END AS id,
           CASE WHEN run_at IS NULL THEN seen_at ELSE statement_timestamp() END AS seen_at
    FROM served, moment
    WHERE run_at IS NOT NULL OR seen_at > statement_timestamp() - make_interval(secs => {empty_seconds})
)
SELECT NULL::text, NULL::text, NULL::text, claimed.* FROM claimed
UNION ALL
SELECT jsonb_build_object(
    'orders', (SELECT jsonb_agg(jsonb_build_array(id, verb, argument::text) ORDER BY id) FROM dhara_command
               WHERE worker_id = %(worker)s AND answered_at IS NULL),
    'due_in', (SELECT extract(epoch FROM min(run_at) - statement_timestamp()) FROM served
               WHERE is_open AND run_at > statement_timestamp()))::text,
    (SELECT ago::text FROM moment),
    (SELECT CASE WHEN count(*) <= {most_lanes} THEN coalesce(jsonb_agg(to_jsonb(seen)), '[]')::text END FROM seen),
    {nothing}
"""


@cache
def _statement(alias: str, *, named: bool) -> str:
    """Compiled from `Task.objects.ready()`, the definition that admin, metrics and tests use, too."""
    mine: Any = (
        Task.objects.ready()
        .filter(_unless("function = ANY (%(unknown)s::text[])"), backend=text("%(backend)s"))
        .values_list("id", "queue", "priority", "run_at")
        .select_for_update(skip_locked=True)
    )
    suspect = mine.suspects().filter(condition(f"coalesce({_OPEN.format(queue='queue')}, true)"))
    if named:
        suspect = suspect.filter(condition("queue = ANY (%(queues)s::text[])"))
    return _STATEMENT.format(
        lanes=_LANES_OF_NAMED_QUEUES if named else _LANES_OF_ALL_QUEUES,
        waits=_WAITS,
        lane_is_open=_OPEN.format(queue="lane.queue"),
        leg=_leg(mine, alias, "due", "(run_at, id) >= (due.run_at, due.id)", limit="due.share"),
        rest=_leg(mine, alias, "generous", "(run_at, id) > (generous.run_at, generous.id)", limit="generous.room"),
        suspect=compiled(suspect, alias, limit="%(suspects)s"),
        late_seconds=LATE_SECONDS,
        empty_seconds=EMPTY_SECONDS,
        most_lanes=MOST_LANES,
        nothing=", ".join(["NULL"] * len(fields(Claim))),
    )


def _unless(text_: str) -> Any:
    """Not those, said in a way that the planner does not estimate: where it believes that nearly all rows are left out
    it reads and sorts a whole lane, and its statistics, or a plan that was made for any value, may say so."""
    return condition(f"coalesce(NOT ({text_}), true)")


def _leg(mine: Any, alias: str, lane: str, begins: str, *, limit: str) -> str:
    """The ready tasks of one row of the CTE `lane`."""
    tasks = mine.trusted().filter(condition(begins), queue=text(f"{lane}.queue"), priority=number(f"{lane}.priority"))
    return compiled(tasks.order_by("run_at", "id"), alias, limit=limit)
