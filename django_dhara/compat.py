"""Django's tasks API, from Django where it has one, else from the `django-tasks` backport (Django 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import django
from django.core.exceptions import ImproperlyConfigured

__all__ = [
    "BaseTaskBackend",
    "DjangoTask",
    "InvalidTask",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "module_level",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import Task as _Task
    from django.tasks import TaskContext as _TaskContext
    from django.tasks import TaskResult as _TaskResult
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.inspect import is_module_level_function as module_level
else:
    try:
        import django_tasks  # noqa: F401
    except ImportError as error:
        raise ImproperlyConfigured(
            f"Django {django.get_version()} has no django.tasks: install the backport with "
            "`pip install 'django-dhara[django52]'`."
        ) from error
    from django_tasks import TaskContext as _TaskContext
    from django_tasks import TaskResult as _TaskResult
    from django_tasks import TaskResultStatus, task_backends
    from django_tasks import exceptions as _exceptions
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task as _Task
    from django_tasks.base import TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import is_module_level_function as module_level

    # The backport's main branch has taken Django's name for it; its releases have not yet.
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError

if TYPE_CHECKING:
    # To type checkers they are generic in the function's signature and result, which a stored row does not tell.
    DjangoTask: TypeAlias = _Task[..., Any]
    TaskContext: TypeAlias = _TaskContext[..., Any]
    TaskResult: TypeAlias = _TaskResult[..., Any]
else:
    DjangoTask, TaskContext, TaskResult = _Task, _TaskContext, _TaskResult
