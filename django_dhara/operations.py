"""What code of a project asks of the queue beside enqueueing: cancel and revive tasks, pause and resume queues.

Everything runs on Django's connection of this thread: inside `atomic()` it takes effect at the commit, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from django_dhara.compat import TaskResultDoesNotExist, task_backends
from django_dhara.tasks import Call, backend_of

if TYPE_CHECKING:
    from django_dhara.backend import DharaBackend
    from django_dhara.lifecycle import Answer
    from django_dhara.results import TaskResult


def enqueue_many(calls: Iterable[Call]) -> list[TaskResult]:
    """Enqueue many calls, of one function or of several, by one statement per thousand.

    All of them are enqueued, or none: they share a transaction, the caller's if one is open.

    Args:
        calls: made by `task.bind(...)` or `Call(task, args, kwargs)`; all of one backend.

    Returns:
        The results in the order of `calls`.

    Raises:
        ArgumentsError, PayloadError, IdempotencyConflict: as `enqueue` does, for the first call at fault.
        ValueError: the calls belong to several backends.
    """
    calls = list(calls)
    if not calls:
        return []
    aliases = {call.task.backend for call in calls}
    if len(aliases) > 1:
        raise ValueError(f"enqueue_many takes calls of one backend, not of {', '.join(sorted(aliases))}.")
    backend: DharaBackend = backend_of(calls[0].task)
    return backend.enqueue_many(calls)


def cancel(task_id: str | UUID, *, backend: str = "default") -> Answer:
    """Cancel a task.

    Returns:
        "canceled": it was pending and never starts. "requested": it is running, is told so within a second, and never
        starts again; a success still makes it COMPLETED. "finished": it had ended, and nothing changed.

    Raises:
        TaskResultDoesNotExist: (Django's) there is no such task.
    """
    from django_dhara import lifecycle, sql

    answer = lifecycle.cancel(sql.on(_ours(backend).settings.database), _as_uuid(task_id))
    if answer is None:
        raise TaskResultDoesNotExist(str(task_id))
    if answer == "canceled":
        _tell_canceled(backend, task_id)
    return answer


def revive(task_id: str | UUID, *, backend: str = "default") -> bool:
    """Put a DEAD or CANCELED task back to PENDING, with new budgets; its history stays.

    Returns:
        False if it is in another state: nothing changed.

    Raises:
        TaskResultDoesNotExist: (Django's) there is no such task.
    """
    from django_dhara import lifecycle, sql

    revived = lifecycle.revive(sql.on(_ours(backend).settings.database), _as_uuid(task_id))
    if revived is None:
        raise TaskResultDoesNotExist(str(task_id))
    return revived


def pause(queue: str, *, backend: str = "default") -> None:
    """Let workers claim nothing of a queue, from their next claim on; what runs goes on. It outlasts restarts."""
    _set_paused(queue, backend, paused=True)


def resume(queue: str, *, backend: str = "default") -> None:
    """Undo `pause`."""
    _set_paused(queue, backend, paused=False)


def _set_paused(queue: str, alias: str, *, paused: bool) -> None:
    from django.db.models.functions import Now

    from django_dhara.models import Queue

    paused_at = Now() if paused else None
    rows = Queue.objects.using(_ours(alias).settings.database)
    rows.update_or_create(backend=alias, name=queue, defaults={"paused_at": paused_at})


def _tell_canceled(alias: str, task_id: str | UUID) -> None:
    """`task_canceled` for a task that no worker will settle, once the cancel is committed."""
    from django.db import transaction

    from django_dhara.signals import announce, task_canceled

    backend = _ours(alias)
    if task_canceled.receivers:
        transaction.on_commit(
            lambda: announce(task_canceled, type(backend), task_result=backend.get_result(str(task_id))),
            using=backend.settings.database,
            robust=True,
        )


def _ours(alias: str) -> DharaBackend:
    from django_dhara.backend import DharaBackend

    backend = task_backends[alias]
    if not isinstance(backend, DharaBackend):
        raise TypeError(f"TASKS[{alias!r}] is {type(backend).__name__}, not DharaBackend.")
    return backend


def _as_uuid(task_id: str | UUID) -> UUID:
    try:
        return task_id if isinstance(task_id, UUID) else UUID(task_id)
    except (ValueError, AttributeError, TypeError):
        raise TaskResultDoesNotExist(str(task_id)) from None


__all__ = ["cancel", "enqueue_many", "pause", "resume", "revive"]
