"""Which databases hold queues. Everything the admin reads or writes names one of them: no router is asked."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_dhara import conf, sql
from django_dhara.backend import DharaBackend

#: The parameter that chooses between several databases.
PARAMETER = "database"


TooSlow, time_limit = sql.TooSlow, sql.time_limit


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


def chosen(request: HttpRequest) -> str:
    """The database that this request is about."""
    known = aliases()
    asked = request.GET.get(PARAMETER, "")
    return asked if asked in known else known[0]
