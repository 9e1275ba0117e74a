"""The addresses: `path("dhara/", include("django_dhara.api.urls"))`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from django.utils.cache import get_conditional_response, set_response_etag

from django_dhara.api import access, body, changes, fleet, openapi, problems, tasks
from django_dhara.api.problems import Problem
from django_dhara.api.service import api

__all__ = ["urlpatterns"]

View = Callable[..., HttpResponse]
#: Modules that declare endpoints.
_DECLARED = (tasks, changes, fleet)


def guarded(view: View, *, is_open: Callable[[], bool] = lambda: False) -> View:
    """A view between who calls and what is answered: nothing gets past it unknown, too large, or as a page of errors.

    Args:
        is_open: whether one may look without being known.
    """

    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        asked = request.method
        request.method = "GET" if asked == "HEAD" else asked  # the server leaves the body out
        try:
            if not is_open():
                request.dhara_caller = access.identify(request)  # type: ignore[attr-defined]
            body.receive(request)
            response = _with_problems(view(request, *args, **kwargs))
        except Exception as error:  # noqa: BLE001 - there is no answer but a problem document
            response = problems.answer(request, error)
        response = _finished(request, response)
        request.method = asked
        return response

    answer.csrf_exempt = True  # type: ignore[attr-defined]  # a session's is checked by `access`
    # A call is a transaction of its own, or none: what it answers is committed when it is said.
    answer._non_atomic_requests = set(connections)  # type: ignore[attr-defined]  # noqa: SLF001 - as Django's decorator
    return answer


def _with_problems(response: HttpResponse) -> HttpResponse:
    if response.status_code == 405:
        allowed = response["Allow"]
        raise Problem("method-not-allowed", f"This address takes {allowed}.", headers={"Allow": allowed})
    return response


def _finished(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """What is cached nowhere, and by the caller only to be asked about again."""
    response["Cache-Control"] = "private, no-cache"
    response["X-Content-Type-Options"] = "nosniff"
    if request.method != "GET" or response.status_code != 200:
        return response
    set_response_etag(response)
    conditional: HttpResponse | None = get_conditional_response(request, response["ETag"], None, response)
    return response if conditional is None else conditional


def _nothing(request: HttpRequest) -> HttpResponse:
    raise Problem("not-found", "There is nothing at this address.")


def _patterns() -> list[Any]:
    patterns: list[Any] = api.urls[0]
    for pattern in patterns:
        pattern.callback = guarded(pattern.callback)
    own = [
        path("openapi.json", guarded(openapi.document_view, is_open=openapi.is_open), name="openapi"),
        path("docs", guarded(openapi.page_view, is_open=openapi.is_open), name="docs"),
    ]
    return [*own, *patterns, re_path("", guarded(_nothing))]


app_name = "dhara-api"
urlpatterns = [path("api/v1/", include(_patterns()))]
