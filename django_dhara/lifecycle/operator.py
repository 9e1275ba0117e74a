"""What a person asks for: cancel, revive, copy, run now, put off, move, delete.

Each answers the truth, and changes nothing it cannot change. Where two ask for the same at once, one of them changes
the task, and the other is told that it was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    #: Of a copy: the new task of each that was copied.
    copies: dict[UUID, UUID] = field(default_factory=dict)


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

#: What moves a task that waits: its columns, and what it must not have already. Nothing that runs or has ended moves.
_MOVE = """/* dhara:{verb} */
WITH held AS MATERIALIZED (
    SELECT id FROM dhara_task WHERE id = ANY (%(id)s::uuid[]) AND {applies}
    ORDER BY id FOR NO KEY UPDATE {{skip_locked}}
)
UPDATE dhara_task AS task SET {change}
FROM held WHERE task.id = held.id AND task.state = 'PENDING'
RETURNING task.id, '{answer}', task.backend, CASE WHEN task.run_at <= statement_timestamp() THEN task.queue END
"""

_IS_IN_ANOTHER_QUEUE = "state = 'PENDING' AND queue <> %(queue)s AND backend <> ALL (%(without)s::text[])"
_HAS_ANOTHER_PRIORITY = "state = 'PENDING' AND priority <> %(priority)s"
_IS_DUE_SOONER = "state = 'PENDING' AND run_at < statement_timestamp() + make_interval(secs => %(seconds)s)"

_CHANGE_QUEUE = _MOVE.format(
    verb="change_queue", applies=_IS_IN_ANOTHER_QUEUE, change="queue = %(queue)s", answer="moved"
)
_CHANGE_PRIORITY = _MOVE.format(
    verb="change_priority", applies=_HAS_ANOTHER_PRIORITY, change="priority = %(priority)s", answer="moved"
)
_PUT_OFF = _MOVE.format(
    verb="put_off",
    applies=_IS_DUE_SOONER,
    change="run_at = statement_timestamp() + make_interval(secs => %(seconds)s)",
    answer="snoozed",
)

#: Attempts go with their task, as in a pruning.
_DELETE = """/* dhara:delete */
WITH held AS MATERIALIZED (
    SELECT id FROM dhara_task WHERE id = ANY (%(id)s::uuid[]) AND state IN ('COMPLETED', 'DEAD', 'CANCELED')
    ORDER BY id FOR UPDATE {skip_locked}
),
gone AS (DELETE FROM dhara_task WHERE id = ANY (ARRAY(SELECT id FROM held)) RETURNING id, backend),
history AS (DELETE FROM dhara_attempt WHERE task_id = ANY (ARRAY(SELECT id FROM gone)))
SELECT id, 'deleted', backend, NULL FROM gone
"""

#: The key of a copy: who copies the same end of a task again meets it, however many do so at once.
_COPY_KEY = "'copy of ' || {task}.id || ' after run ' || {task}.lease"

#: A copy starts with nothing: no runs, no errors, no checkpoint. The original keeps its state and its key.
_COPY = f"""/* dhara:copy */
WITH held AS MATERIALIZED (
    SELECT * FROM dhara_task WHERE id = ANY (%(id)s::uuid[]) AND state IN ('DEAD', 'CANCELED')
    ORDER BY id FOR NO KEY UPDATE {{skip_locked}}
)
INSERT INTO dhara_task (id, backend, function, queue, priority, payload, payload_hash, idempotency_key, max_attempts,
                        timeout, metadata, parent_id, enqueued_at, run_at)
SELECT made.copy, backend, function, queue, priority, payload, payload_hash, {_COPY_KEY.format(task="held")},
       max_attempts, timeout, metadata, held.id, statement_timestamp(), statement_timestamp()
FROM held JOIN unnest(%(id)s::uuid[], %(copy)s::uuid[]) AS made (id, copy) ON made.id = held.id
ON CONFLICT (function, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING parent_id, 'copied', backend, queue
"""
_HAS_NO_COPY = f"""state IN ('DEAD', 'CANCELED') AND NOT EXISTS (
    SELECT FROM dhara_task AS copy
    WHERE copy.function = dhara_task.function AND copy.idempotency_key = {_COPY_KEY.format(task="dhara_task")})"""


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


def change_queue_all(
    execute: Execute, ids: Iterable[UUID], *, queue: str, without: Sequence[str] = (), wait: bool = False
) -> Tally:
    """pending -> pending, in another queue.

    Args:
        without: backends that do not have this queue; their tasks stay where they are.
        wait: as in `cancel_all`.
    """
    given = {"queue": queue, "without": list(without)}
    return _change(execute, _CHANGE_QUEUE, list(ids), _IS_IN_ANOTHER_QUEUE, wait=wait, **given)


def change_priority_all(execute: Execute, ids: Iterable[UUID], *, priority: int, wait: bool = False) -> Tally:
    """pending -> pending, with another priority; `wait` as in `cancel_all`."""
    return _change(execute, _CHANGE_PRIORITY, list(ids), _HAS_ANOTHER_PRIORITY, wait=wait, priority=priority)


def put_off_all(execute: Execute, ids: Iterable[UUID], *, seconds: float, wait: bool = False) -> Tally:
    """pending -> pending, due so many seconds from now. What waits for longer already is left alone."""
    return _change(execute, _PUT_OFF, list(ids), _IS_DUE_SOONER, wait=wait, seconds=seconds)


def delete_all(execute: Execute, ids: Iterable[UUID], *, wait: bool = False) -> Tally:
    """completed, dead, canceled -> gone, and their attempts with them; `wait` as in `cancel_all`."""
    return _change(execute, _DELETE, list(ids), "state IN ('COMPLETED', 'DEAD', 'CANCELED')", wait=wait)


def copy_all(execute: Execute, copies: Mapping[UUID, UUID], *, wait: bool = False) -> Tally:
    """A new task for each dead or canceled one: the same call, as if it were enqueued now, with the old one as parent.

    The copy has an idempotency key of its own, made of the old task and its last run. It is what makes one copy of what
    two people copy at once. While the copy exists the old task is copied again only after another run.

    Args:
        copies: for each task the id of its copy.
        wait: as in `cancel_all`.
    """
    ids = list(copies)
    tally = _change(execute, _COPY, ids, _HAS_NO_COPY, wait=wait, copy=[copies[id_] for id_ in ids])
    tally.copies = {id_: copies[id_] for id_ in tally.changed.get("copied", ())}
    return tally


def _change(
    execute: Execute, statement: str, ids: Sequence[UUID], applies: str, *, wait: bool, **given: object
) -> Tally:
    tally = Tally({})
    done = set()
    parameters = {"id": ids, **given}
    rows = execute(statement.format(skip_locked="" if wait else "SKIP LOCKED"), parameters)
    for id_, answer, backend, queue in rows:
        tally.changed.setdefault(answer, []).append(id_)
        done.add(id_)
        if queue is not None:
            tally.wake.add((backend, queue))
    if rest := [id_ for id_ in ids if id_ not in done]:
        _explain(execute, tally, applies, {**parameters, "id": rest})
    return tally


def _explain(execute: Execute, tally: Tally, applies: str, parameters: Mapping[str, Any]) -> None:
    """Why the others were not changed: what the verb applies to and was left out all the same is locked."""
    statement = f"SELECT id, {applies} FROM dhara_task WHERE id = ANY (%(id)s::uuid[])"
    locked: dict[UUID, bool] = dict(execute(statement, parameters))
    tally.missing = len(set(parameters["id"]) - set(locked))
    tally.busy = sum(locked.values())
    tally.refused = len(locked) - tally.busy
