"""Who may see what is for those who operate: /readyz and /metrics. Closed, until a setting or a permission opens it.

Probes and scrapers have no session, and a probe has to be answered while the database is away. So there is one secret
in the settings, and a list of networks, beside the tokens of the API and the permissions of people.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_dhara import project, tokens
from django_dhara.models import Token

#: What a person with a session needs.
PERMISSION = "dhara.view_worker"


def refused(request: HttpRequest, *, whole: bool = False) -> HttpResponse | None:
    """The answer to somebody who may not look; None to everybody else.

    Args:
        whole: what is to be seen is of all queues, so that a token for some of them is not enough.
    """
    settings = project.usable()
    if _is_near(request, settings.observe_networks):
        return None
    secret = tokens.shown(request)
    if secret is None:
        return None if _has_permission(request) else closed()
    if secret.equals(settings.observe_token):
        return None
    token = _reader(secret)
    if token is None:
        return closed()
    return _closed_to_parts() if whole and token.queues != [] else None


def _reader(secret: tokens.Secret) -> Token | None:
    """The token of the API, if it is one that may read."""
    try:
        token = tokens.find(secret)
    except Error:  # tokens are in the database, and that is away
        return None
    return token if token is not None and isinstance(token.scopes, list) and "read" in token.scopes else None


def _is_near(request: HttpRequest, networks: str) -> bool:
    """The address is the one that has connected, of a proxy where there is one. Headers say what anybody likes."""
    try:
        address = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:  # a Unix socket
        return False
    return any(address in ip_network(network) for network in project.networks(networks))


def _has_permission(request: HttpRequest) -> bool:
    user: Any = getattr(request, "user", None)
    try:
        return user is not None and user.is_active and user.has_perm(PERMISSION)
    except Error:  # the session is in the database, and that is away
        return False


def closed() -> HttpResponse:
    """The answer to everybody else."""
    detail = (
        "Send DHARA['OBSERVE_TOKEN'], or a token of the API that may read, as `Authorization: Bearer …`; or log in as "
        "somebody who may see workers."
    )
    response = problem(401, "Who asks is not known", detail)
    response["WWW-Authenticate"] = 'Bearer realm="django_dhara"'
    return response


def _closed_to_parts() -> HttpResponse:
    """The answer to a token for some queues."""
    detail = (
        "This token is for some queues only, and this is about all of them. Send a token for all queues, or "
        "DHARA['OBSERVE_TOKEN']."
    )
    return problem(403, "Not allowed", detail)


def problem(status: int, title: str, detail: str, **more: Any) -> HttpResponse:
    """A problem document (RFC 9457)."""
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    response = JsonResponse(document, status=status, content_type="application/problem+json")
    return uncached(response)


def uncached(response: HttpResponse) -> HttpResponse:
    """The same, kept by no cache on its way."""
    response["Cache-Control"] = "no-store"
    return response


def told(status: str, findings: Sequence[dict[str, Any]]) -> HttpResponse:
    """A good answer."""
    return uncached(JsonResponse({"status": status, "checks": list(findings)}))
