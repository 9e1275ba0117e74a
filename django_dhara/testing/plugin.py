"""The pytest plugin: fixtures for tests of tasks. Switch it off with `-p no:django_dhara`.

pytest imports it before any settings are there, in projects without Django settings too: so it imports nothing of
Django by itself, and every fixture imports what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_dhara.results import TaskResult
    from django_dhara.testing.backends import InlineBackend, ManualBackend


@pytest.fixture
def dhara_run_all(db: None) -> Callable[..., list[TaskResult]]:
    """`django_dhara.testing.run_all`, with access to the test database: pytest-django's `db`."""
    from django_dhara.testing import run_all

    return run_all


@pytest.fixture
def dhara_inline() -> Iterator[InlineBackend]:
    """For this test every backend of ours in TASKS is an `InlineBackend`; gives that of "default", or the only one."""
    with _switched("django_dhara.testing.InlineBackend") as backend:
        yield backend


@pytest.fixture
def dhara_manual() -> Iterator[ManualBackend]:
    """For this test every backend of ours in TASKS is a `ManualBackend`; gives that of "default", or the only one."""
    with _switched("django_dhara.testing.ManualBackend") as backend:
        yield backend


@contextmanager
def _switched(path: str) -> Iterator[Any]:
    from django.conf import settings
    from django.test import override_settings

    from django_dhara.backend import QueueBackend
    from django_dhara.compat import task_backends

    ours = [alias for alias in settings.TASKS if isinstance(task_backends[alias], QueueBackend)]
    if not ours:
        raise pytest.UsageError("TASKS has no backend of django_dhara that could be switched.")
    switched = {alias: {**settings.TASKS[alias], "BACKEND": path} for alias in ours}
    with override_settings(TASKS={**settings.TASKS, **switched}):
        yield task_backends["default" if "default" in ours else ours[0]]
