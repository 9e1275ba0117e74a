"""Cancel and retry all tasks that match: a bulk change, which the admin shows too, and which goes on call by call."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest

from django_dhara import bulk, databases, events, operations
from django_dhara.api import finding, schemas, scope
from django_dhara.api.access import CANCEL, CHANGE, RETRY, SEE, Caller, caller_of
from django_dhara.api.problems import Problem
from django_dhara.api.service import endpoint
from django_dhara.models import BulkChange

_TAG = "changes"
#: What it takes to go on with a change.
_NEEDS = {"cancel": CANCEL, "revive": RETRY}


@endpoint("POST", "/tasks/cancel", tag=_TAG, needs=CANCEL, answers={200: schemas.Change})
def cancel_tasks(request: HttpRequest, selection: schemas.CancelSelection) -> schemas.Change:
    """Cancel all tasks that match, as of now.

    A call changes tasks for about half a second; while there is `more`, continue it.
    """
    return _begin(request, "cancel", selection, selection.status)


@endpoint("POST", "/tasks/retry", tag=_TAG, needs=RETRY, answers={200: schemas.Change})
def retry_tasks(request: HttpRequest, selection: schemas.RetrySelection) -> schemas.Change:
    """Retry all tasks that match, as of now.

    A call changes tasks for about half a second; while there is `more`, continue it.
    """
    return _begin(request, "revive", selection, selection.status)


def _begin(request: HttpRequest, verb: operations.Verb, selection: Any, status: str) -> schemas.Change:
    backend, caller = scope.backend(selection.backend), caller_of(request)
    alias = backend.settings.database
    asked = finding.wanted(selection, status, backend.alias, caller)
    if asked is None:
        raise Problem("forbidden", f"This token is not good for the queue {selection.queue!r}.", field="queue")
    with scope.limited(alias):
        change = bulk.create(alias, verb, asked, reason="By the API", user_name=caller.name)
    events.API_BULK_BEGUN.tell(caller=caller.name, change_id=change.pk, verb=verb, search=change.search)
    return _told(bulk.step(alias, change.pk))


@endpoint("GET", "/changes/{uuid:change_id}", tag=_TAG, needs=SEE, answers={200: schemas.Change})
def get_change(request: HttpRequest, change_id: UUID) -> schemas.Change:
    """Show how far a change is."""
    return _told(_found(change_id, caller_of(request))[1])


@endpoint("POST", "/changes/{uuid:change_id}/continue", tag=_TAG, needs=CHANGE, answers={200: schemas.Change})
def continue_change(request: HttpRequest, change_id: UUID) -> schemas.Change:
    """Continue a change, for about half a second; it takes what beginning it took."""
    alias, change = _mine(request, change_id)
    return _told(bulk.step(alias, change.pk))


@endpoint("DELETE", "/changes/{uuid:change_id}", tag=_TAG, needs=CHANGE, answers={200: schemas.Change})
def stop_change(request: HttpRequest, change_id: UUID) -> schemas.Change:
    """Stop a change where it is; it takes what beginning it took."""
    alias, change = _mine(request, change_id)
    if bulk.stop(alias, change.pk):
        events.API_BULK_STOPPED.tell(caller=caller_of(request).name, change_id=change.pk)
    return _told(BulkChange.objects.using(alias).get(pk=change.pk))


def _mine(request: HttpRequest, change_id: UUID) -> tuple[str, BulkChange]:
    """A change that this caller may make itself."""
    caller = caller_of(request)
    alias, change = _found(change_id, caller)
    needs = _NEEDS.get(change.verb)
    if needs is None or not caller.may(needs):
        raise Problem("forbidden", f"This change is to {change.verb}: that takes more than this caller may.")
    return alias, change


def _found(change_id: UUID, caller: Caller) -> tuple[str, BulkChange]:
    """A change, and the database that it is of. Who is for some queues only has to do with their own changes."""
    for alias in databases.aliases():
        with scope.limited(alias):
            change = BulkChange.objects.using(alias).filter(pk=change_id).first()
        if change is not None and (not caller.queues or change.user_name == caller.name):
            return alias, change
    raise Problem("not-found", f"There is no change {change_id}, or it is not for you to see.")


def _told(change: BulkChange) -> schemas.Change:
    counts = {"retried" if answer == "revived" else answer: number for answer, number in change.counts.items()}
    return schemas.Change(
        id=change.pk,
        verb="retry" if change.verb == "revive" else change.verb,
        search=change.search,
        counts=counts,
        more=change.finished_at is None and change.stopped_at is None,
        begun_by=change.user_name,
        begun_at=change.created_at,
        stopped_at=change.stopped_at,
        finished_at=change.finished_at,
    )
