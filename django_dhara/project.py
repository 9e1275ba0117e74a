"""Settings of the whole project, in one dict `DHARA`: what the admin, the API and the metrics are to do.

What belongs to one queue backend stands in its OPTIONS; see `conf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_network
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_dhara.conf import Problem, number, parsed, shown

#: Characters of a secret that somebody has thought up.
MIN_SECRET = 16


def secret(text: str) -> str:
    """A token that is none, or long enough not to be guessed.

    Raises:
        ValueError: with what it must be.
    """
    if text and (len(text) < MIN_SECRET or not text.isascii() or not text.isprintable() or " " in text):
        raise ValueError(f"must have at least {MIN_SECRET} printable ASCII characters, none of them a space")
    return text


def networks(text: str) -> list[str]:
    """The networks of a setting, taken apart.

    Raises:
        ValueError: with what it must be.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    for network in found:
        try:
            ip_network(network)
        except ValueError as error:
            raise ValueError(f"must be networks with commas between them ({error})") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What `DHARA` may hold; a key is the name in capitals."""

    #: Dotted path of `redact(function: str, payload: dict) -> dict`, called before arguments are shown to people in
    #: the admin or by the API; empty: they are shown as they are.
    redact: str = ""

    #: Bytes of a request's body that the API reads. Each payload has a limit of its own, `MAX_PAYLOAD_BYTES`.
    api_max_body_bytes: int = number(2_500_000, at_least=1000, at_most=100_000_000)
    #: Tasks in one bulk of the API.
    api_max_bulk: int = number(1000, at_least=1, at_most=10_000)
    #: How long one statement of the API may take in the database before it answers 503.
    api_statement_seconds: float = number(3.0, at_least=0.1, at_most=60)
    #: Wrong tokens from one address in a minute, after which tokens from there are refused unseen until the minute is
    #: over; 0: no limit. Counted in Django's default cache, so a local-memory cache counts for each process.
    api_failures_per_minute: int = number(20, at_least=0, at_most=1_000_000)
    #: Show the API's description and its page to everybody, without login or token.
    api_docs_open: bool = False

    #: A secret that opens `/readyz` and `/metrics`, as `Authorization: Bearer …`; at least 16 characters. Empty: there
    #: is none, and they are open to people who may see workers only.
    observe_token: str = field(default="", repr=False, metadata={"check": secret})
    #: Networks from which `/readyz` and `/metrics` are open to everybody, such as "10.0.0.0/8, ::1/128". It is the
    #: address that has connected: behind a proxy that of the proxy.
    observe_networks: str = field(default="", metadata={"check": networks})

    #: With `django_dhara.contrib.otel`: a run is not only linked to its enqueue but a child of it, in the same trace.
    trace_runs_as_children: bool = False

    #: With `django_dhara.contrib.sentry`: failed runs that will be tried again are events, too, not only DEAD tasks.
    sentry_attempts: bool = False

    #: Pairs of queue and function that metrics tell apart in one process; what comes with a further pair is counted as
    #: "other".
    metrics_max_series: int = number(200, at_least=1, at_most=10_000)


KEYS: dict[str, Field[Any]] = {each.name: each for each in fields(Project)}


def read() -> Project:
    """The settings, each default where nothing is set.

    Raises:
        ImproperlyConfigured: for the first mistake; `manage.py check` lists them all.
    """
    for problem in problems():
        raise ImproperlyConfigured(f"{problem.where} {problem.message}")
    return Project(**{key.lower(): _value(key.lower(), raw) for key, raw in _given().items()})


def problems() -> Iterator[Problem]:
    """Every mistake in `DHARA`."""
    given = getattr(settings, "DHARA", {})
    if not isinstance(given, Mapping):
        yield Problem("shape", "", "DHARA", f"must be a dict, not {type(given).__name__}.")
        return
    for key, raw in given.items():
        where = f"DHARA[{key!r}]"
        if _name(key) is None:
            yield Problem("unknown", str(key), where, "is not a setting of django_dhara.")
            continue
        try:
            _value(key.lower(), raw)
        except ValueError as error:
            told = "" if key == "OBSERVE_TOKEN" else f", not {shown(raw)}"
            yield Problem("value", key, where, f"{error}{told}.")


def usable() -> Project:
    """The settings as far as they can be read, with the default in the place of each mistake: a page or a log line
    must not fail for it."""
    values: dict[str, Any] = {}
    for key, raw in _given().items():
        if name := _name(key):
            with suppress(ValueError):
                values[name] = _value(name, raw)
    return Project(**values)


def _value(name: str, raw: Any) -> Any:
    """The value of a setting.

    Raises:
        ValueError: with what it must be.
    """
    value = parsed(KEYS[name], raw)
    KEYS[name].metadata.get("check", str)(value)
    return value


def _name(key: object) -> str | None:
    """The setting that a key of `DHARA` stands for, if there is one."""
    return key.lower() if isinstance(key, str) and key == key.upper() and key.lower() in KEYS else None


def _given() -> Mapping[Any, Any]:
    given = getattr(settings, "DHARA", {})
    return given if isinstance(given, Mapping) else {}
