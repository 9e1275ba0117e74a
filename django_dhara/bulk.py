"""A change of all tasks that match a search, in batches: its row says how far it is.

Whoever looks at it moves it on, a step at a time. A step locks the row, walks on from its cursor, changes what it finds
and writes the new cursor, all in one transaction: a server that is killed, or two browsers at once, leave no task out
and change none twice. The walk goes from the newest task at the start down to the oldest. What is enqueued later is
above it and is not touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from django_dhara import operations, search
from django_dhara.lifecycle import Tally
from django_dhara.models import BulkChange, Task
from django_dhara.sql import TooSlow

#: Tasks that are looked for at once, those of them that are changed by one statement, and seconds after which a step
#: begins no other one.
AHEAD, BATCH, SECONDS = 5000, 500, 0.5

#: What a bulk change counts beside the answers of its verb.
REFUSED, BUSY, MISSING = "refused", "busy", "missing"


def create(
    alias: str,
    verb: operations.Verb,
    asked: search.Search,
    arguments: Mapping[str, object] | None = None,
    *,
    reason: str = "",
    user_id: object = "",
    user_name: str = "",
) -> BulkChange:
    """A bulk change of all tasks on `alias` that match now. `step` makes it.

    Args:
        arguments: of the verb, as `operations.change` takes them.
        reason: for whoever looks at it later.
        user_id, user_name: who asked for it.

    Raises:
        ValueError: an argument is of no use.
    """
    given = operations.check_arguments(verb, arguments or {})
    with transaction.atomic(using=alias):
        change = BulkChange.objects.using(alias).create(
            verb=verb, arguments=given, reason=reason, user_id=str(user_id), user_name=user_name
        )
        change.refresh_from_db(using=alias)  # a router could name a replica
        change.search = str(asked.at(change.created_at))
        newest = Task.objects.using(alias).order_by("-id").values_list("id", flat=True).first()
        change.cursor = UUID(int=newest.int + 1) if newest else None
        change.save(using=alias, update_fields=["search", "cursor"])
    return change


def step(
    alias: str,
    id_: UUID,
    *,
    seconds: float = SECONDS,
    batch: int = BATCH,
    on_changed: Callable[[BulkChange, Tally], None] = lambda change, tally: None,
) -> BulkChange:
    """Change the next tasks, for about `seconds`, and return the bulk change as it then stands.

    Nothing is done where it has ended, where somebody stopped it, or while somebody else makes a step.

    Args:
        batch: tasks that are changed by one statement.
        on_changed: called after each statement, in the same transaction.

    Raises:
        BulkChange.DoesNotExist: there is none with this id.
        TooSlow: the search is, even through few rows; nothing was changed.
    """
    began = monotonic()
    with transaction.atomic(using=alias):
        changes = BulkChange.objects.using(alias).select_for_update(skip_locked=True)
        change = changes.filter(pk=id_, finished_at=None, stopped_at=None).first()
        if change:
            _go_on(alias, change, began + seconds, batch, on_changed)
    return BulkChange.objects.using(alias).get(pk=id_)


def _go_on(
    alias: str, change: BulkChange, until: float, batch: int, on_changed: Callable[[BulkChange, Tally], None]
) -> None:
    counts = Counter(change.counts)
    for ids, last in _parts(alias, change, batch):
        if ids:
            tally = operations.change(_verb(change), ids, database=alias, **change.arguments)
            counts.update(counted(tally))
            on_changed(change, tally)
        change.looked_at += len(ids)
        change.cursor = last
        if monotonic() >= until:
            break
    change.counts = dict(counts)
    change.changed_at = Now()
    if change.cursor is None:
        change.finished_at = Now()
    change.save(using=alias, update_fields=["counts", "looked_at", "cursor", "changed_at", "finished_at"])


def _parts(alias: str, change: BulkChange, batch: int) -> Iterator[tuple[Sequence[UUID], UUID | None]]:
    """The tasks that are next, so many at a time, each time with the cursor that comes after them."""
    asked, below, is_first = search.parse(change.search, is_kept=True), change.cursor, True
    while below:
        try:
            part = search.walk(alias, asked, below=below, size=max(AHEAD, batch), until=change.created_at)
        except TooSlow:
            if is_first:
                raise
            return
        chunks = [part.ids[start : start + batch] for start in range(0, len(part.ids), batch)] or [[]]
        for chunk in chunks[:-1]:
            yield chunk, chunk[-1]
        yield chunks[-1], part.last
        below, is_first = part.last, False


def _verb(change: BulkChange) -> Any:
    return change.verb


def counted(tally: Tally) -> dict[str, int]:
    """How many tasks there are of each answer, and of those that were not changed."""
    numbers = {answer: len(ids) for answer, ids in tally.changed.items()}
    numbers |= {REFUSED: tally.refused, BUSY: tally.busy, MISSING: tally.missing}
    return {name: number for name, number in numbers.items() if number}


def stop(alias: str, id_: UUID) -> bool:
    """Let nobody make another step; one that is being made is waited for. False: it had ended already."""
    going = BulkChange.objects.using(alias).filter(pk=id_, finished_at=None, stopped_at=None)
    return bool(going.update(stopped_at=Now(), changed_at=Now()))


def left(alias: str, change: BulkChange, *, most: int = search.MOST) -> search.Found:
    """How many tasks are before it."""
    if change.cursor is None or change.stopped_at or change.finished_at:
        return search.Found(0, more=False, estimate=None, looked=search.Looked(complete=True, rows=0, until=None))
    asked = search.parse(change.search, is_kept=True)
    return search.count(alias, asked, most=most, below=change.cursor, until=change.created_at)


__all__ = ["AHEAD", "BATCH", "BUSY", "MISSING", "REFUSED", "SECONDS", "counted", "create", "left", "step", "stop"]
