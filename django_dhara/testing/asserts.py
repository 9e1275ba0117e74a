"""What was enqueued, and asserts that say what was where they fail."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Signature, signature
from typing import Any

from django_dhara import payload, registry
from django_dhara.backend import DharaBackend
from django_dhara.compat import DjangoTask, task_backends
from django_dhara.results import TaskResult
from django_dhara.testing.backends import MemoryBackend

#: A failure shows at most so many tasks.
SHOWN = 20


def enqueued(task: DjangoTask | str | None = None, /, *, backend: str | None = None) -> list[TaskResult]:
    """The tasks that this test sees, as they stand now, in the order of their enqueue; also those that have run.

    Args:
        task: only of this function, given as its task or its dotted path.
        backend: the alias in TASKS; by default that of `task`, or "default".

    Returns:
        TaskResults, with `task`, `args`, `kwargs`, `status` and the rest.
    """
    alias = backend or (task.backend if isinstance(task, DjangoTask) else "default")  # type: ignore[misc]
    path = _path(task)
    return [result for result in _all(alias, path) if path is None or result.task.module_path == path]


def assert_enqueued(
    task: DjangoTask | str,
    /,
    *args: Any,
    times: int | None = None,
    queue: str | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> list[TaskResult]:
    """Assert that `task` was enqueued, with these arguments if any are given.

    `f.enqueue(1, b=2)` and `f.enqueue(a=1, b=2)` are the same call; arguments are compared as the function receives
    them, after JSON. For a parameter that is called `times`, `queue` or `backend` look into `enqueued(task)`.

    Args:
        times: exactly so often; without it at least once.
        queue: on this queue.

    Returns:
        The tasks that match.

    Raises:
        AssertionError: it lists what was enqueued.
    """
    __tracebackhide__ = True
    found = [result for result in enqueued(task, backend=backend) if _matches(result, args, kwargs, queue)]
    if not found if times is None else len(found) != times:
        wanted = "at least once" if times is None else f"{times} times"
        raise AssertionError(
            f"{_call(_path(task), args, kwargs, queue)} was to be enqueued {wanted}, and was {len(found)} times. "
            f"{_told(task, backend)}"
        )
    return found


def assert_not_enqueued(
    task: DjangoTask | str | None = None,
    /,
    *args: Any,
    queue: str | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> None:
    """Assert that `task` was not enqueued, with these arguments if any are given; without a task: nothing was.

    Raises:
        AssertionError: it lists what was enqueued.
    """
    __tracebackhide__ = True
    found = [result for result in enqueued(task, backend=backend) if _matches(result, args, kwargs, queue)]
    if found:
        what = _call(_path(task), args, kwargs, queue) if task else "anything"
        raise AssertionError(f"{what} was not to be enqueued, and {len(found)} were. {_told(task, backend)}")


def _path(task: DjangoTask | str | None) -> str | None:
    return task.module_path if isinstance(task, DjangoTask) else task  # type: ignore[misc]


def _all(alias: str, path: str | None) -> Iterator[TaskResult]:
    backend = task_backends[alias]
    if isinstance(backend, MemoryBackend):
        yield from backend.calls
    elif isinstance(backend, DharaBackend):
        yield from _rows(backend, path)
    else:
        raise TypeError(f"TASKS[{alias!r}] is {type(backend).__name__}: django_dhara.testing knows its own backends.")


def _rows(backend: DharaBackend, path: str | None) -> Iterator[TaskResult]:
    from django_dhara.backend import read_results
    from django_dhara.models import Task

    rows = Task.objects.using(backend.settings.database).filter(backend=backend.alias)
    rows = rows if path is None else rows.filter(function=path)
    for _, result in read_results(rows.order_by("enqueued_at", "id")):
        yield result


def _matches(result: TaskResult, args: tuple[Any, ...], kwargs: dict[str, Any], queue: str | None) -> bool:
    if queue is not None and result.task.queue_name != queue:
        return False
    if not args and not kwargs:
        return True
    wanted = payload.encode(args, kwargs, max_bytes=50_000_000)
    expected = _bound(result.task, wanted.args, wanted.kwargs)
    return expected == _bound(result.task, result.args, result.kwargs)


def _bound(task: DjangoTask, args: list[Any], kwargs: dict[str, Any]) -> object:
    """Arguments by the names of their parameters, as far as the function tells them."""
    context = (None,) if task.takes_context else ()
    try:
        return _signature(task).bind_partial(*context, *args, **kwargs).arguments
    except (TypeError, ValueError):
        return args, kwargs


def _signature(task: DjangoTask) -> Signature:
    return signature(registry.resolve(task.module_path).func)


def _told(task: DjangoTask | str | None, backend: str | None) -> str:
    alias = backend or (task.backend if isinstance(task, DjangoTask) else "default")  # type: ignore[misc]
    everything = enqueued(backend=alias)
    if not everything:
        return f"On backend {alias!r} nothing was enqueued."
    shown = [f"  {_call(r.task.module_path, r.args, r.kwargs, r.task.queue_name)}: {r.state}" for r in everything]
    more = [f"  ... and {len(shown) - SHOWN} more"] if len(shown) > SHOWN else []
    return "\n".join([f"On backend {alias!r} were enqueued:", *shown[:SHOWN], *more])


def _call(path: str | None, args: Any, kwargs: Any, queue: str | None) -> str:
    given = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    inside = ", ".join(given)
    inside = inside if len(inside) <= 300 else f"{inside[:300]}…"
    return f"{path}({inside})" + (f" on queue {queue!r}" if queue else "")
