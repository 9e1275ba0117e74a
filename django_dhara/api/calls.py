"""A request becomes a call of a registered function, and is enqueued as user code would enqueue it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django_dhara import enqueue_many, payload, project, registry, sql
from django_dhara.api import shown
from django_dhara.api.access import SEE, Caller
from django_dhara.api.problems import Problem
from django_dhara.api.schemas import NewTask
from django_dhara.backend import DharaBackend
from django_dhara.compat import DjangoTask, InvalidTask
from django_dhara.enqueue import check
from django_dhara.errors import ArgumentsError, IdempotencyConflict, PayloadError, PayloadTooLarge
from django_dhara.models import Task as Row
from django_dhara.results import TaskResult
from django_dhara.tasks import Call, Task, backend_of

_EXPLICIT = {"args", "kwargs"}
#: How `payload.encode` begins its messages: the path of the value.
_PATH = re.compile(r"(args|kwargs)(\S*): (.*)", re.DOTALL)


def call_of(item: NewTask, caller: Caller) -> Call:
    """The call that a request asks for.

    Raises:
        Problem: it names the field that is wrong, or what this caller may not do.
    """
    task = _function(item.type)
    # One by one, so that the field is known by which Django or we refuse it.
    for field, option, value in (
        ("queue", "queue_name", item.queue),
        ("priority", "priority", item.priority),
        ("run_at", "run_after", item.run_at),
        ("max_attempts", "max_attempts", item.max_attempts),
        ("idempotency_key", "idempotency_key", item.idempotency_key),
    ):
        if value is not None:
            task = _with(task, field, option, value)
    if not caller.has(task.queue_name):
        raise Problem("forbidden", f"This token is not good for the queue {task.queue_name!r}.", field="queue")
    args, kwargs = _arguments(item.payload)
    return Call(task, args, kwargs)


def _function(path: str) -> Task:
    """The task at a path that is registered already: what a request says is never imported."""
    registry.discover()
    task = registry.known(path)
    if not isinstance(task, Task):
        raise Problem("invalid", f"There is no task function {payload.plain(path)!r} here.", field="type")
    if not isinstance(task.get_backend(), DharaBackend):
        detail = f"{task.module_path} is of TASKS[{task.backend!r}], which is not a queue of this API."
        raise Problem("invalid", detail, field="type")
    return task


def _with(task: Task, field: str, option: str, value: Any) -> Task:
    try:
        return task.using(**{option: value})
    except InvalidTask as error:
        raise Problem("invalid", str(error), field=field) from None


def _arguments(given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By name; or taken apart, if there are no keys but `args` and `kwargs`."""
    if not given or not given.keys() <= _EXPLICIT:
        return (), given
    args, kwargs = given.get("args", []), given.get("kwargs", {})
    if not isinstance(args, list):
        raise Problem("invalid", "args must be a list.", field="payload.args")
    if not isinstance(kwargs, dict):
        raise Problem("invalid", "kwargs must be an object.", field="payload.kwargs")
    return tuple(args), kwargs


def enqueue(item: NewTask, caller: Caller) -> TaskResult:
    """Enqueue one.

    Raises:
        Problem
    """
    call = call_of(item, caller)
    try:
        with _limited(call.task, is_keyed=item.idempotency_key is not None):
            return enqueue_many([call])[0]
    except (ArgumentsError, PayloadError) as error:
        raise _unfit(error, item) from None
    except IdempotencyConflict as error:
        raise _conflict(error, call, caller) from None


