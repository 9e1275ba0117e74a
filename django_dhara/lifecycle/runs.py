"""What a run writes: how it ended, that it lives, how far it got. Each write carries the number of its lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from django_dhara.errors import LeaseLost
from django_dhara.sql import Execute, array
from django_dhara.states import Completed, Discarded, Error, Failed, HandedBack, Interrupted, Outcome, State, TimedOut


class Ending(NamedTuple):
    """One run and how it ended.

    `seconds` is how long the function ran, by the worker's monotonic clock; None if it was never started. `ended` is
    when that was over, by the same clock; None: just now. An outage may lie between that and the settle.
    """

    id: UUID
    lease: int
    outcome: Outcome
    seconds: float | None
    ended: float | None = None

    def minimal(self) -> Ending:
        """The same ending without what the database might refuse: finished work must not run again for that."""
        outcome: Outcome
        match self.outcome:
            case Completed():
                outcome = Completed("null")
            case Failed() | TimedOut() | Discarded() | Interrupted():
                outcome = replace(
                    self.outcome, error=Error("builtins.Exception", "could not be stored", "", "unstorable")
                )
            case _:
                outcome = self.outcome
        return self._replace(outcome=outcome)


class Settled(NamedTuple):
    """The answer to one ending: the state that the task is in now, or None with the reason.

    `refused`: the lease is no longer this run's. Neither settled nor refused: somebody has the row locked; try again.
    """

    state: State | None
    refused: bool = False


#: Of the rows named by a list, those that run. The state comes with the list, out of the planner's sight: knowing it,
#: the planner would read the index of all running tasks, and wherever it believes that few run, once for each row.
#:
#: `next` is decided in the statement, under the row's lock: a cancel may have come after the claim. Of a run that was
#: asked to stop only a success counts. An interrupted or handed back task keeps its `run_at`, and so its place.
_SETTLE = """/* dhara:settle */
WITH ending AS MATERIALIZED (
    SELECT *, 'RUNNING' AS state FROM unnest(
        %(id)s::uuid[], %(lease)s::bigint[], %(verb)s::text[], %(seconds)s::float8[], %(ago)s::float8[],
        %(delay)s::float8[], %(result)s::text[]::jsonb[], %(class)s::text[], %(message)s::text[], %(traceback)s::text[],
        %(fingerprint)s::text[]) WITH ORDINALITY
    AS ending(id, lease, verb, seconds, ago, delay, result, class, message, traceback, fingerprint, nr)
),
held AS MATERIALIZED (
    SELECT ending.*, statement_timestamp() - make_interval(secs => ending.ago) AS ended_at,
           ending.verb IN ('fail', 'time out', 'discard') AS failed,
           CASE WHEN ending.verb = 'complete' THEN 'COMPLETED'
                WHEN task.cancel_requested_at IS NOT NULL THEN 'CANCELED'
                WHEN ending.verb = 'discard' THEN 'DEAD'
                WHEN ending.verb IN ('fail', 'time out') AND task.failures + task.lost + 1 >= task.max_attempts
                    THEN 'DEAD'
                WHEN ending.verb = 'interrupt' AND task.interrupted + 1 >= %(max_interrupted)s THEN 'DEAD'
                ELSE 'PENDING' END AS next
    FROM dhara_task AS task JOIN ending ON task.id = ending.id AND task.lease = ending.lease
    WHERE task.state = ending.state
    ORDER BY task.id FOR NO KEY UPDATE OF task SKIP LOCKED
),
settled AS (
    UPDATE dhara_task AS task
    SET state = held.next,
        lease_until = NULL,
        worker_id = CASE WHEN held.next <> 'PENDING' THEN task.worker_id END,
        finished_at = CASE WHEN held.next <> 'PENDING' THEN held.ended_at END,
        run_at = CASE WHEN held.next = 'PENDING' AND held.delay IS NOT NULL
                      THEN statement_timestamp() + make_interval(secs => held.delay) ELSE task.run_at END,
        failures = task.failures + held.failed::int,
        interrupted = task.interrupted + (held.verb = 'interrupt')::int,
        snoozed = task.snoozed + (held.verb = 'snooze')::int,
        result = coalesce(held.result, task.result),
        error_class = CASE WHEN held.failed OR held.next = 'DEAD' THEN held.class ELSE task.error_class END,
        error_fingerprint = CASE WHEN held.failed OR held.next = 'DEAD' THEN held.fingerprint
                                 ELSE task.error_fingerprint END,
        attempted_at = CASE WHEN held.seconds IS NOT NULL
                            THEN held.ended_at - make_interval(secs => held.seconds)
                            WHEN task.started_at <> task.attempted_at THEN task.attempted_at END,
        started_at = CASE WHEN task.started_at <> task.attempted_at THEN task.started_at
                          ELSE held.ended_at - make_interval(secs => held.seconds) END
    FROM held WHERE task.id = held.id AND task.lease = held.lease AND task.state = held.state
    RETURNING task.id, task.lease, task.state, task.attempted_at, held.ended_at,
              task.failures + task.lost + (NOT held.failed)::int AS number,
              held.nr, held.failed, held.verb, held.class, held.message, held.traceback, %(worker)s::uuid AS worker_id
),
history AS (
    INSERT INTO dhara_attempt (task_id, lease, number, worker_id, started_at, ended_at, ended, error_class, message,
                               traceback)
    SELECT id, lease, number, worker_id, coalesce(attempted_at, ended_at), ended_at,
           CASE verb WHEN 'time out' THEN 'TIMED_OUT' WHEN 'interrupt' THEN 'INTERRUPTED' ELSE 'FAILED' END,
           class, coalesce(message, ''), coalesce(traceback, '')
    FROM settled WHERE failed OR (verb = 'interrupt' AND state = 'DEAD')
)
SELECT nr, state FROM settled
"""


def settle(execute: Execute, worker: UUID, endings: Sequence[Ending], *, max_interrupted: int) -> list[Settled]:
    """running -> completed, pending, dead or canceled, for many runs at once; answers in the order of `endings`.

    A failure, a loss or an interruption is counted here, in the same statement that changes the state.
    """
    now = monotonic()
    columns = zip(*[_columns(ending, now) for ending in endings], strict=True)
    parameters: dict[str, Any] = dict(zip(_COLUMNS, map(array, columns), strict=True))
    rows = execute(_SETTLE, parameters | {"worker": worker, "max_interrupted": max_interrupted})
    answers: list[Settled | None] = [None] * len(endings)
    for number, state in rows:
        answers[number - 1] = _SETTLED[state]
    if len(rows) < len(endings):
        return _read_back(execute, endings, answers)
    return [answer for answer in answers if answer is not None]


_SETTLED = {state.value: Settled(state) for state in State}
_COLUMNS = ("id", "lease", "verb", "seconds", "ago", "delay", "result", "class", "message", "traceback", "fingerprint")


def _columns(ending: Ending, now: float) -> tuple[Any, ...]:
    outcome, ago = ending.outcome, 0.0 if ending.ended is None else now - ending.ended
    if isinstance(outcome, Completed):  # nearly all of them
        return ending.id, ending.lease, "complete", ending.seconds, ago, None, outcome.result, None, None, None, None
    error: Error | None = None
    delay: float | None = None
    match outcome:
        case Failed() | TimedOut():
            error, delay = outcome.error, outcome.delay
        case Discarded() | Interrupted():
            error = outcome.error
        case HandedBack():
            delay = outcome.delay or None
        case _:
            delay = outcome.delay
    told = (error.class_path, error.message, error.traceback, error.fingerprint) if error else (None,) * 4
    return ending.id, ending.lease, outcome.verb, ending.seconds, ago, delay, None, *told


def settle_in_transaction(execute: Execute, worker: UUID, ending: Ending) -> State:
    """running -> completed, in the transaction that is open on `execute`'s connection; it commits with that, or not.

    Raises:
        LeaseLost: the task is no longer this run's.
    """
    # The batch would skip a row that somebody holds for a moment; here the row is waited for.
    execute("SELECT 1 FROM dhara_task WHERE id = %(id)s FOR NO KEY UPDATE", {"id": ending.id})
    [answer] = settle(execute, worker, [ending], max_interrupted=1)
    if answer.state is not State.COMPLETED:
        raise LeaseLost(f"task {ending.id} is no longer this run's (lease {ending.lease}); all of it is rolled back")
    return answer.state


#: A rescue leaves a LOST attempt with the number of the lease. So a task with our lease that does not run any more, and
#: has no such row, was settled by us: by a statement whose answer never came.
_READ_BACK = """/* dhara:read_back */
SELECT task.id, task.lease, task.state
FROM dhara_task AS task JOIN unnest(%(id)s::uuid[], %(lease)s::bigint[]) AS mine(id, lease)
  ON task.id = mine.id AND task.lease = mine.lease
