"""Writing how runs ended: many by one statement, and each alone where one of them cannot be stored.

Work that was done must not be done again because its outcome is awkward, nor hold up the outcomes beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from uuid import UUID

import psycopg

from django_dhara import lifecycle
from django_dhara.execution import Run
from django_dhara.lifecycle import Ending, Settled
from django_dhara.sql import Execute
from django_dhara.states import Completed, Error

logger = logging.getLogger("django_dhara.worker")

#: So many runs are settled by one statement, and so many bytes: PostgreSQL takes no value above 1 GB, and a statement
#: has to come through within its deadline.
MOST_RUNS, MOST_BYTES = 500, 4_000_000

#: Said of a statement whose data the server, or psycopg before it, does not take: it never will.
UNSTORABLE = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.InternalError,
    psycopg.NotSupportedError,
    psycopg.ProgrammingError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.RaiseException,
    UnicodeError,
)


def batch(endings: dict[Run, Ending], now: float) -> list[Run]:
    """Whose endings fit into one statement, the oldest first."""
    chosen: list[Run] = []
    size = 0
    for run, ending in endings.items():
        if run.refused_until > now:
            continue
        size += _bytes(ending)
        if chosen and (size > MOST_BYTES or len(chosen) >= MOST_RUNS):
            break
        chosen.append(run)
    return chosen


def _bytes(ending: Ending) -> int:
    outcome = ending.outcome
    if isinstance(outcome, Completed):
        return len(outcome.result)
    error: Error | None = getattr(outcome, "error", None)
    return len(error.message) + len(error.traceback) if error else 0


def write(
    execute: Execute, worker: UUID, endings: Sequence[Ending], *, max_interrupted: int
) -> Iterator[tuple[Ending, Settled | Exception]]:
    """Settle; each answer comes as soon as it is known, so that none is lost by a failure after it.

    An exception instead of an answer: even the least that can be said of this run was refused.
    """
    try:
        answers = lifecycle.settle(execute, worker, endings, max_interrupted=max_interrupted) if endings else []
    except UNSTORABLE as error:
        if len(endings) == 1:
            yield endings[0], _write_least(execute, worker, endings[0], error, max_interrupted=max_interrupted)
        else:
            for ending in endings:
                yield from write(execute, worker, [ending], max_interrupted=max_interrupted)
        return
    yield from zip(endings, answers, strict=True)


def _write_least(
    execute: Execute, worker: UUID, ending: Ending, error: Exception, *, max_interrupted: int
) -> Settled | Exception:
    least = ending.minimal()
    logger.error("The outcome of task %s could not be stored; a minimal one is", ending.id, exc_info=error)
    if least == ending:
        return error
    try:
        return lifecycle.settle(execute, worker, [least], max_interrupted=max_interrupted)[0]
    except UNSTORABLE as also:
        return also
