"""What no run writes: taking back the tasks of dead workers, and deleting what has been finished for long enough."""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

from django_dhara.models import Task, TaskQuerySet
from django_dhara.sql import Execute, compiled, condition, text
from django_dhara.states import State


class Rescued(NamedTuple):
    """A task that was taken from a lost run, and where it is now."""

    id: UUID
    function: str
    queue: str
    state: State


#: A rescued task keeps its `run_at`, and so its place. After a restart of the server everybody gets one lease of
#: grace: live workers come back and renew before anything is taken from them.
_RESCUE = """/* dhara:rescue */
WITH held AS MATERIALIZED ({abandoned}),
rescued AS (
    UPDATE dhara_task AS task
    SET state = CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'CANCELED'
                     WHEN task.failures + task.lost + 1 >= task.max_attempts OR task.lost + 1 >= %(max_lost)s
                         THEN 'DEAD'
                     ELSE 'PENDING' END,
        finished_at = CASE WHEN task.cancel_requested_at IS NOT NULL
                                OR task.failures + task.lost + 1 >= task.max_attempts
                                OR task.lost + 1 >= %(max_lost)s THEN statement_timestamp() END,
        worker_id = CASE WHEN task.cancel_requested_at IS NOT NULL
                              OR task.failures + task.lost + 1 >= task.max_attempts
                              OR task.lost + 1 >= %(max_lost)s THEN task.worker_id END,
        lost = task.lost + 1, lease_until = NULL,
        error_class = 'django_dhara.errors.WorkerLost', error_fingerprint = 'WorkerLost'
    FROM held
    WHERE task.id = held.id AND task.state = 'RUNNING' AND task.lease_until < statement_timestamp()
    RETURNING task.id, task.function, task.queue, task.state, task.lease, task.failures + task.lost AS number,
              held.worker_id, task.attempted_at, held.lease_until
),
history AS (
    INSERT INTO dhara_attempt (task_id, lease, number, worker_id, started_at, ended_at, ended, error_class, message,
                               traceback)
    SELECT id, lease, number, worker_id, coalesce(attempted_at, lease_until), statement_timestamp(), 'LOST',
           'django_dhara.errors.WorkerLost',
           'Worker ' || worker_id || ' died or was out of reach: its lease ran out at ' || lease_until || '.', ''
    FROM rescued
)
SELECT id, function, queue, state FROM rescued
"""


def rescue(
    execute: Execute,
    alias: str,
    backend: str,
    *,
    max_lost: int,
    grace_seconds: float,
    limit: int = 500,
    until: float = inf,
) -> list[Rescued]:
    """running -> pending, dead or canceled: tasks whose lease ran out, a lease ago if their worker gives signs of life.

    Args:
        grace_seconds: nothing is rescued so soon after a start of the server.
        limit: at most so many; call again while it is reached.
        until: in seconds since 1970; a statement that reaches the server later does nothing.
    """
    parameters = {"backend": backend, "max_lost": max_lost, "grace": grace_seconds, "limit": limit, "until": until}
    return [
        Rescued(id_, function, queue, State(state))
        for id_, function, queue, state in execute(_rescue(alias), parameters)
    ]


#: What the trouble of the whole server cost living workers: they could renew as little as we could rescue.
_SPARE = """/* dhara:spare */
WITH held AS MATERIALIZED ({abandoned})
UPDATE dhara_task AS task SET lease_until = statement_timestamp() + make_interval(secs => %(seconds)s)
FROM held WHERE task.id = held.id AND task.state = 'RUNNING' AND task.lease_until < statement_timestamp()
RETURNING task.id
"""


def spare(execute: Execute, alias: str, backend: str, *, lease_seconds: float, limit: int = 500) -> int:
    """running -> running: leases that ran out hold for `lease_seconds` more, whoever has them. Returns how many did.

    Args:
        limit: at most so many; call again while it is reached.
    """
    parameters = {"backend": backend, "seconds": lease_seconds, "limit": limit}
    return len(execute(_spare(alias), parameters))


