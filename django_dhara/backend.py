"""The `django.tasks` backend. Importing it, or making one, imports no model: `@task` does so while apps load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from django_dhara import conf, payload, registry
from django_dhara.compat import BaseTaskBackend, DjangoTask, InvalidTask, TaskResultDoesNotExist
from django_dhara.errors import PayloadError
from django_dhara.tasks import Call, Task

if TYPE_CHECKING:
    from django_dhara.models import Task as Row
    from django_dhara.models import TaskQuerySet
    from django_dhara.results import TaskResult

#: An entry of the index that a claim walks holds the queue's name.
MAX_QUEUE_NAME_LENGTH = 255


def check_queue(name: object, label: str) -> None:
    """Refuse a name that a queue cannot have.

    Raises:
        PayloadError: it calls the name `label`.
    """
    text = payload.check_text(name, label, max_length=MAX_QUEUE_NAME_LENGTH)
    if "," in text or text != text.strip():  # the worker's --queues takes names apart at commas
        raise PayloadError(f"{label} {text!r} has a comma or an outer space in it")


#: So many answers of `validate_task` are remembered.
MOST_REMEMBERED = 10_000


def _asked_of(task: DjangoTask) -> tuple[Any, ...] | None:
    """All that a validation looks at, so that equal ones end alike; None for what has to be asked each time."""
    is_plain = isinstance(task.func, FunctionType) and type(task.priority) is int and type(task.queue_name) is str
    return (task.func, task.queue_name, task.takes_context, task.priority) if is_plain and not task.run_after else None


class QueueBackend(BaseTaskBackend):
    """What our backends have in common, those for tests too: the Task class, the options, and what a call must be."""

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        #: TASKS[alias] as it was written, for the checks.
        self.params = params
        if not _is_list_of_names(params.get("QUEUES", [])):
            # A mistake in it is a system check too; taken as it is, a str would become a set of its letters.
            params = {**params, "QUEUES": []}
        super().__init__(alias, params)
        self._valid: set[tuple[Any, ...]] = set()

    @cached_property
    def settings(self) -> conf.Options:
        """The options, read at first use: a mistake in them is a system check, not a failing import."""
        return conf.read(self.alias, self.options)

    def validate_task(self, task: DjangoTask) -> None:
        """Django's rules, a path that another process can follow, and a queue name that PostgreSQL can hold.

        Raises:
            InvalidTask: (Django's)
        """
        known = _asked_of(task)
        if known is not None and known in self._valid:
            return
        self._validate(task)
        if len(self._valid) >= MOST_REMEMBERED:
            self._valid.clear()
        if known is not None:
            self._valid.add(known)

    def _validate(self, task: DjangoTask) -> None:
        super().validate_task(task)
        if not registry.is_reachable(task.module_path):
            raise InvalidTask(
                f"{task.module_path} cannot be found by a worker: "
                "give the function a name, in a module that is imported and not run."
            )
        try:
            check_queue(task.queue_name, "queue_name")
        except ValueError as error:
            raise InvalidTask(str(error)) from None

    def enqueue(  # type: ignore[override]  # to the stubs a result knows its function's types
        self, task: DjangoTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult:
        """Enqueue one call: `enqueue_many` of it alone."""
        return self.enqueue_many([Call(task, tuple(args), kwargs)])[0]

    def enqueue_many(self, calls: Iterable[Call]) -> Sequence[TaskResult]:
        """Enqueue calls; results come in their order."""
        raise NotImplementedError

    def get_result(self, result_id: str) -> TaskResult:
        """The task with this id."""
        raise NotImplementedError

    async def aget_result(self, result_id: str) -> TaskResult:
        """See `get_result()`."""
        return await sync_to_async(self.get_result, thread_sensitive=True)(result_id)


class DharaBackend(QueueBackend):
    """`{"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": [], "OPTIONS": {...}}`; see `conf.Options`."""

    def enqueue_many(self, calls: Iterable[Call]) -> Sequence[TaskResult]:
        """Insert tasks in the caller's transaction, by one statement per thousand; see `enqueue.enqueue`.

        Raises:
            ImproperlyConfigured: the app is not installed, so there is no table.
        """
        if not apps.is_installed("django_dhara"):
            raise ImproperlyConfigured("Add 'django_dhara' to INSTALLED_APPS and run `manage.py migrate`.")
        from django_dhara.enqueue import enqueue

        return enqueue(self, list(calls))

    def get_result(self, result_id: str) -> TaskResult:
        """Read a task from the database that it is written to, never from a replica.

        Raises:
            TaskResultDoesNotExist: (Django's) no such row, or no id at all.
        """
        from django_dhara.models import Task as Row

        for _, result in read_results(Row.objects.using(self.settings.database).filter(id=_as_uuid(result_id))):
            return result
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> list[Any]:
        """The system checks of this alias; see `checks.py`."""
        from django_dhara.checks import check_backend

        return list(check_backend(self))


def _is_list_of_names(queues: object) -> bool:
    return isinstance(queues, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in queues)


def _as_uuid(result_id: str) -> UUID:
    try:
        return UUID(str(result_id))
    except ValueError:
        raise TaskResultDoesNotExist(result_id) from None


def read_results(rows: TaskQuerySet, *, imports: bool = True) -> Iterator[tuple[Row, TaskResult]]:
    """Rows and their results, in one statement; `imports` as in `results.from_row`."""
    from django.contrib.postgres.expressions import ArraySubquery
    from django.db.models import OuterRef, TextField
    from django.db.models.functions import Cast, JSONObject

    from django_dhara import results
    from django_dhara.models import Attempt

    attempts = Attempt.objects.filter(task_id=OuterRef("id")).order_by("id")
    history = attempts.values(json=JSONObject(error_class="error_class", traceback="traceback", worker_id="worker_id"))
    # The payload is decoded by our own hands: a row written by anybody may hold what Python's json cannot read.
    told: Any = rows.annotate(text=Cast("payload", TextField()), history=ArraySubquery(history)).defer("payload")
    for row in told:
        runs = [Attempt(**run) for run in row.history]
        yield row, results.from_row(row, runs, *payload.decode(row.text), imports=imports)
