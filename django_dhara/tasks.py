"""What users decorate functions with: Django's Task and our options on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature, iscoroutinefunction, signature
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_dhara import registry
from django_dhara.compat import DjangoTask, InvalidTask
from django_dhara.errors import ArgumentsError
from django_dhara.payload import check_text
from django_dhara.retry import Backoff

#: A key is part of an index entry, which PostgreSQL limits to about 2,700 bytes.
MAX_KEY_LENGTH = 255
#: A later date is more likely a mistake than a plan, and a date near the year 9999 breaks its readers.
MAX_DELAY = timedelta(days=36_500)


class _Shape(NamedTuple):
    """What a function can be called with."""

    signature: Signature | None
    #: With so many arguments by position and none by name the call is right, and nothing else needs to be asked.
    least: int
    most: int


_shapes: WeakKeyDictionary[Callable[..., Any], _Shape] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(DjangoTask):
    """A function that can be enqueued. Make it with `@task`; `using()` returns a copy for one call.

    The fields of Django's Task (func, priority, backend, queue_name, run_after, takes_context), and ours. None always
    means: as the backend's OPTIONS say.
    """

    #: Failed and lost runs after which the task is DEAD.
    max_attempts: int | None = field(default=None, compare=False)
    #: `backoff(exception, task_result)` -> seconds until the next attempt, or None: do not retry. See `retry.py`.
    backoff: Backoff | None = field(default=None, compare=False)
    #: Seconds that one run may take.
    timeout: float | None = field(default=None, compare=False)
    #: Run the function and settle the task in one transaction on the task's database.
    atomic: bool = field(default=False, compare=False)
    #: A JSON object of the caller's own, readable in the context and in the admin.
    metadata: Mapping[str, Any] | None = field(default=None, compare=False)
    #: While a task of this function with this key exists, enqueueing again returns that one.
    idempotency_key: str | None = field(default=None, compare=False)
    #: `run_after` given as a timedelta: counted from the enqueue, by the database's clock.
    delay: timedelta | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_options(self)
        # A slotted dataclass has no zero-argument super(): the class that it closes over is not the final one.
        DjangoTask.__post_init__(self)
        registry.register(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Task:
        """A copy with other options; None leaves an option as it is.

        Args:
            run_after: run not before this aware datetime, or this timedelta after the enqueue.
            idempotency_key: up to 255 characters; scoped to the function, and kept while the task's row exists.
                Arguments are compared as they were given: `enqueue(7)` and `enqueue(order_id=7)` are not the same.
            timeout: seconds.

        Raises:
            InvalidTask: (Django's) a value that the backend cannot accept; the message names it.
        """
        given = {
            "priority": priority,
            "queue_name": queue_name,
            "backend": backend,
            "idempotency_key": idempotency_key,
            "max_attempts": max_attempts,
            "timeout": timeout,
            "metadata": metadata,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if isinstance(run_after, timedelta):
            changes |= {"delay": run_after, "run_after": None}
        elif run_after is not None:
            changes |= {"delay": None, "run_after": run_after}
        return replace(self, **changes)

    def __reduce__(self) -> tuple[Any, ...]:
        """By the path of the function, as Django 6.1 does it; a backoff is the decorated one's, it may be a lambda."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("func", "backoff")}
        return _unpickled, (self.module_path, options)

    def bind(self, *args: Any, **kwargs: Any) -> Call:
        """This task with arguments, for `enqueue_many`, which checks them.

        Args:
            args, kwargs: of the function, without its context.
        """
        return Call(self, args, kwargs)


def _unpickled(path: str, options: dict[str, Any]) -> Task:
    try:
        decorated = import_string(path)
    except ImportError as error:
        raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
    if not isinstance(decorated, Task):
        raise ValueError(f"Expected {path!r} to point to a Task instance.")
    return replace(decorated, **options)


@dataclass(frozen=True, slots=True)
class Call:
    """A task and the arguments of one call of it."""

    task: DjangoTask
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@overload
def task(function: Callable[..., Any], /) -> Task: ...


@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    timeout: float | None = None,
    atomic: bool = False,
) -> Callable[[Callable[..., Any]], Task]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    timeout: float | None = None,
    atomic: bool = False,
) -> Task | Callable[[Callable[..., Any]], Task]:
    """Decorate a module-level function so that it can be enqueued, on any Django and with any tasks backend.

    Args:
        priority: -100 to 100; larger runs sooner.
        backend: an alias in TASKS.
        takes_context: the function's first parameter is `context` and receives a `Context`.
        max_attempts, backoff, timeout, atomic: see `Task`.

    Raises:
        InvalidTask: (Django's) an option or the function cannot be accepted.
    """

    def decorate(func: Callable[..., Any]) -> Task:
        return Task(
            func=func,
            priority=priority,
            backend=backend,
            queue_name=queue_name,
            run_after=None,
            takes_context=takes_context,
            max_attempts=max_attempts,
            backoff=backoff,
            timeout=timeout,
            atomic=atomic,
        )

    return decorate if function is None else decorate(function)


