"""What a person asks for: cancel, revive, run now. Each answers the truth, and changes nothing it cannot change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from django_dhara.sql import Execute

#: `canceled`: it was pending and never starts. `requested`: it runs, is told to stop, and never starts again.
#: `finished`: it had ended; nothing changed.
Answer = Literal["canceled", "requested", "finished"]


@dataclass(slots=True)
class Tally:
    """What a change of many tasks came to, for an honest summary."""

    #: The tasks that were changed, by answer.
    changed: dict[str, list[UUID]]
    #: Backends and queues whose workers are to look: something has become ready, or a run is to be stopped.
    wake: set[tuple[str, str]] = field(default_factory=set)
    #: In a state that the change does not apply to.
    refused: int = 0
    #: Locked by somebody else just now: try again.
    busy: int = 0
    #: There is no such task.
    missing: int = 0


#: A running task keeps its state: its run ends it. Its worker is told through the command channel.
_CANCEL = """/* dhara:cancel */
WITH held AS MATERIALIZED (
    SELECT id, state, worker_id, cancel_requested_at IS NULL AS is_new FROM dhara_task
    WHERE id = ANY (%(id)s::uuid[]) AND state IN ('PENDING', 'RUNNING')
    ORDER BY id FOR NO KEY UPDATE {skip_locked}
),
changed AS (
    UPDATE dhara_task AS task
    SET state = CASE held.state WHEN 'PENDING' THEN 'CANCELED' ELSE task.state END,
        finished_at = CASE held.state WHEN 'PENDING' THEN statement_timestamp() END,
        cancel_requested_at = coalesce(task.cancel_requested_at, statement_timestamp())
    FROM held WHERE task.id = held.id
    RETURNING task.id, task.lease, task.backend, task.queue, held.state, held.worker_id, held.is_new
),
told AS (
    INSERT INTO dhara_command (worker_id, verb, argument, created_at)
    SELECT worker_id, 'CANCEL', jsonb_build_object('task', id, 'lease', lease), statement_timestamp()
    FROM changed WHERE state = 'RUNNING' AND is_new
)
SELECT id, CASE state WHEN 'PENDING' THEN 'canceled' ELSE 'requested' END, backend,
       CASE state WHEN 'RUNNING' THEN queue END
FROM changed
"""

#: Budgets start anew; the rows of earlier attempts stay.
_REVIVE = """/* dhara:revive */
WITH held AS MATERIALIZED (
    SELECT id FROM dhara_task WHERE id = ANY (%(id)s::uuid[]) AND state IN ('DEAD', 'CANCELED')
    ORDER BY id FOR NO KEY UPDATE {skip_locked}
)
UPDATE dhara_task AS task
SET state = 'PENDING', run_at = statement_timestamp(), finished_at = NULL, cancel_requested_at = NULL,
    worker_id = NULL, lease_until = NULL, failures = 0, lost = 0, interrupted = 0, snoozed = 0, progress = NULL
FROM held WHERE task.id = held.id AND task.state IN ('DEAD', 'CANCELED')
RETURNING task.id, 'revived', task.backend, task.queue
"""

_RUN_NOW = """/* dhara:run_now */
WITH held AS MATERIALIZED (
    SELECT id FROM dhara_task
    WHERE id = ANY (%(id)s::uuid[]) AND state = 'PENDING' AND run_at > statement_timestamp()
    ORDER BY id FOR NO KEY UPDATE {skip_locked}
)
UPDATE dhara_task AS task SET run_at = statement_timestamp()
FROM held WHERE task.id = held.id AND task.state = 'PENDING'
RETURNING task.id, 'hastened', task.backend, task.queue
"""


def cancel(execute: Execute, id_: UUID) -> Answer | None:
    """pending -> canceled, or a running task is asked to stop. None: there is no such task."""
    tally = cancel_all(execute, [id_], wait=True)
    answer: Any = next(iter(tally.changed), "finished")
    return None if tally.missing else answer


def revive(execute: Execute, id_: UUID) -> bool | None:
    """dead, canceled -> pending, with new budgets. False: it is in another state. None: there is no such task."""
    tally = revive_all(execute, [id_], wait=True)
    return None if tally.missing else bool(tally.changed)


def run_now(execute: Execute, id_: UUID) -> bool | None:
    """pending -> pending, due now. False: it was not waiting for its time. None: there is no such task."""
    tally = run_now_all(execute, [id_], wait=True)
    return None if tally.missing else bool(tally.changed)


def cancel_all(execute: Execute, ids: Iterable[UUID], *, wait: bool = False) -> Tally:
    """`cancel` for many.

    Args:
        wait: for rows that somebody has locked, a claim or a settle for a moment, and then answer the truth; without
            it they are left alone and counted as busy. To wait is for one row: two who wait for many could wait for
            each other.
    """
    return _change(execute, _CANCEL, list(ids), "state IN ('PENDING', 'RUNNING')", wait=wait)


def revive_all(execute: Execute, ids: Iterable[UUID], *, wait: bool = False) -> Tally:
    """`revive` for many; `wait` as in `cancel_all`."""
    return _change(execute, _REVIVE, list(ids), "state IN ('DEAD', 'CANCELED')", wait=wait)


def run_now_all(execute: Execute, ids: Iterable[UUID], *, wait: bool = False) -> Tally:
    """`run_now` for many; `wait` as in `cancel_all`."""
    return _change(execute, _RUN_NOW, list(ids), "state = 'PENDING' AND run_at > statement_timestamp()", wait=wait)


def _change(execute: Execute, statement: str, ids: Sequence[UUID], applies: str, *, wait: bool) -> Tally:
    tally = Tally({})
    done = set()
    rows = execute(statement.format(skip_locked="" if wait else "SKIP LOCKED"), {"id": ids})
    for id_, answer, backend, queue in rows:
        tally.changed.setdefault(answer, []).append(id_)
        done.add(id_)
        if queue is not None:
            tally.wake.add((backend, queue))
    if rest := [id_ for id_ in ids if id_ not in done]:
        _explain(execute, tally, rest, applies)
    return tally


def _explain(execute: Execute, tally: Tally, rest: Sequence[UUID], applies: str) -> None:
    """Why the others were not changed: what the verb applies to and was left out all the same is locked."""
    statement = f"SELECT id, {applies} FROM dhara_task WHERE id = ANY (%(id)s::uuid[])"
    locked: dict[UUID, bool] = dict(execute(statement, {"id": list(rest)}))
    tally.missing = len(set(rest) - set(locked))
    tally.busy = sum(locked.values())
    tally.refused = len(locked) - tally.busy