WHERE NOT EXISTS (SELECT FROM dhara_attempt AS attempt
                  WHERE attempt.task_id = task.id AND attempt.lease = task.lease AND attempt.ended = 'LOST')
"""


def _read_back(execute: Execute, endings: Sequence[Ending], known: Sequence[Settled | None]) -> list[Settled]:
    """The answers to endings some of which changed nothing: their row is locked by somebody, they were written before,
    or the lease is another run's by now."""
    missing = [ending for ending, answer in zip(endings, known, strict=True) if answer is None]
    parameters = {"id": [e.id for e in missing], "lease": [e.lease for e in missing]}
    found = {
        (id_, lease): Settled(None if state == State.RUNNING else State(state))
        for id_, lease, state in execute(_READ_BACK, parameters)
    }
    return [
        answer or found.get((ending.id, ending.lease), Settled(None, refused=True))
        for ending, answer in zip(endings, known, strict=True)
    ]


class Renewal(NamedTuple):
    """The answer to a renewal: the leases that hold on, those that were refused, and whether the worker has a row.

    A task in neither set is locked by somebody, or was being changed: its lease stands and comes again. Or this run has
    completed it, by an atomic function's COMMIT or a settle whose answer is still on its way: nobody else can have.
    """

    renewed: set[tuple[UUID, int]]
    refused: set[tuple[UUID, int]]
    registered: bool


