"""Which databases hold queues. No router is asked."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from django_dhara import conf
from django_dhara.backend import DharaBackend


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
