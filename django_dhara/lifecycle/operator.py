"""What a person asks for: cancel, revive, run now. Each answers the truth, and changes nothing it cannot change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from django_dhara.sql import Execute

#: `canceled`: it was pending and never starts. `requested`: it runs, is told to stop, and never starts again.
#: `finished`: it had ended; nothing changed.
Answer = Literal["canceled", "requested", "finished"]


@dataclass(slots=True)
class Tally:
    """What a change of many tasks came to, for an honest summary."""

    #: How many were changed, by answer.
    changed: dict[str, int]
    #: In a state that the change does not apply to.
    refused: int = 0
    #: Locked by somebody else just now: try again.
    busy: int = 0
    #: There is no such task.
    missing: int = 0


#: A running task keeps its state: its run ends it. Its worker is told through the command channel.
_CANCEL = """/* dhara:cancel */
WITH held AS MATERIALIZED (
    SELECT id, state, worker_id FROM dhara_task
    WHERE id = ANY (%(id)s::uuid[]) AND state IN ('PENDING', 'RUNNING')
    ORDER BY id FOR NO KEY UPDATE {skip_locked}
),
changed AS (
    UPDATE dhara_task AS task
    SET state = CASE held.state WHEN 'PENDING' THEN 'CANCELED' ELSE task.state END,
        finished_at = CASE held.state WHEN 'PENDING' THEN statement_timestamp() END,
        cancel_requested_at = coalesce(task.cancel_requested_at, statement_timestamp())
    FROM held WHERE task.id = held.id
    RETURNING task.id, task.lease, held.state, held.worker_id
),
told AS (
    INSERT INTO dhara_command (worker_id, verb, argument, created_at)
    SELECT worker_id, 'CANCEL', jsonb_build_object('task', id, 'lease', lease), statement_timestamp()
    FROM changed WHERE state = 'RUNNING'
)
SELECT id, CASE state WHEN 'PENDING' THEN 'canceled' ELSE 'requested' END FROM changed
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
RETURNING task.id, 'revived'
"""

_RUN_NOW = """/* dhara:run_now */
WITH held AS MATERIALIZED (
    SELECT id FROM dhara_task
    WHERE id = ANY (%(id)s::uuid[]) AND state = 'PENDING' AND run_at > statement_timestamp()
    ORDER BY id FOR NO KEY UPDATE {skip_locked}
)
UPDATE dhara_task AS task SET run_at = statement_timestamp()
FROM held WHERE task.id = held.id AND task.state = 'PENDING'
RETURNING task.id, 'hastened'
"""


def cancel(execute: Execute, id_: UUID) -> Answer | None:
    """pending -> canceled, or a running task is asked to stop. None: there is no such task."""
    answer: Answer | None = _one(execute, _CANCEL, id_)
    return answer or ("finished" if _exists(execute, id_) else None)


def revive(execute: Execute, id_: UUID) -> bool | None:
    """dead, canceled -> pending, with new budgets. False: it is in another state. None: there is no such task."""
    return True if _one(execute, _REVIVE, id_) else (False if _exists(execute, id_) else None)


def run_now(execute: Execute, id_: UUID) -> bool | None:
    """pending -> pending, due now. False: it was not waiting for its time. None: there is no such task."""
    return True if _one(execute, _RUN_NOW, id_) else (False if _exists(execute, id_) else None)


def cancel_all(execute: Execute, ids: Iterable[UUID]) -> Tally:
    """`cancel` for many; locked ones are counted as busy."""
    return _many(execute, _CANCEL, list(ids), "state IN ('PENDING', 'RUNNING')")


def revive_all(execute: Execute, ids: Iterable[UUID]) -> Tally:
    """`revive` for many; locked ones are counted as busy."""
    return _many(execute, _REVIVE, list(ids), "state IN ('DEAD', 'CANCELED')")


def run_now_all(execute: Execute, ids: Iterable[UUID]) -> Tally:
    """`run_now` for many; locked ones are counted as busy."""
    return _many(execute, _RUN_NOW, list(ids), "state = 'PENDING' AND run_at > statement_timestamp()")


def _one(execute: Execute, statement: str, id_: UUID) -> Any:
    # One row is waited for: who holds it (a claim, a settle) is done in a moment, and the answer must be the truth.
    for _, answer in execute(statement.format(skip_locked=""), {"id": [id_]}):
        return answer
    return None


def _exists(execute: Execute, id_: UUID) -> bool:
    return bool(execute("SELECT 1 FROM dhara_task WHERE id = %(id)s", {"id": id_}))


def _many(execute: Execute, statement: str, ids: Sequence[UUID], applies: str) -> Tally:
    tally = Tally({})
    done = set()
    for id_, answer in execute(statement.format(skip_locked="SKIP LOCKED"), {"id": ids}):
        tally.changed[answer] = tally.changed.get(answer, 0) + 1
        done.add(id_)
    rest = [id_ for id_ in ids if id_ not in done]
    # What the verb applies to and was left out all the same is locked.
    locked: dict[UUID, bool] = dict(
        execute(f"SELECT id, {applies} FROM dhara_task WHERE id = ANY (%(id)s::uuid[])", {"id": rest})
    )
    tally.missing = len(set(rest) - set(locked))
    tally.busy = sum(locked.values())
    tally.refused = len(locked) - tally.busy
    return tally
