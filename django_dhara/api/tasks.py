"""Tasks: enqueue, list, show, cancel, retry."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Query
from ninja.responses import Status

from django_dhara import databases, events, models, operations
from django_dhara.api import calls, finding, schemas, scope, shown
from django_dhara.api.access import CANCEL, ENQUEUE, RETRY, SEE, Caller, caller_of
from django_dhara.api.problems import Problem
from django_dhara.api.service import endpoint
from django_dhara.lifecycle import Tally
from django_dhara.results import TaskResult

_TAG = "tasks"
#: What a replay does not tell somebody who may enqueue and not read.
_HIDDEN: dict[str, Any] = {"result": None, "progress": None, "metadata": None, "error": None, "errors": []}


@endpoint(
    "POST", "/tasks", tag=_TAG, needs=ENQUEUE, answers={201: schemas.Enqueued, 200: schemas.Enqueued}, problems=(409,)
)
def enqueue_task(request: HttpRequest, item: schemas.NewTask, response: HttpResponse) -> Status[schemas.Enqueued]:
    """Enqueue a task.

    200 with the task that is there, where a task of this function has this idempotency key and the same payload. Who
    may enqueue and not read sees neither its result nor its errors.
    """
    caller = caller_of(request)
    result = calls.enqueue(item, caller)
    response["Location"] = f"{request.path}/{result.id}"
    return Status(200 if result.duplicate else 201, _enqueued(result, caller))


@endpoint(
    "POST",
    "/tasks/bulk",
    tag=_TAG,
    needs=ENQUEUE,
    answers={201: schemas.EnqueuedTasks, 200: schemas.EnqueuedTasks},
    problems=(409,),
)
def enqueue_tasks(request: HttpRequest, bulk: schemas.NewTasks) -> Status[schemas.EnqueuedTasks]:
    """Enqueue many tasks of one backend, all or none.

    200 where all of them were there, by their idempotency keys. A problem names the one that is at fault.
    """
    caller = caller_of(request)
    results = list(calls.enqueue_all(bulk.tasks, caller))
    is_old = all(result.duplicate for result in results)
    told = schemas.EnqueuedTasks(tasks=[_enqueued(result, caller) for result in results])
    return Status(200 if is_old else 201, told)


def _enqueued(result: TaskResult, caller: Caller) -> schemas.Enqueued:
    backend = scope.backend(result.backend)
    if not result.duplicate:
        task: Any = result.task
        return shown.enqueued(result, task.max_attempts or backend.settings.max_attempts)
    alias = backend.settings.database
    with scope.limited(alias):
        row = shown.with_texts(models.Task.objects.using(alias).filter(id=result.id)).first()
        if row is None or not caller.has(row.queue):
            detail = "A task with this key is in a queue that this token is not good for, or was there a moment ago."
            raise Problem("idempotency-conflict", detail, field="idempotency_key")
        found = shown.task(row, alias)
    hidden = {} if caller.may(SEE) else _HIDDEN
    return schemas.Enqueued(**{**dict(found), **hidden}, duplicate=True)


@endpoint("GET", "/tasks", tag=_TAG, needs=SEE, answers={200: schemas.Tasks})
def list_tasks(request: HttpRequest, query: Query[schemas.Listing]) -> schemas.Tasks:
    """List tasks.

    The newest enqueued first; with a final status those that ended last. A page may hold fewer tasks than asked for and
    still not be the last: follow `next` until it is null. `offset` skips what `next` would pass.
    """
    scope.refuse_unknown(request, schemas.Listing)
    backend = scope.backend(query.backend)
    alias = backend.settings.database
    asked = finding.wanted(query, query.status, backend.alias, caller_of(request))
    page = finding.page(alias, asked, limit=query.limit, cursor=query.cursor, offset=query.offset)
    with scope.limited(alias):
        rows = models.Task.objects.using(alias).filter(id__in=page.ids).defer(*shown.HEAVY)
        by_id = {row.id: row for row in rows}
    return schemas.Tasks(tasks=[shown.summary(by_id[id_]) for id_ in page.ids if id_ in by_id], next=page.next)


@endpoint("GET", "/tasks/{uuid:task_id}", tag=_TAG, needs=SEE, answers={200: schemas.Task})
def get_task(request: HttpRequest, task_id: UUID) -> schemas.Task:
    """Show a task, with its payload, result, and failed runs."""
    alias = _alias_of(task_id, caller_of(request))
    with scope.limited(alias):
        row = shown.with_texts(models.Task.objects.using(alias).filter(id=task_id)).first()
        if row is None:
            raise _unknown(task_id)
        return shown.task(row, alias)


def _alias_of(task_id: UUID, caller: Caller) -> str:
    """The database that holds a task which this caller has to do with."""
    for alias in databases.aliases():
        with scope.limited(alias):
            queue = models.Task.objects.using(alias).filter(id=task_id).values_list("queue", flat=True).first()
        if queue is not None and caller.has(queue):
            return alias
    raise _unknown(task_id)


def _unknown(task_id: UUID) -> Problem:
    return Problem("not-found", f"There is no task {task_id} (any more), or it is not for you to see.")


@endpoint("DELETE", "/tasks/{uuid:task_id}", tag=_TAG, needs=CANCEL, answers={200: schemas.Canceled})
def cancel_task(request: HttpRequest, task_id: UUID) -> schemas.Canceled:
    """Cancel a task, pending or running."""
    tally = _changed("cancel", task_id, caller_of(request))
    answer: Any = next(iter(tally.changed), "finished")
    return schemas.Canceled(id=task_id, answer=answer)


@endpoint("POST", "/tasks/{uuid:task_id}/retry", tag=_TAG, needs=RETRY, answers={200: schemas.Retried}, problems=(409,))
def retry_task(request: HttpRequest, task_id: UUID) -> schemas.Retried:
    """Retry a task that is DEAD or CANCELED: it becomes PENDING, with all its attempts anew."""
    tally = _changed("revive", task_id, caller_of(request))
    if not tally.changed:
        raise Problem("wrong-status", "Only a task that is DEAD or CANCELED can be retried.")
    return schemas.Retried(id=task_id, answer="retried")


def _changed(verb: operations.Verb, task_id: UUID, caller: Caller) -> Tally:
    alias = _alias_of(task_id, caller)
    with scope.limited(alias):
        tally = operations.change(verb, [task_id], database=alias, wait=True)
    if tally.missing:
        raise _unknown(task_id)
    _log(verb, caller, tally)
    return tally


def _log(verb: str, caller: Caller, tally: Tally) -> None:
    for answer, ids in tally.changed.items():
        one = str(ids[0]) if len(ids) == 1 else None
        what = one or f"{len(ids)} tasks"
        events.API_CHANGED.tell(caller=caller.name, verb=verb, what=what, answer=answer, task_id=one, count=len(ids))
