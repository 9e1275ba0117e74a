"""The description of the API (OpenAPI 3.1), and a page made from it: plain HTML, without a script or a foreign host."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from django_dhara import project
from django_dhara.api import access
from django_dhara.api.problems import KINDS, MEDIA_TYPE
from django_dhara.api.service import api

_HEADERS = {
    "Location": "Where the task is.",
    "ETag": "Of this answer; send it as If-None-Match.",
    "Retry-After": "Seconds after which to try again.",
    "WWW-Authenticate": "How to say who calls.",
    "Allow": "The methods that this address takes.",
}
_OF_STATUS = {"401": ("WWW-Authenticate",), "405": ("Allow",), "429": ("Retry-After",), "503": ("Retry-After",)}
#: What the descriptions set apart, in text that is escaped already.
_CODE = re.compile(r"`([^`<>]+)`")
#: Models whose fields are parameters; as a whole they are neither sent nor answered.
_QUERIES = ("Listing", "OfBackend", "OfRange")
#: In the order of the document.
_TAGS = ("tasks", "changes", "queues", "workers", "stats")
#: What can be done with a task that was enqueued.
_LINKS = {
    name: {"operationId": name, "parameters": {"task_id": "$response.body#/id"}}
    for name in ("get_task", "cancel_task", "retry_task")
}
_SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token `dht_...`, with the scope that a call takes.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "sessionid",
        "description": "A login of the site, with the permissions that a call takes; changes take its CSRF token.",
    },
}


def is_open() -> bool:
    return project.usable().api_docs_open


def document_view(request: HttpRequest) -> HttpResponse:
    _may_see(request)
    text = json.dumps(document(request.path.removesuffix("openapi.json")))
    return HttpResponse(text, content_type="application/json")


def page_view(request: HttpRequest) -> HttpResponse:
    _may_see(request)
    described = document(request.path.removesuffix("docs"))
    context = {"api": described, "operations": list(operations(described)), "schemas": list(schemas(described))}
    text = render_to_string("dhara/api.html", context, request)
    return HttpResponse(_CODE.sub(r"<code>\1</code>", text))


def _may_see(request: HttpRequest) -> None:
    if not is_open():
        access.SEE(request)


def document(prefix: str) -> dict[str, Any]:
    """The description of the API.

    Args:
        prefix: where it is mounted, such as `/dhara/api/v1/`.
    """
    described: dict[str, Any] = json.loads(json.dumps(dict(api.get_openapi_schema(path_prefix=prefix))))
    described["components"]["securitySchemes"] = _SECURITY
    for name in _QUERIES:
        described["components"]["schemas"].pop(name, None)
    for path in described["paths"].values():
        for method, operation in path.items():
            _complete(method, operation)
    described["paths"] = dict(sorted(described["paths"].items(), key=lambda item: _TAGS.index(_tag(item[1]))))
    return described


def _tag(methods: dict[str, Any]) -> str:
    tag: str = next(iter(methods.values()))["tags"][0]
    return tag


def _complete(method: str, operation: dict[str, Any]) -> None:
    """What django-ninja does not know: how problems are sent, headers, 304."""
    for parameter in operation["parameters"]:
        parameter["schema"] = _without_null(parameter["schema"])
    answers = operation["responses"]
    if method == "get":
        answers["200"].setdefault("headers", {})["ETag"] = _header("ETag")
        answers["304"] = {"description": "Not Modified", "headers": {"ETag": _header("ETag")}}
    if operation["operationId"] == "enqueue_task":
        for status in ("200", "201"):
            answers[status] |= {"headers": {"Location": _header("Location")}, "links": _LINKS}
    for status, answer in answers.items():
        if int(status) >= 400:
            answer["content"] = {MEDIA_TYPE: answer["content"]["application/json"]}
            answer["description"] = " or ".join(kind.title for kind in KINDS.values() if kind.status == int(status))
        for name in _OF_STATUS.get(status, ()):
            answer.setdefault("headers", {})[name] = _header(name)
    operation["responses"] = dict(sorted(answers.items()))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, or it has a value."""
    kinds = [kind for kind in schema.pop("anyOf", []) if kind != {"type": "null"}]
    return {**schema, **kinds[0]} if kinds else schema


def _header(name: str) -> dict[str, Any]:
    return {"description": _HEADERS[name], "schema": {"type": "string"}}


# -------------------------------------------------------------------------------- in words, for the page and the docs


class Value(NamedTuple):
    """A parameter, or a field of something sent or answered."""

    name: str
    kind: str
    is_required: bool
    description: str


class Operation(NamedTuple):
    """An endpoint, in words."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[Value]
    #: Names of schemas.
    body: str
    #: What a caller must have.
    needs: str
    answers: list[tuple[str, str]]
    problems: list[str]


def operations(described: dict[str, Any]) -> Iterator[Operation]:
    """The endpoints of a description, in its order."""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            answers = operation["responses"]
            yield Operation(
                id=operation["operationId"],
                method=method.upper(),
                path=path,
                summary=operation["summary"],
                description=operation.get("description", "").partition("\n")[2].strip(),
                parameters=[_parameter(each) for each in operation.get("parameters", [])],
                body=_kind(body) if body else "",
                needs=_needs(*operation["security"]),
                answers=[(status, _answer(answer)) for status, answer in answers.items() if int(status) < 300],
                problems=[status for status in answers if int(status) >= 400],
            )


def schemas(described: dict[str, Any]) -> Iterator[tuple[str, str, list[Value]]]:
    """What is sent and answered: name, description, fields."""
    for name, schema in sorted(described["components"]["schemas"].items()):
        required = schema.get("required", [])
        fields = [
            Value(field, _kind(each), field in required, each.get("description", ""))
            for field, each in schema.get("properties", {}).items()
        ]
        yield name, schema.get("description", ""), fields


def _needs(token: dict[str, list[str]], session: dict[str, list[str]]) -> str:
    return f"the scope {token['token'][0]}, or a user's {' and '.join(session['session'])}"


def _parameter(parameter: dict[str, Any]) -> Value:
    schema = parameter["schema"]
    return Value(parameter["name"], _kind(schema), parameter["required"], parameter.get("description", ""))


def _answer(answer: dict[str, Any]) -> str:
    return _kind(answer["content"]["application/json"]["schema"])


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for one_of in ("anyOf", "allOf", "oneOf"):
        if one_of in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[one_of])))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "const" in schema:
        return str(schema["const"])
    return {"date-time": "time", "uuid": "UUID"}.get(schema.get("format", ""), str(schema.get("type", "any")))
