"""Which backend a call is about, which query it may have, and how long its statements may take."""

from __future__ import annotations

from contextlib import AbstractContextManager

from django.http import HttpRequest
from pydantic import BaseModel

from django_dhara import project, sql
from django_dhara.api.problems import Problem
from django_dhara.backend import DharaBackend
from django_dhara.compat import task_backends
from django_dhara.payload import plain


def backends() -> list[DharaBackend]:
    """The Dhara backends in TASKS, in its order."""
    return [backend for backend in task_backends.all() if isinstance(backend, DharaBackend)]


def backend(alias: str | None) -> DharaBackend:
    """The backend `alias`; the first one if there is no alias.

    Raises:
        Problem: there is none.
    """
    found = [each for each in backends() if alias in (None, each.alias)]
    if not found:
        raise Problem("invalid", f"TASKS has no Dhara backend {plain(alias)!r}.", field="backend")
    return found[0]


def refuse_unknown(request: HttpRequest, query: type[BaseModel]) -> None:
    """Refuse parameters that the query does not have: a misspelt filter would be none at all.

    Raises:
        Problem
    """
    unknown = sorted(request.GET.keys() - query.model_fields.keys())
    if unknown:
        raise Problem("invalid", "There is no such parameter.", errors=[(plain(name), "unknown") for name in unknown])


def limited(alias: str) -> AbstractContextManager[None]:
    """No statement on the database `alias` takes longer than `API_STATEMENT_SECONDS`."""
    return sql.time_limit(alias, project.usable().api_statement_seconds)