@cache
def _spare(alias: str) -> str:
    return _SPARE.format(abandoned=_abandoned(alias, Task.objects.abandoned()))


#: A worker that gives signs of life, but comes to renewing late, since the server is slow, has another lease for it. It
#: delays nothing after a death: the last sign of life is older than that, and a lease later it counts no more.
_NOT_BEATING = """
NOT EXISTS (
    SELECT FROM dhara_worker AS worker
    WHERE worker.id = dhara_task.worker_id AND worker.stopped_at IS NULL
      AND least(worker.heartbeat_at, dhara_task.lease_until)
          > statement_timestamp() - make_interval(secs => worker.lease_seconds)
)
"""


@cache
def _rescue(alias: str) -> str:
    up_long_enough = condition("statement_timestamp() - pg_postmaster_start_time() > make_interval(secs => %(grace)s)")
    in_time = condition("statement_timestamp() < to_timestamp(%(until)s::float8)")
    tasks = Task.objects.abandoned().filter(up_long_enough, in_time, condition(_NOT_BEATING))
    return _RESCUE.format(abandoned=_abandoned(alias, tasks))


def _abandoned(alias: str, tasks: TaskQuerySet) -> str:
    """Those of one backend, with their rows locked, by the order of their ids; parameters `backend` and `limit`."""
    held = tasks.filter(backend=text("%(backend)s")).order_by("id").values_list("id", "worker_id", "lease_until")
    return compiled(held.select_for_update(skip_locked=True, no_key=True), alias, limit="%(limit)s")


#: Attempts go with their task; there is no foreign key that could do it.
_PRUNE = """/* dhara:prune */
WITH held AS MATERIALIZED ({finished}),
gone AS (DELETE FROM dhara_task WHERE id = ANY (ARRAY(SELECT id FROM held)) RETURNING id),
history AS (DELETE FROM dhara_attempt WHERE task_id = ANY (ARRAY(SELECT id FROM gone)))
SELECT count(*) FROM gone
"""


def prune(
    execute: Execute,
    alias: str,
    backend: str,
    state: State,
    *,
    older_than: float,
    keyed_older_than: float,
    limit: int = 1000,
) -> int:
    """Delete at most `limit` tasks that ended in `state` at least `older_than` seconds ago. Returns how many.

    Args:
        keyed_older_than: the same for tasks with an idempotency key, if it is longer.
    """
    parameters = {**_ages(backend, older_than, keyed_older_than), "limit": limit}
    [[count]] = execute(_prune(alias, state), parameters)
    return int(count)


def count_expired(
    execute: Execute, alias: str, backend: str, state: State, *, older_than: float, keyed_older_than: float
) -> int:
    """How many tasks `prune` would delete in all."""
    statement = f"SELECT count(*) FROM ({compiled(_expired(state).values_list('id'), alias)}) AS expired"
    [[count]] = execute(statement, _ages(backend, older_than, keyed_older_than))
    return int(count)


def _ages(backend: str, older_than: float, keyed_older_than: float) -> dict[str, Any]:
    return {"backend": backend, "age": older_than, "keyed_age": max(older_than, keyed_older_than)}


@cache
def _prune(alias: str, state: State) -> str:
    locked = _expired(state).values_list("id").select_for_update(skip_locked=True)
    return _PRUNE.format(finished=compiled(locked, alias, limit="%(limit)s"))


def _expired(state: State) -> TaskQuerySet:
    """Tasks of a backend that ended in `state` long enough ago; parameters `backend`, `age` and `keyed_age`."""
    old = condition("finished_at < statement_timestamp() - make_interval(secs => %(age)s)")
    unkeyed_or_older = condition(
        "(idempotency_key IS NULL OR finished_at < statement_timestamp() - make_interval(secs => %(keyed_age)s))"
    )
    ended = Task.objects.finished().filter(old, unkeyed_or_older, state=state, backend=text("%(backend)s"))
    return ended.order_by("finished_at")
