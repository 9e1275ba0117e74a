"""Settings of the whole project, in one dict `DHARA`: what the admin, the API and the metrics are to do.

What belongs to one queue backend stands in its OPTIONS; see `conf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_dhara.conf import Problem, number, parsed, shown


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


KEYS: dict[str, Field[Any]] = {field.name: field for field in fields(Project)}


def read() -> Project:
    """The settings, each default where nothing is set.

    Raises:
        ImproperlyConfigured: for the first mistake; `manage.py check` lists them all.
    """
    for problem in problems():
        raise ImproperlyConfigured(f"{problem.where} {problem.message}")
    return Project(**{key.lower(): parsed(KEYS[key.lower()], raw) for key, raw in _given().items()})


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
            parsed(KEYS[key.lower()], raw)
        except ValueError as error:
            yield Problem("value", key, where, f"{error}, not {shown(raw)}.")


def usable() -> Project:
    """The settings as far as they can be read, with the default in the place of each mistake: a page or a log line
    must not fail for it."""
    values: dict[str, Any] = {}
    for key, raw in _given().items():
        if name := _name(key):
            with suppress(ValueError):
                values[name] = parsed(KEYS[name], raw)
    return Project(**values)


def _name(key: object) -> str | None:
    """The setting that a key of `DHARA` stands for, if there is one."""
    return key.lower() if isinstance(key, str) and key == key.upper() and key.lower() in KEYS else None


def _given() -> Mapping[Any, Any]:
    given = getattr(settings, "DHARA", {})
    return given if isinstance(given, Mapping) else {}