#: The worker's own row is skipped if somebody has it locked: that must not cost a lease.
_BEAT = """
    UPDATE dhara_worker SET heartbeat_at = statement_timestamp()
    WHERE id = (SELECT id FROM dhara_worker WHERE id = %(worker)s FOR NO KEY UPDATE SKIP LOCKED)
"""
_RENEW = f"""/* dhara:renew */
WITH mine AS MATERIALIZED (
    SELECT *, 'RUNNING' AS state FROM unnest(%(id)s::uuid[], %(lease)s::bigint[]) AS mine(id, lease)
),
held AS MATERIALIZED (
    SELECT mine.* FROM dhara_task AS task JOIN mine ON task.id = mine.id AND task.lease = mine.lease
    WHERE task.state = mine.state ORDER BY task.id FOR NO KEY UPDATE OF task SKIP LOCKED
),
renewed AS (
    UPDATE dhara_task AS task SET lease_until = statement_timestamp() + make_interval(secs => %(seconds)s)
    FROM held WHERE task.id = held.id AND task.lease = held.lease AND task.state = held.state
    RETURNING task.id, task.lease
),
beat AS ({_BEAT})
SELECT mine.id, mine.lease, (mine.id, mine.lease) IN (SELECT id, lease FROM renewed),
       coalesce(task.state IN ('RUNNING', 'COMPLETED'), false)
FROM mine LEFT JOIN dhara_task AS task ON task.id = mine.id AND task.lease = mine.lease
UNION ALL
SELECT NULL, NULL, EXISTS (SELECT FROM dhara_worker WHERE id = %(worker)s), NULL
"""


def renew(execute: Execute, worker: UUID, leases: Sequence[tuple[UUID, int]], *, lease_seconds: float) -> Renewal:
    """running -> running: every given lease is good for `lease_seconds` from now, even if it had run out unnoticed.

    Only a refusal means that a run lost its task.
    """
    parameters = {
        "id": [id_ for id_, _ in leases],
        "lease": [lease for _, lease in leases],
        "seconds": lease_seconds,
        "worker": worker,
    }
    renewed, refused, registered = set(), set(), False
    for id_, lease, is_renewed, is_owned in execute(_RENEW, parameters):
        if id_ is None:
            registered = is_renewed
        elif is_renewed:
            renewed.add((id_, lease))
        elif not is_owned:
            refused.add((id_, lease))
    return Renewal(renewed, refused, registered)


def beat(execute: Execute, worker: UUID) -> None:
    """Give a sign of life and nothing else: it needs no task, and is written even where those are slow or locked."""
    execute(f"/* dhara:beat */ {_BEAT}", {"worker": worker})


class Report(NamedTuple):
    """What a run says while it runs; JSON text, None: no change."""

    id: UUID
    lease: int
    progress: str | None
    checkpoint: str | None


_REPORT = """/* dhara:report */
WITH report AS MATERIALIZED (
    SELECT *, 'RUNNING' AS state
    FROM unnest(%(id)s::uuid[], %(lease)s::bigint[], %(progress)s::text[]::jsonb[], %(checkpoint)s::text[]::jsonb[])
         AS report(id, lease, progress, checkpoint)
),
held AS MATERIALIZED (
    SELECT report.* FROM dhara_task AS task JOIN report ON task.id = report.id AND task.lease = report.lease
    WHERE task.state = report.state ORDER BY task.id FOR NO KEY UPDATE OF task SKIP LOCKED
)
UPDATE dhara_task AS task
SET progress = coalesce(held.progress, task.progress), checkpoint = coalesce(held.checkpoint, task.checkpoint)
FROM held WHERE task.id = held.id AND task.lease = held.lease AND task.state = held.state
RETURNING task.id, task.lease
"""


def report(execute: Execute, reports: Sequence[Report]) -> set[tuple[UUID, int]]:
    """running -> running: progress and checkpoints. Returns the runs whose report was taken."""
    parameters = {
        "id": [r.id for r in reports],
        "lease": [r.lease for r in reports],
        "progress": [r.progress for r in reports],
        "checkpoint": [r.checkpoint for r in reports],
    }
    return {(id_, lease) for id_, lease in execute(_REPORT, parameters)}


_OWNED = """/* dhara:owned */
SELECT id, lease FROM dhara_task WHERE state = 'RUNNING' AND worker_id = %(worker)s
"""


def owned(execute: Execute, worker: UUID) -> set[tuple[UUID, int]]:
    """The runs that are this worker's by the database: also those of a claim whose answer never came."""
    return {(id_, lease) for id_, lease in execute(_OWNED, {"worker": worker})}
