"""Probes of the site: `path("dhara/", include("django_dhara.probes"))` gives `livez` and `readyz`.

`livez` says that this process answers, and asks nobody else; it is open. `readyz` says whether the queue can be used
from here: the database answers and is migrated; with `?worker` (any), `?worker=NAME` or `?queue=NAME` also that a
worker's control loop turns. It is closed (see `gate.py`), and looks at most once a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from django_dhara import gate, health, sql
from django_dhara.errors import PayloadError
from django_dhara.health import Finding, Wanted
from django_dhara.payload import check_text

app_name = "dhara_probes"

#: An answer is good for so long, whoever asks; a statement of a probe may take so long.
FRESH_SECONDS, STATEMENT_SECONDS = 1.0, 2.0
#: So many different questions are remembered; they come from whoever may ask.
MOST_QUESTIONS = 100
#: Of a name, and of HOST:PID.
MOST_CHARACTERS = 300


class Recent:
    """Answers that are a second old at most; of several who ask at once, one looks and the others wait for it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._known: dict[Wanted | None, tuple[float, list[Finding]]] = {}

    def get(self, wanted: Wanted | None, look: Callable[[], list[Finding]]) -> list[Finding]:
        if not self._guard.acquire(timeout=STATEMENT_SECONDS):
            return [Finding("probe", False, "the probe before this one still waits for the database")]
        try:
            asked, findings = self._known.get(wanted, (float("-inf"), []))
            if self._clock() - asked > FRESH_SECONDS:
                findings = look()
                if len(self._known) >= MOST_QUESTIONS:
                    self._known.clear()
                self._known[wanted] = self._clock(), findings
            return findings
        finally:
            self._guard.release()


_recent = Recent()


@csrf_exempt
@require_safe
@transaction.non_atomic_requests
def livez(request: HttpRequest) -> HttpResponse:
    """This process answers. No database, no session, no permission."""
    return gate.told("ok", [])


@csrf_exempt
@require_safe
@transaction.non_atomic_requests
def readyz(request: HttpRequest) -> HttpResponse:
    """The queue can be used from here; 503 with a problem document if not."""
    if (refused := gate.refused(request)) is not None:
        return refused
    try:
        wanted = _wanted(request)
    except PayloadError as error:
        return gate.problem(400, "A value is wrong", str(error))
    findings = _recent.get(wanted, lambda: health.examine(_on_connection, health.backends(), wanted))
    bad = [finding.reason for finding in findings if not finding.is_good]
    if bad:
        checks = [finding.as_dict() for finding in findings]
        return gate.problem(503, "Not ready", "; ".join(bad), checks=checks)
    return gate.told("ok", [finding.as_dict() for finding in findings])


def _wanted(request: HttpRequest) -> Wanted | None:
    """What the query asks for.

    Raises:
        PayloadError: no worker and no queue can have such a name.
    """
    if not {"worker", "queue"} & set(request.GET):
        return None
    who, queue = (_name(request, parameter) for parameter in ("worker", "queue"))
    return Wanted("" if who in ("1", "true", "any") else who, queue)


def _name(request: HttpRequest, parameter: str) -> str:
    given = request.GET.get(parameter, "")
    return given and check_text(given, parameter, max_length=MOST_CHARACTERS)


def _on_connection(alias: str) -> sql.Execute:
    """On the request's connection; each statement has a limit."""
    run = sql.on(alias)

    def execute(statement: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        with sql.time_limit(alias, STATEMENT_SECONDS):
            return run(statement, parameters)

    return execute


urlpatterns = [path("livez", livez, name="livez"), path("readyz", readyz, name="readyz")]
