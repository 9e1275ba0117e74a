"""What one sees of a task from outside: Django's TaskResult, told from its row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from django_dhara import registry, tracing
from django_dhara.compat import DjangoTask, TaskError, TaskResultStatus
from django_dhara.compat import TaskResult as DjangoTaskResult
from django_dhara.errors import UnknownFunction
from django_dhara.states import State
from django_dhara.tasks import Task

if TYPE_CHECKING:
    from django_dhara import models

#: Django's closed set of states, and ours compressed into it.
STATUS = {
    State.PENDING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELED: TaskResultStatus.FAILED,
}

_REFRESHED = (
    "errors",
    "_return_value",
    "finished_at",
    "started_at",
    "last_attempted_at",
    "status",
    "enqueued_at",
    "worker_ids",
    "state",
    "progress",
    "counted",
    "committed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(DjangoTaskResult):  # type: ignore[misc]  # frozen too; the stubs do not say so
    """Django's TaskResult, with the state behind its status."""

    #: The real state; `status` is Django's coarser view of it.
    state: State = field(default=State.PENDING, compare=False)
    #: An enqueue with an idempotency key found this task instead of making it.
    duplicate: bool = field(default=False, compare=False)
    #: False until the transaction of the enqueue has really committed. A block that ended quietly proves no commit.
    committed: bool = field(default=True, compare=False)
    #: The last value that the function reported by `context.progress()`.
    progress: Any = field(default=None, compare=False)
    #: Failed and lost runs, and the present or successful one.
    counted: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        """Arguments were normalised before they got here."""

    @property
    def attempts(self) -> int:
        return self.counted

    @property
    def is_canceled(self) -> bool:
        return self.state == State.CANCELED

    def refresh(self) -> None:
        """Read the task again.

        Raises:
            TaskResultDoesNotExist: (Django's) it was pruned, or its enqueue was rolled back.
        """
        fresh = self.task.get_backend().get_result(self.id)
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(fresh, name))

    async def arefresh(self) -> None:
        """See `refresh()`."""
        await sync_to_async(self.refresh, thread_sensitive=True)()


def make(task: DjangoTask, *, return_value: Any = None, **named: Any) -> TaskResult:
    """A TaskResult; `_return_value` is no argument of Django's constructor."""
    result = TaskResult(task=task, status=STATUS[named["state"]], **named)
    object.__setattr__(result, "_return_value", return_value)
    return result


def from_row(
    row: models.Task,
    attempts: Iterable[models.Attempt],
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    imports: bool = True,
) -> TaskResult:
    """The result of the task `row`, with its failed and lost runs in order.

    Args:
        imports: whether the module of its function may be imported; without it an unknown function gets a stand-in.
    """
    attempts = list(attempts)
    errors = [TaskError(exception_class_path=a.error_class, traceback=a.traceback) for a in attempts]
    worker_ids = [str(a.worker_id) for a in attempts]
    present = row.state in (State.RUNNING, State.COMPLETED)
    if present and row.worker_id:
        worker_ids.append(str(row.worker_id))
    if row.state == State.CANCELED:
        end_canceled(errors)
    return make(
        task_of(row, imports=imports),
        id=str(row.id),
        state=State(row.state),
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        last_attempted_at=row.attempted_at,
        finished_at=row.finished_at,
        args=args,
        kwargs=kwargs,
        backend=row.backend,
        errors=errors,
        worker_ids=worker_ids,
        return_value=row.result,
        progress=row.progress,
        counted=row.failures + row.lost + present,
    )


def in_django_time(value: datetime | None, alias: str) -> datetime | None:
    """A time that the worker's own session has read, as Django's connection `alias` would have read it."""
    if value is None or timezone.is_naive(value):
        return value
    zone = connections[alias].timezone
    return timezone.make_naive(value, timezone.get_default_timezone()) if zone is None else value.astimezone(zone)


def end_canceled(errors: list[TaskError]) -> None:
    """The last error of a canceled task is TaskCanceled, raised by its function or not."""
    path = "django_dhara.errors.TaskCanceled"
    if not errors or errors[-1].exception_class_path != path:
        errors.append(TaskError(exception_class_path=path, traceback=""))


def task_of(row: models.Task, *, imports: bool = True) -> DjangoTask:
    """The Task of a row. Unlike `using()` it validates nothing: the row may come from other code or other settings."""
    options = {
        "priority": row.priority,
        "queue_name": row.queue,
        "backend": row.backend,
        "run_after": row.run_at if row.run_at > row.enqueued_at else None,
    }
    task: DjangoTask
    try:
        task = registry.resolve(row.function) if imports else registry.known(row.function) or missing_task(row.function)
    except Exception:
        task = missing_task(row.function)
    if isinstance(task, Task):
        options |= {"metadata": tracing.without_carrier(row.metadata), "idempotency_key": row.idempotency_key}
    return changed(task, **options)


def changed(task: DjangoTask, **changes: Any) -> DjangoTask:
    """A copy of a task with other options, not validated: they may come from other code or other settings."""
    copy: DjangoTask = object.__new__(type(task))
    for f in fields(task):
        object.__setattr__(copy, f.name, changes[f.name] if f.name in changes else getattr(task, f.name))
    return copy


def missing_task(path: str) -> DjangoTask:
    """Stands for a function that does not exist in this process; calling it raises UnknownFunction."""

    def missing(*args: Any, **kwargs: Any) -> None:
        raise UnknownFunction(f"{path} does not exist in this process.")

    missing.__module__, _, missing.__qualname__ = path.rpartition(".")
    missing.__name__ = missing.__qualname__
    task = object.__new__(Task)
    values = {"func": missing, "priority": 0, "queue_name": "default", "backend": "default", "run_after": None}
    for f in fields(Task):
        object.__setattr__(task, f.name, values.get(f.name, False if f.type == "bool" else None))
    return task


def enqueued_task(task: DjangoTask, **changes: Any) -> DjangoTask:
    """`task` as it stands in its row: a relative `run_after` has become a time."""
    return changed(task, delay=None, **changes) if isinstance(task, Task) and task.delay is not None else task
