"""Who calls: somebody with a session and permissions, or a bearer token with scopes. Nobody else gets an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.core.cache import cache
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware

from django_dhara import events, project, tokens
from django_dhara.api.problems import Problem

_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
#: Seconds in which wrong tokens are counted.
_WINDOW = 60


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has sent a request."""

    #: For the log: `user NAME` or `token NAME (ID)`.
    name: str
    _may: Callable[[Needs], bool]
    #: The only queues it has to do with; empty: all.
    queues: tuple[str, ...] = ()

    def may(self, needs: Needs) -> bool:
        return self._may(needs)

    def has(self, queue: str) -> bool:
        return not self.queues or queue in self.queues


@dataclass(frozen=True, slots=True)
class Needs:
    """What a call takes: a scope of a token, or permissions of a user."""

    scope: str
    permissions: tuple[str, ...]

    def __call__(self, request: HttpRequest) -> Caller:
        """The caller, where it may; django-ninja asks before it reads what was sent."""
        caller = caller_of(request)
        if not caller.may(self):
            raise Problem(
                "forbidden",
                f"This takes the scope {self.scope} of a token, or a user's {' and '.join(self.permissions)}.",
            )
        return caller


SEE = Needs("read", ("dhara.view_task",))
SEE_WORKERS = Needs("read", ("dhara.view_worker",))
SEE_QUEUES = Needs("read", ("dhara.view_queue",))
ENQUEUE = Needs("enqueue", ("dhara.add_task",))
CANCEL = Needs("operate", ("dhara.view_task", "dhara.cancel_task"))
RETRY = Needs("operate", ("dhara.view_task", "dhara.revive_task"))
#: Of a bulk change; what it is to do takes its own permission besides.
CHANGE = Needs("operate", ("dhara.view_task",))
PAUSE = Needs("operate", ("dhara.pause_queue",))


def caller_of(request: HttpRequest) -> Caller:
    """Whom `identify` found."""
    caller: Caller = request.dhara_caller  # type: ignore[attr-defined]
    return caller


def identify(request: HttpRequest) -> Caller:
    """Find out who calls. A request with a token is judged by the token alone, whatever cookies come with it.

    Raises:
        Problem: 401, 403 for a session whose CSRF token is wrong, 429 after too many wrong tokens.
    """
    secret = tokens.shown(request)
    if secret is not None:
        return _by_token(request, secret)
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated or not user.is_active:
        raise _unknown("Send a token as `Authorization: Bearer dht_...`, or log in.")
    _check_csrf(request)
    return Caller(f"user {user.get_username()}", lambda needs: user.has_perms(needs.permissions))


def _by_token(request: HttpRequest, secret: tokens.Secret) -> Caller:
    failures = Failures(request)
    failures.check()
    row = tokens.find(secret)
    if row is None:
        failures.count()
        raise _unknown("This token does not exist, has expired, or was revoked.")
    scopes, queues = _names(row.scopes), _names(row.queues)
    return Caller(f"token {row.name} ({row.pk})", lambda needs: needs.scope in scopes, queues)


def _names(column: Any) -> tuple[str, ...]:
    """A JSON column. What is no list of names allows nothing, and no queue has the name that stands for it."""
    return tuple(map(str, column)) if isinstance(column, list) else (",",)


def _unknown(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="django_dhara"'})


class _Csrf(CsrfViewMiddleware):
    """Django's own check, which says why instead of answering with a page."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason


def _check_csrf(request: HttpRequest) -> None:
    if request.method in _SAFE:
        return
    if request.content_type in _FORMS:  # Django would read it, however long it is, to look for a CSRF token in it
        raise Problem("unsupported-media-type", "Send `Content-Type: application/json`.")
    check = _Csrf(lambda request: None)  # type: ignore[arg-type]
    check.process_request(request)
    reason: Any = check.process_view(request, lambda request: None, (), {})  # type: ignore[arg-type,return-value]
    if reason:
        raise Problem("forbidden", f"With a session, a change takes a CSRF token: {reason}")


class Failures:
    """Wrong tokens from one address, counted in Django's cache; a cache that does not answer limits nothing."""

    def __init__(self, request: HttpRequest) -> None:
        address = request.META.get("REMOTE_ADDR", "")
        self._key = f"django_dhara.api.failures.{sha256(address.encode()).hexdigest()[:32]}"
        self._most = project.usable().api_failures_per_minute

    def check(self) -> None:
        """Raises Problem if there were too many: then no token is even looked at."""
        if self._most and (self._ask(lambda: cache.get(self._key)) or 0) >= self._most:
            detail = "Too many wrong tokens came from this address. Wait a minute."
            raise Problem("throttled", detail, headers={"Retry-After": str(_WINDOW)})

    def count(self) -> None:
        if self._most and not self._ask(lambda: cache.add(self._key, 1, _WINDOW)):
            self._ask(lambda: cache.incr(self._key))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - of any cache; and `incr` of a key that has just expired
            events.API_TOKENS_UNCOUNTED.murmur("", error_class=type(error).__name__)
            return None
