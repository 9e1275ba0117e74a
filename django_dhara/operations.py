"""What code of a project asks of the queue beside enqueueing: change tasks, pause and resume queues.

Everything runs on Django's connection of this thread: inside `atomic()` it takes effect at the commit, or not at all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from django.db import transaction

from django_dhara import wakeup
from django_dhara.compat import TaskResultDoesNotExist, task_backends, task_enqueued
from django_dhara.signals import announce, is_heard, task_canceled, task_committed
from django_dhara.tasks import Call, backend_of

if TYPE_CHECKING:
    from django.dispatch import Signal

    from django_dhara.backend import DharaBackend
    from django_dhara.lifecycle import Answer, Tally
    from django_dhara.results import TaskResult


#: What can be done to tasks. `copy` is to revive as a new task, `snooze` to put off.
Verb = Literal["cancel", "revive", "run_now", "copy", "change_queue", "change_priority", "snooze", "delete"]

#: The longest time, in seconds, by which a task is put off: ten years.
MAX_SNOOZE = 10 * 365 * 86_400.0


def enqueue_many(calls: Iterable[Call]) -> Sequence[TaskResult]:
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
    for call in calls:
        if not isinstance(call, Call):
            raise TypeError(f"enqueue_many takes calls made by task.bind(...), not {type(call).__name__}.")
    if not calls:
        return []
    aliases = {call.task.backend for call in calls}
    if len(aliases) > 1:
        raise ValueError(f"enqueue_many takes calls of one backend, not of {', '.join(sorted(aliases))}.")
    backend: DharaBackend = backend_of(calls[0].task)
    return backend.enqueue_many(calls)


def cancel(task: TaskResult | str | UUID, *, backend: str = "default") -> Answer:
    """Cancel a task.

    Args:
        task: its id, or the result of its enqueue.

    Returns:
        "canceled": it was pending and never starts. "requested": it is running, is told so within a second, and never
        starts again; a success still makes it COMPLETED. "finished": it had ended, and nothing changed.

    Raises:
        TaskResultDoesNotExist: (Django's) there is no such task.
    """
    answer: Answer = next(iter(_changed("cancel", task, backend)), "finished")
    return answer


def revive(task: TaskResult | str | UUID, *, backend: str = "default") -> bool:
    """Put a DEAD or CANCELED task back to PENDING, with new budgets; its history stays.

    Args:
        task: its id, or the result of its enqueue.

    Returns:
        False if it is in another state: nothing changed.

    Raises:
        TaskResultDoesNotExist: (Django's) there is no such task.
    """
    return bool(_changed("revive", task, backend))


def run_now(task: TaskResult | str | UUID, *, backend: str = "default") -> bool:
    """Make a task that waits for its time, or for its next attempt, due at once.

    Args:
        task: its id, or the result of its enqueue.

    Returns:
        False if it was not waiting: nothing changed.

    Raises:
        TaskResultDoesNotExist: (Django's) there is no such task.
    """
    return bool(_changed("run_now", task, backend))


def _changed(verb: Verb, task: TaskResult | str | UUID, alias: str) -> Any:
    task_id = getattr(task, "id", task)
    tally = change(verb, [_as_uuid(task_id)], database=_ours(alias).settings.database, wait=True)
    if tally.missing:
        raise TaskResultDoesNotExist(str(task_id))
    return tally.changed


def change(verb: Verb, ids: Sequence[UUID], *, database: str, wait: bool = False, **arguments: object) -> Tally:
    """Change the tasks with these ids, by one statement, and tell who must know at the commit.

    Args:
        database: the alias in DATABASES that holds them.
        wait: for locked rows, instead of counting them as busy; for a single one.
        arguments: `queue` for change_queue, `priority` for change_priority, `seconds` for snooze.

    Raises:
        ValueError: an argument is missing, too many, or of no use; see `check_arguments`.
    """
    from django_dhara import lifecycle, sql

    given = check_arguments(verb, arguments)
    if verb == "change_queue":
        given["without"] = _without_queue(str(given["queue"]))
    verbs: Mapping[Verb, Callable[..., Tally]] = {
        "cancel": lifecycle.cancel_all,
        "revive": lifecycle.revive_all,
        "run_now": lifecycle.run_now_all,
        "copy": _copy_all,
        "change_queue": lifecycle.change_queue_all,
        "change_priority": lifecycle.change_priority_all,
        "snooze": lifecycle.put_off_all,
        "delete": lifecycle.delete_all,
    }
    tally = verbs[verb](sql.on(database), ids, wait=wait, **given)
    for alias, queue in tally.wake:
        wake_at_commit(database, alias, queue)
    if canceled := tally.changed.get("canceled"):
        transaction.on_commit(partial(_tell_canceled, database, canceled), using=database, robust=True)
    if tally.copies:
        _tell_copied(database, list(tally.copies.values()))
    return tally


def wake_at_commit(database: str, alias: str, queue: str) -> None:
    """Let the workers that serve a queue of the backend `alias` look at once, when this transaction has committed."""
    transaction.on_commit(partial(_wake, database, alias, queue), using=database, robust=True)


def check_arguments(verb: Verb, arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a verb as `change` takes them, such as numbers that came as text.

    Raises:
        ValueError: what is wrong with them, for people: a queue that no backend has, a priority beyond its bounds.
    """
    checks: Mapping[str, tuple[str, Callable[[object], object]]] = {
        "change_queue": ("queue", _checked_queue),
        "change_priority": ("priority", _checked_priority),
        "snooze": ("seconds", _checked_seconds),
    }
    name, check = checks.get(verb, ("", None))
    if set(arguments) != ({name} if check else set()):
        raise ValueError(f"{verb} takes {name or 'no argument'}, not {', '.join(sorted(arguments)) or 'nothing'}.")
    return {name: check(arguments[name])} if check else {}


def _checked_queue(queue: object) -> str:
    from django_dhara.backend import check_queue

    check_queue(queue, "queue")
    ours = [*_our_backends()]
    if ours and len(_without_queue(str(queue))) == len(ours):
        known = sorted({name for backend in ours for name in backend.queues})
        raise ValueError(f"no backend in TASKS has a queue {queue!r}; they have: {', '.join(known)}.")
    return str(queue)


def _without_queue(queue: str) -> list[str]:
    """The backends whose QUEUES are set, and do not have it."""
    return [backend.alias for backend in _our_backends() if backend.queues and queue not in backend.queues]


def _our_backends() -> Iterator[DharaBackend]:
    for backend in task_backends.all():
        if isinstance(backend, _backend_class()):
            yield backend


def _checked_priority(priority: object) -> int:
    from django_dhara.models import MAX_PRIORITY, MIN_PRIORITY

    number = _as_number(priority)
    if not (MIN_PRIORITY <= number <= MAX_PRIORITY and number == int(number)):
        raise ValueError(f"a priority is a whole number between {MIN_PRIORITY} and {MAX_PRIORITY}, not {priority!r}.")
    return int(number)


def _checked_seconds(seconds: object) -> float:
    number = _as_number(seconds)
    if not 0 < number <= MAX_SNOOZE:
        raise ValueError(f"a time to put off is between 0 and {MAX_SNOOZE:.0f} seconds, not {seconds!r}.")
    return number


def _as_number(value: object) -> float:
    """The number that a value is or says; NaN if there is none, which is within no bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _copy_all(execute: Any, ids: Sequence[UUID], *, wait: bool) -> Tally:
    from django_dhara import lifecycle
    from django_dhara.enqueue import new_id

    return lifecycle.copy_all(execute, {id_: new_id() for id_ in ids}, wait=wait)


def _tell_copied(database: str, ids: Sequence[UUID]) -> None:
    """Copies are enqueued: `task_enqueued` now, `task_committed` at the commit."""
    if is_heard(task_enqueued, logging.DEBUG):
        _announce_all(task_enqueued, database, ids)
    if task_committed.receivers:
        transaction.on_commit(partial(_announce_all, task_committed, database, ids), using=database, robust=True)


def _wake(database: str, alias: str, queue: str) -> None:
    backend = next((b for b in task_backends.all() if b.alias == alias), None)
    if isinstance(backend, _backend_class()) and backend.settings.notify:
        wakeup.send(database, alias, [queue])


def _tell_canceled(database: str, ids: Sequence[UUID]) -> None:
    """`task_canceled` for tasks that no worker will settle."""
    if is_heard(task_canceled, logging.INFO):
        _announce_all(task_canceled, database, ids)


def _announce_all(signal: Signal, database: str, ids: Sequence[UUID]) -> None:
    from django_dhara.backend import read_results
    from django_dhara.models import Task as Row

    for _, result in read_results(Row.objects.using(database).filter(id__in=ids), imports=False):
        announce(signal, _backend_class(), task_result=result)


def pause(queue: str, *, backend: str = "default") -> bool:
    """Let workers claim nothing of a queue, from their next claim on; what runs goes on. It outlasts restarts.

    Returns:
        False if it was paused already: nothing changed.

    Raises:
        ValueError: the backend has no such queue.
    """
    ours = _ours(backend)
    _check_name(ours, queue)
    return set_paused(queue, paused=True, backend=backend, database=ours.settings.database) is not None


def resume(queue: str, *, backend: str = "default") -> bool:
    """Undo `pause`, and wake the workers. A queue that is no longer in QUEUES can be resumed, too.

    A queue that nothing else knows, such as a misspelt one, is forgotten: no list shows it any more.

    Returns:
        False if it was not paused: nothing changed.

    Raises:
        ValueError: the backend has no such queue, and it was not paused.
    """
    ours = _ours(backend)
    is_changed = set_paused(queue, paused=False, backend=backend, database=ours.settings.database) is not None
    if not is_changed:
        _check_name(ours, queue)
    forget_unknown(queue, backend=backend)
    return is_changed


#: Somebody may pause it again meanwhile.
_FORGET = """/* dhara:forget_queue */
DELETE FROM dhara_queue WHERE backend = %(backend)s AND name = %(queue)s AND paused_at IS NULL RETURNING 1
"""


def forget_unknown(queue: str, *, backend: str) -> bool:
    """Forget a queue that nothing else knows, unless it is paused. Was it known until now?"""
    from django_dhara import fleet, sql

    ours = _ours(backend)
    if fleet.is_known(ours, queue):
        return False
    return bool(sql.on(ours.settings.database)(_FORGET, {"backend": backend, "queue": queue}))


def _check_name(backend: DharaBackend, queue: str) -> None:
    from django_dhara.backend import check_queue

    if backend.queues and queue not in backend.queues:
        raise ValueError(
            f"TASKS[{backend.alias!r}] has no queue {queue!r}; it has: {', '.join(sorted(backend.queues))}."
        )
    check_queue(queue, "queue")


#: The answer is the row that was changed, under its lock; `update_or_create` would move the time of an earlier pause.
_PAUSE = """/* dhara:pause */
INSERT INTO dhara_queue AS queue (backend, name, paused_at) VALUES (%(backend)s, %(queue)s, statement_timestamp())
ON CONFLICT (backend, name) DO UPDATE SET paused_at = statement_timestamp() WHERE queue.paused_at IS NULL
RETURNING paused_at
"""
_RESUME = """/* dhara:resume */
UPDATE dhara_queue SET paused_at = NULL
WHERE backend = %(backend)s AND name = %(queue)s AND paused_at IS NOT NULL
RETURNING statement_timestamp()
"""


def set_paused(queue: str, *, paused: bool, backend: str, database: str) -> datetime | None:
    """Pause or resume a queue of the alias `backend`, which need not be in TASKS of this project.

    Args:
        database: the alias in DATABASES that holds it.

    Returns:
        When that was, by the database's clock; None if the queue was paused, or was not, already: of two people who
        ask for the same at once one has changed it.
    """
    from django_dhara import sql

    rows = sql.on(database)(_PAUSE if paused else _RESUME, {"backend": backend, "queue": queue})
    if rows and not paused:  # of a pause workers learn from their claims, and until then there is nothing to do
        wake_at_commit(database, backend, queue)
    return rows[0][0] if rows else None


def _ours(alias: str) -> DharaBackend:
    backend = task_backends[alias]
    if not isinstance(backend, _backend_class()):
        raise TypeError(f"TASKS[{alias!r}] is {type(backend).__name__}, not DharaBackend.")
    return backend


def _backend_class() -> type[DharaBackend]:
    from django_dhara.backend import DharaBackend

    return DharaBackend


def _as_uuid(task_id: object) -> UUID:
    if isinstance(task_id, UUID):
        return task_id
    if not isinstance(task_id, str):
        raise TypeError(f"give the task's id, or the result of its enqueue, not {type(task_id).__name__}.")
    try:
        return UUID(task_id)
    except ValueError:
        raise TaskResultDoesNotExist(task_id) from None


__all__ = ["Verb", "cancel", "change", "check_arguments", "enqueue_many", "pause", "resume", "revive", "run_now"]
