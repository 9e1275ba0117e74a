"""Everything that goes wrong, as a problem document (RFC 9457). No traceback, no SQL and no setting gets into one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import psycopg
from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.utils.log import log_response
from ninja.errors import ValidationError

from django_dhara import events, sql
from django_dhara.errors import IsolationError

MEDIA_TYPE = "application/problem+json"
#: `type` of a document; no page is there, it only names the kind.
TYPE = "urn:django-dhara:problem:"
#: Seconds after which one may try again when the database is away or busy.
RETRY_SECONDS = 2


class Kind(NamedTuple):
    """One kind of problem."""

    status: int
    title: str


KINDS = {
    "malformed": Kind(400, "The request cannot be read"),
    "invalid": Kind(400, "A value is wrong"),
    "unauthenticated": Kind(401, "Who calls is not known"),
    "forbidden": Kind(403, "Not allowed"),
    "not-found": Kind(404, "Not found"),
    "method-not-allowed": Kind(405, "The method is not allowed here"),
    "idempotency-conflict": Kind(409, "The idempotency key is taken"),
    "wrong-status": Kind(409, "The task is in another status"),
    "too-large": Kind(413, "Too large"),
    "unsupported-media-type": Kind(415, "The body must be JSON"),
    "throttled": Kind(429, "Too many wrong tokens"),
    "internal": Kind(500, "An error of the server"),
    "unavailable": Kind(503, "The database does not answer"),
}


class Problem(Exception):
    """Raise it to answer with a problem document.

    Args:
        kind: a key of `KINDS`.
        detail: what is wrong, for the person who reads the answer.
        field: which value of the request is wrong, such as `tasks[2].priority`.
        errors: all wrong values, where there are several: (field, message).
        headers: of the answer.
        more: further members of the document.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        field: str = "",
        errors: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.field = kind, detail, field
        self.errors = list(errors) or ([(field, detail)] if field else [])
        self.headers = dict(headers or {})
        self.more = more

    def under(self, prefix: str) -> Problem:
        """The same about an element of a list, which `prefix` names."""
        errors = [(f"{prefix}.{field}", message) for field, message in self.errors]
        field = f"{prefix}.{self.field}" if self.field else prefix
        return Problem(self.kind, self.detail, field=field, errors=errors, headers=self.headers, **self.more)

    def document(self) -> dict[str, Any]:
        kind = KINDS[self.kind]
        found = {"type": TYPE + self.kind, "title": kind.title, "status": kind.status, "detail": self.detail}
        if self.errors:
            found |= {
                "field": self.errors[0][0],
                "errors": [{"field": field, "message": message} for field, message in self.errors],
            }
        return {**found, **self.more}


def unavailable(detail: str) -> Problem:
    return Problem("unavailable", detail, headers={"Retry-After": str(RETRY_SECONDS)})


def answer(request: HttpRequest, error: Exception) -> HttpResponse:
    """The answer to a request whose view has raised."""
    problem = of(error)
    if problem is None:
        problem = _unexpected(request)
    response = HttpResponse(json.dumps(problem.document()), status=KINDS[problem.kind].status, content_type=MEDIA_TYPE)
    for name, value in problem.headers.items():
        response[name] = value
    return response


def of(error: BaseException) -> Problem | None:
    """What an exception says to the caller; None: nothing that was foreseen."""
    match error:
        case Problem():
            return error
        case ValidationError():
            return _invalid(error.errors)
        case Http404():
            return Problem("not-found", "There is nothing at this address.")
        case RequestDataTooBig():
            return Problem("too-large", "The body is too large.")
        case SuspiciousOperation() | BadRequest() | UnreadablePostError():
            return Problem("malformed", "The request cannot be read.")
    return _of_body(error) or _of_database(error)


def _of_body(error: BaseException) -> Problem | None:
    """django-ninja wraps what its parser raises."""
    return error.__cause__ if isinstance(error.__cause__, Problem) else None


def _of_database(error: BaseException) -> Problem | None:
    match error:
        case sql.TooSlow():
            return unavailable(
                "The database took too long, or others hold what this needs. Try again, or ask for less."
            )
        case IsolationError():
            return unavailable("Another transaction was in the way. Try again.")
        case OperationalError() | InterfaceError() | InternalError() | psycopg.OperationalError():
            _murmur(type(error.__cause__ or error).__name__)
            return unavailable("The database cannot be reached, or takes no writes. Try again.")
        case ProgrammingError() if getattr(error.__cause__, "sqlstate", "") in ("42P01", "42703"):
            _murmur("tables or columns are missing; run `manage.py migrate`")
            return unavailable("The database is not ready for this version.")
    return None


def _murmur(reason: str) -> None:
    events.API_UNAVAILABLE.murmur(reason, reason=reason)


def _unexpected(request: HttpRequest) -> Problem:
    """Told to who listens for errors of requests, as Django would tell it; the caller learns nothing of it."""
    got_request_exception.send(sender=None, request=request)
    problem = Problem("internal", "The error was logged.")
    response = HttpResponse(status=KINDS["internal"].status)
    log_response("Internal Server Error: %s", request.path, response=response, request=request, exception=True)  # type: ignore[arg-type]
    return problem


def _invalid(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """What pydantic found wrong, each value by its place in what was sent."""
    found = [(_place(error["loc"]), str(error["msg"]).removeprefix("Value error, ")) for error in errors]
    field, message = found[0]
    return Problem("invalid", f"{field}: {message}" if field else message, errors=found)


def _place(loc: Iterable[Any]) -> str:
    """Without where it came from and, of a body, the name of our own parameter."""
    source, *rest = loc
    if source == "body":
        rest = rest[1:]
    text = ""
    for part in rest:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or str(source)