def enqueue_all(items: Sequence[NewTask], caller: Caller) -> Sequence[TaskResult]:
    """Enqueue all, or none.

    Raises:
        Problem: it names the element of `tasks` that is at fault.
    """
    most = project.usable().api_max_bulk
    if len(items) > most:
        raise Problem("too-large", f"A bulk may have {most:,} tasks, not {len(items):,}.", field="tasks")
    calls = [_at(position, call_of, item, caller) for position, item in enumerate(items)]
    for position, call in enumerate(calls):
        if call.task.backend != calls[0].task.backend:
            detail = f"A bulk is of one backend: the first task is of {calls[0].task.backend!r}."
            raise Problem("invalid", detail, field=f"tasks[{position}].type")
    try:
        with _limited(calls[0].task, is_keyed=any(item.idempotency_key is not None for item in items)):
            return enqueue_many(calls)
    except (ArgumentsError, PayloadError):
        for position, (call, item) in enumerate(zip(calls, items, strict=True)):
            _at(position, _check, call, item)
        raise
    except IdempotencyConflict as error:
        position = _culprit(error, calls)
        raise _conflict(error, calls[position], caller).under(f"tasks[{position}]") from None


def _at(position: int, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Problem as problem:
        raise problem.under(f"tasks[{position}]") from None


def _check(call: Call, item: NewTask) -> None:
    try:
        check(backend_of(call.task), call)
    except (ArgumentsError, PayloadError) as error:
        raise _unfit(error, item) from None


def _limited(task: DjangoTask, *, is_keyed: bool) -> AbstractContextManager[None]:
    """Only a key can make an INSERT wait: for the transaction of who has just taken it."""
    if not is_keyed:
        return nullcontext()
    return sql.time_limit(backend_of(task).settings.database, project.usable().api_statement_seconds)


def _unfit(error: ArgumentsError | PayloadError, item: NewTask) -> Problem:
    kind = "too-large" if isinstance(error, PayloadTooLarge) else "invalid"
    found = _PATH.fullmatch(str(error))
    if found is None:
        return Problem(kind, str(error), field="payload")
    is_explicit = bool(item.payload) and item.payload.keys() <= _EXPLICIT
    path = f".{found[1]}{found[2]}" if is_explicit else found[2]
    return Problem(kind, found[3], field=f"payload{path}")


def _culprit(error: IdempotencyConflict, calls: Sequence[Call]) -> int:
    """Which call has the key and other arguments than the task that holds it; or, in this bulk, than the first one."""
    positions = [
        position
        for position, call in enumerate(calls)
        if (call.task.module_path, getattr(call.task, "idempotency_key", None)) == (error.function, error.key)
    ]
    backend = backend_of(calls[0].task)
    hashes = {position: check(backend, calls[position]).hash for position in positions}
    stored = _stored_hash(error, backend.settings.database)
    reference = stored or hashes[positions[0]]
    return next((position for position in positions if hashes[position] != reference), positions[-1])


def _stored_hash(error: IdempotencyConflict, alias: str) -> bytes | None:
    rows = Row.objects.using(alias).filter(id=error.task_id)
    found = rows.values_list("payload_hash", flat=True).first()
    return bytes(found) if found else None


#: Of a key that is in one bulk twice.
_SAME = "is the same as that of tasks[{}],"


def _conflict(error: IdempotencyConflict, call: Call, caller: Caller) -> Problem:
    """Both are named; the arguments are told to those who may see the task that has the key."""
    whose = f"belongs to task {error.task_id}, which has" if error.position is None else f"{_SAME} with"
    detail = (
        f"idempotency_key {error.key!r} of {error.function} {whose.format(error.position)} other arguments than this "
        f"call. Use another key, or the same payload, given the same way: `args` and names are not the same."
    )
    alias = backend_of(call.task).settings.database
    row = shown.with_texts(Row.objects.using(alias).filter(id=error.task_id)).first()
    both: dict[str, Any] = {}
    if row is not None and caller.may(SEE) and caller.has(row.queue):
        given = json.dumps({"args": call.args, "kwargs": call.kwargs})
        both["existing"] = {"id": str(row.id), "payload": shown.payload(row.function, row.payload_text)}
        both["given"] = {"payload": shown.payload(row.function, given)}
    return Problem("idempotency-conflict", detail, field="idempotency_key", **both)
