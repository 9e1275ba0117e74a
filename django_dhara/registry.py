"""Which functions are tasks: the only things that a stored path can ever call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from inspect import iscoroutinefunction
from threading import Lock
from typing import TYPE_CHECKING

from django.utils.module_loading import autodiscover_modules

from django_dhara.compat import DjangoTask
from django_dhara.errors import UnknownFunction

if TYPE_CHECKING:
    from django_dhara.tasks import Task

_tasks: dict[str, DjangoTask] = {}
#: The paths of known tasks by kind.
async_paths: set[str] = set()
plain_paths: set[str] = set()
_discovery = Lock()
_discovered = False


def register(task: Task) -> None:
    """Remember the task that was decorated; a copy made by `using()` does not take its place."""
    path = task.module_path
    known = _tasks.get(path)
    if known is None or known.func is not task.func:
        _remember(path, task)


def _remember(path: str, task: DjangoTask) -> None:
    _tasks[path] = task
    kind, other = (async_paths, plain_paths) if iscoroutinefunction(task.func) else (plain_paths, async_paths)
    kind.add(path)
    other.discard(path)


def paths() -> Iterator[str]:
    """The paths of all tasks of this project, in alphabetical order."""
    discover()
    yield from sorted(_tasks)


def known(path: str) -> DjangoTask | None:
    """The task at `path`, if its module has been imported already; nothing is imported."""
    return _tasks.get(path)


def queues(backend: str) -> set[str]:
    """The queues that functions of this backend are enqueued to by default.

    A module that cannot be imported hides its own, and no error: who pauses a queue may be at work on that.
    """
    with suppress(Exception):
        discover()
    return {task.queue_name for task in list(_tasks.values()) if task.backend == backend}


def discover() -> None:
    """Import the `tasks` module of every installed app, once in a process."""
    global _discovered
    with _discovery:
        if not _discovered:
            _discovered = True
            autodiscover_modules("tasks")


def resolve(path: str) -> DjangoTask:
    """The task at `path`, such as "shop.tasks.send_receipt".

    Raises:
        UnknownFunction: the module or the name does not exist here, or it is no task. It may exist in a newer release.
        Exception: whatever the import of its module raises otherwise.
    """
    task = _tasks.get(path)
    if task is None:
        discover()
        task = _tasks.get(path) or _imported(path)
    return task


def is_reachable(path: str) -> bool:
    """Can another process follow this path? `__main__` is another module there, and a lambda has no name."""
    module_name, _, _ = path.rpartition(".")
    return module_name not in ("", "__main__") and all(part.isidentifier() for part in path.split("."))


def _imported(path: str) -> DjangoTask:
    module_name, _, name = path.rpartition(".")
    if not is_reachable(path):
        raise UnknownFunction(f"{path!r} is not the dotted path of a function.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is here; something that it imports is not
        raise UnknownFunction(f"{path}: there is no module {error.name!r} in this process.") from None
    found = getattr(module, name, None)
    if not isinstance(found, DjangoTask):  # type: ignore[misc]  # a plain class at run time
        raise UnknownFunction(f"{path}: {module_name} has no task {name!r} in this process.")
    _remember(path, found)
    return found