def bind_arguments(task: DjangoTask, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that the function could not be called with.

    Raises:
        ArgumentsError: it names the function, the parameter and the signature.
    """
    shape = _shapes.get(task.func)
    if shape is None:
        shape = _shapes[task.func] = _shape(task.func)
    if shape.signature is None or (not kwargs and shape.least <= len(args) + task.takes_context <= shape.most):
        return
    context = (None,) if task.takes_context else ()
    try:
        shape.signature.bind(*context, *args, **kwargs)
    except TypeError as error:
        shown = _without_context(shape.signature) if task.takes_context else shape.signature
        raise ArgumentsError(f"{task.module_path}{shown}: {error}.") from None


def _without_context(found: Signature) -> Signature:
    """What a caller gives: the context comes from the worker."""
    return found.replace(parameters=[*found.parameters.values()][1:])


def _shape(func: Callable[..., Any]) -> _Shape:
    try:
        found = signature(func)
    except ValueError:
        return _Shape(None, 0, 0)  # a builtin that does not tell its signature
    parameters = found.parameters.values()
    if any(each.kind is not Parameter.POSITIONAL_OR_KEYWORD for each in parameters):
        return _Shape(found, 1, 0)
    return _Shape(found, sum(each.default is Parameter.empty for each in parameters), len(parameters))


def _check_options(task: Task) -> None:
    _check_priority(task.priority)
    if task.max_attempts is not None and (not _whole(task.max_attempts) or not 1 <= task.max_attempts <= 10_000):
        raise InvalidTask(f"max_attempts must be a whole number between 1 and 10000, not {task.max_attempts!r}.")
    if task.timeout is not None and not _seconds(task.timeout):
        raise InvalidTask(f"timeout must be a positive number of seconds, not {task.timeout!r}.")
    if task.backoff is not None and not callable(task.backoff):
        raise InvalidTask(f"backoff must be callable as backoff(exception, task_result), not {task.backoff!r}.")
    if task.atomic and iscoroutinefunction(task.func):
        raise InvalidTask("atomic=True needs a plain function: Django's transactions do not work in `async def`.")
    if task.metadata is not None and not isinstance(task.metadata, Mapping):
        raise InvalidTask(f"metadata must be a mapping, not {type(task.metadata).__name__}.")
    if task.idempotency_key is not None:
        _check_key(task.idempotency_key)
    _check_time(task)


def _check_priority(priority: object) -> None:
    """What Django's own rule cannot compare; it refuses the rest."""
    if not isinstance(priority, (int, float)) or priority != priority:  # noqa: PLR0124 - NaN is not itself
        raise InvalidTask(f"priority must be a whole number between -100 and 100, not {priority!r}.")


def _check_key(key: str) -> None:
    try:
        check_text(key, "idempotency_key", max_length=MAX_KEY_LENGTH)
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def _check_time(task: Task) -> None:
    if task.delay is not None and not timedelta(0) <= task.delay <= MAX_DELAY:
        raise InvalidTask(f"run_after must be between no time and {MAX_DELAY.days} days, not {task.delay!r}.")
    if task.run_after is not None and not isinstance(task.run_after, datetime):
        raise InvalidTask(f"run_after must be a datetime or a timedelta, not {task.run_after!r}.")
    if task.run_after is not None and not 1900 <= task.run_after.year <= datetime.now(UTC).year + 100:
        raise InvalidTask(f"run_after must be within the next hundred years, not {task.run_after!r}.")
    if task.delay is not None and not task.get_backend().supports_defer:
        raise InvalidTask("Backend does not support run_after.")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def backend_of(task: DjangoTask) -> Any:
    """The backend of a task.

    Raises:
        ImproperlyConfigured: it is none of ours.
    """
    backend = task.get_backend()
    if not hasattr(backend, "enqueue_many"):
        raise ImproperlyConfigured(
            f"TASKS[{task.backend!r}] is {type(backend).__name__}: use django_dhara.backend.DharaBackend."
        )
    return backend
