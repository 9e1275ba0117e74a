"""Queues, workers, and counts: what the admin's pages of the same names read."""

from __future__ import annotations

from typing import Any

from django.db.models import F
from django.http import HttpRequest
from ninja import Query

from django_dhara import events, fleet, operations, stats
from django_dhara.api import schemas, scope
from django_dhara.api.access import PAUSE, SEE, SEE_QUEUES, SEE_WORKERS, Caller, caller_of
from django_dhara.api.problems import Problem
from django_dhara.api.service import endpoint
from django_dhara.backend import DharaBackend, check_queue
from django_dhara.payload import plain

#: Rows of a list that has no pages.
_MOST = 500


@endpoint("GET", "/queues", tag="queues", needs=SEE_QUEUES, answers={200: schemas.Queues})
def list_queues(request: HttpRequest, query: Query[schemas.OfBackend]) -> schemas.Queues:
    """List the queues of a backend: those that have unfinished tasks, are paused, or stand in TASKS; at most 500."""
    scope.refuse_unknown(request, schemas.OfBackend)
    backend, caller = scope.backend(query.backend), caller_of(request)
    alias = backend.settings.database
    with scope.limited(alias):
        waiting = {each.queue: each for each in stats.waiting(alias, backend.alias)}
        held = {queue: each for (of, queue), each in fleet.held(alias).items() if of == backend.alias}
    names = sorted({*waiting, *held, *backend.queues, *caller.queues})
    told = [_queue(name, backend.alias, waiting.get(name), held.get(name)) for name in names if caller.has(name)]
    return schemas.Queues(queues=told[:_MOST])


def _queue(name: str, backend: str, waiting: stats.Waiting | None, held: fleet.Held | None) -> schemas.Queue:
    return schemas.Queue(
        name=name,
        backend=backend,
        paused=bool(waiting and waiting.paused_at),
        paused_at=waiting and waiting.paused_at,
        ready=waiting.ready if waiting else 0,
        scheduled=waiting.scheduled if waiting else 0,
        retrying=waiting.retries if waiting else 0,
        running=held.running if held else 0,
        suspects=held.suspects if held else 0,
        at_least=bool(waiting and waiting.is_capped),
        oldest_ready_at=waiting and waiting.ready_since,
    )


@endpoint("POST", "/queues/{path:name}/pause", tag="queues", needs=PAUSE, answers={200: schemas.Paused})
def pause_queue(request: HttpRequest, name: str, query: Query[schemas.OfBackend]) -> schemas.Paused:
    """Pause a queue: workers claim nothing more of it, from their next claim on; what runs goes on."""
    return _set(request, name, query, paused=True)


@endpoint("POST", "/queues/{path:name}/resume", tag="queues", needs=PAUSE, answers={200: schemas.Paused})
def resume_queue(request: HttpRequest, name: str, query: Query[schemas.OfBackend]) -> schemas.Paused:
    """Resume a queue."""
    return _set(request, name, query, paused=False)


def _set(request: HttpRequest, name: str, query: schemas.OfBackend, *, paused: bool) -> schemas.Paused:
    scope.refuse_unknown(request, schemas.OfBackend)
    backend, caller = scope.backend(query.backend), caller_of(request)
    _check(name, backend, caller)
    try:
        with scope.limited(backend.settings.database):
            verb = operations.pause if paused else operations.resume
            changed = verb(name, backend=backend.alias)
    except ValueError as error:
        raise Problem("not-found", str(error)) from None
    if changed:
        told = "pause" if paused else "resume"
        events.API_QUEUE_CHANGED.tell(caller=caller.name, verb=told, queue=name, backend=backend.alias)
    with scope.limited(backend.settings.database):
        known = fleet.is_known(backend, name)
    return schemas.Paused(name=name, backend=backend.alias, paused=paused, changed=changed, known=known)


def _check(name: str, backend: DharaBackend, caller: Caller) -> None:
    try:
        check_queue(name, "queue")
    except ValueError as error:
        raise Problem("not-found", str(error)) from None
    if not caller.has(name):
        raise Problem("not-found", f"There is no queue {plain(name)!r} that is for you to steer.")


@endpoint("GET", "/workers", tag="workers", needs=SEE_WORKERS, answers={200: schemas.Workers})
def list_workers(request: HttpRequest, query: Query[schemas.OfBackend]) -> schemas.Workers:
    """List the workers of a backend."""
    scope.refuse_unknown(request, schemas.OfBackend)
    backend, caller = scope.backend(query.backend), caller_of(request)
    alias = backend.settings.database
    with scope.limited(alias):
        rows = fleet.workers(alias).filter(backend=backend.alias)
        newest = list(rows.order_by(F("stopped_at").desc(nulls_first=True), "-heartbeat_at", "pk")[:_MOST])
    return schemas.Workers(workers=[_worker(row) for row in newest if _concerns(row, caller)])


def _concerns(row: Any, caller: Caller) -> bool:
    """Does the worker serve a queue that the caller has to do with?"""
    include, exclude = _names(row.queues), _names(row.exclude_queues)
    served = [queue for queue in caller.queues if queue not in exclude and (not include or queue in include)]
    return bool(served) or not caller.queues


def _worker(row: Any) -> schemas.Worker:
    return schemas.Worker(
        id=row.id,
        name=row.name,
        backend=row.backend,
        host=row.host,
        pid=row.pid,
        version=row.version,
        status=row.status,
        queues=_names(row.queues),
        exclude_queues=_names(row.exclude_queues),
        concurrency=row.concurrency,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        stopped_at=row.stopped_at,
        memory_bytes=row.memory_bytes,
    )


def _names(column: Any) -> list[str]:
    """A JSON column that anybody may have written."""
    return [name for name in column if isinstance(name, str)] if isinstance(column, list) else []


@endpoint("GET", "/stats", tag="stats", needs=SEE, answers={200: schemas.Stats})
def get_stats(request: HttpRequest, query: Query[schemas.OfRange]) -> schemas.Stats:
    """Count what waits and runs now, and what happened in a range, by queue and function.

    For a token of some queues only these are told, and what there is now of all queues together is null.
    """
    scope.refuse_unknown(request, schemas.OfRange)
    backend, caller = scope.backend(query.backend), caller_of(request)
    alias = backend.settings.database
    history = stats.history(alias, backend.alias, stats.RANGES[query.range])
    now = None if caller.queues else schemas.Now(**stats.standing(alias, backend.alias)._asdict())
    pairs = [_pair(pair, tally) for pair, tally in history.pairs.items() if caller.has(pair[0])]
    return schemas.Stats(backend=backend.alias, range=query.range, now=now, functions=pairs)


def _pair(pair: tuple[str, str], tally: stats.Tally) -> schemas.FunctionStats:
    times: dict[str, Any] = {
        f"{name}_p{percent}": ask(percent / 100)
        for name, ask in (("latency", tally.latency), ("run", tally.run_time))
        for percent in (50, 95, 99)
    }
    counts: dict[str, Any] = {name: tally.counts[name] for name in stats.COUNTED}
    return schemas.FunctionStats(queue=pair[0], type=pair[1], **counts, **times)
