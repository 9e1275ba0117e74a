"""Which databases hold queues, and how long a question to one of them may take. No router is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, transaction
from django.utils.module_loading import import_string

from django_dhara import conf
from django_dhara.backend import DharaBackend


class TooSlow(Exception):
    """A query was stopped because it took too long."""


def aliases() -> list[str]:
    """The databases of the Dhara backends in TASKS, each once, in the order of TASKS."""
    found = dict.fromkeys(alias for alias in _configured() if alias in connections)
    return list(found) or [DEFAULT_DB_ALIAS]


def _configured() -> Iterator[str]:
    for alias, parameters in getattr(settings, "TASKS", {}).items():
        try:
            if issubclass(import_string(parameters["BACKEND"]), DharaBackend):
                yield conf.read(alias, parameters.get("OPTIONS", {})).database
        except (ImportError, ImproperlyConfigured, KeyError, TypeError):
            # A mistake in the settings is told by the system checks; the other backends stay visible.
            continue


@contextmanager
def time_limit(alias: str, seconds: float) -> Iterator[None]:
    """No statement of this block on `alias` runs longer than `seconds`.

    Raises:
        TooSlow: one would have.
    """
    try:
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{round(seconds * 1000)}ms"])
            yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != "57014":
            raise
        raise TooSlow from error
