"""The django-ninja API, and how an endpoint is declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.renderers import BaseRenderer

from django_dhara import __version__
from django_dhara.api.access import Needs
from django_dhara.api.body import StrictParser
from django_dhara.api.schemas import ProblemDocument

F = TypeVar("F", bound=Callable[..., Any])

#: What any call can be answered with.
COMMON = (400, 401, 403, 404, 405, 413, 415, 429, 503)


class Renderer(BaseRenderer):
    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> Any:
        return json.dumps(data, default=_text, separators=(",", ":"), allow_nan=False)


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} in an answer")


class Api(NinjaAPI):
    def set_default_exception_handlers(self) -> None:
        """None: what is raised ends in `urls.guarded`, where all problems are made."""


api = Api(
    title="django_dhara",
    version=__version__,
    description="Tasks of a Dhara queue: enqueue, look, cancel, retry. Each call does what user code does.",
    urls_namespace="dhara-api",
    openapi_url=None,
    docs_url=None,
    renderer=Renderer(),
    parser=StrictParser(),
)


def endpoint(
    method: str, path: str, *, tag: str, needs: Needs, answers: Mapping[int, Any], problems: tuple[int, ...] = ()
) -> Callable[[F], F]:
    """Declare an endpoint.

    Args:
        answers: what success looks like, by status.
        problems: what may go wrong beside what can always go wrong.
    """
    response = {**answers, **dict.fromkeys((*COMMON, *problems), ProblemDocument)}

    def declare(function: F) -> F:
        declared: F = api.api_operation(
            [method],
            path,
            auth=needs,
            response=response,
            operation_id=function.__name__,
            summary=(function.__doc__ or "").partition("\n")[0].rstrip("."),
            tags=[tag],
            url_name=function.__name__,
            openapi_extra={"security": [{"token": [needs.scope]}, {"session": list(needs.permissions)}]},
        )(function)
        return declared

    return declare
