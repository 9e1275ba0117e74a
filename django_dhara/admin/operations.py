"""What an operator does to tasks: cancel, retry, run now. Each changed task gets an entry in Django's admin log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from django_dhara import operations
from django_dhara.admin.text import visible
from django_dhara.lifecycle import Tally
from django_dhara.models import Task

#: Tasks changed by one statement, and so in one transaction.
CHUNK = 1000

_BUSY = ngettext_lazy(
    "%(count)s is being changed right now: try again", "%(count)s are being changed right now: try again", "count"
)
_MISSING = ngettext_lazy("%(count)s no longer exists", "%(count)s no longer exist", "count")


class Verb(NamedTuple):
    """One thing that an operator can ask for."""

    #: In addresses and as the name of the admin action.
    name: str
    #: On its button.
    label: Promise | str
    #: Of `models.Task.Meta.permissions`.
    permission: str
    #: What `operations.change` calls it.
    change: operations.Verb
    #: Of each answer, what the summary says and what the log keeps. The first one stands in a summary even with 0.
    answers: Mapping[str, tuple[Any, str]]
    #: What the summary says of tasks in another state.
    refused: Any
    #: What it does, for the page that asks for a confirmation.
    explanation: Promise | str


CANCEL = Verb(
    name="cancel",
    label=_("Cancel"),
    permission="cancel_task",
    change="cancel",
    answers={
        "canceled": (ngettext_lazy("%(count)s canceled", "%(count)s canceled", "count"), "Canceled before it ran."),
        "requested": (
            ngettext_lazy("%(count)s running: asked to stop", "%(count)s running: asked to stop", "count"),
            "Asked to stop while it ran.",
        ),
    },
    refused=ngettext_lazy("%(count)s had already finished", "%(count)s had already finished", "count"),
    explanation=_("Pending tasks never start. Running ones are asked to stop, and never start again."),
)
RETRY = Verb(
    name="retry",
    label=_("Retry"),
    permission="revive_task",
    change="revive",
    answers={
        "revived": (ngettext_lazy("%(count)s retried", "%(count)s retried", "count"), "Put back to run again."),
    },
    refused=ngettext_lazy(
        "%(count)s was neither dead nor canceled", "%(count)s were neither dead nor canceled", "count"
    ),
    explanation=_("Dead and canceled tasks run again, with all their attempts anew. Earlier attempts stay on record."),
)
RUN_NOW = Verb(
    name="run_now",
    label=_("Run now"),
    permission="run_task_now",
    change="run_now",
    answers={
        "hastened": (ngettext_lazy("%(count)s due now", "%(count)s due now", "count"), "Made to run now."),
    },
    refused=ngettext_lazy(
        "%(count)s did not wait for a later time", "%(count)s did not wait for a later time", "count"
    ),
    explanation=_("Tasks that wait for a later time, or for their next attempt, are due at once."),
)
VERBS = {verb.name: verb for verb in (CANCEL, RETRY, RUN_NOW)}


class Outcome(NamedTuple):
    """What came of it, in words, and whether every task was changed."""

    summary: str
    complete: bool


def perform(verb: Verb, user_id: int, alias: str, ids: Sequence[UUID], *, missing: int = 0) -> Outcome:
    """Change the tasks on the database `alias`, in chunks, each in one transaction with its log entries.

    Args:
        missing: how many tasks were asked for besides, that do not exist any more.
    """
    total = Tally({}, missing=missing)
    for start in range(0, len(ids), CHUNK):
        with transaction.atomic(using=alias):
            part = operations.change(verb.change, ids[start : start + CHUNK], database=alias)
            _add(total, part)
            _log(verb, user_id, alias, part.changed)
    return Outcome(summary(verb, total), not (total.refused or total.busy or total.missing))


def _add(total: Tally, part: Tally) -> None:
    for answer, ids in part.changed.items():
        total.changed.setdefault(answer, []).extend(ids)
    total.refused += part.refused
    total.busy += part.busy
    total.missing += part.missing


def _log(verb: Verb, user_id: int, alias: str, changed: Mapping[str, Sequence[UUID]]) -> None:
    for answer, ids in changed.items():
        tasks = list(Task.objects.using(alias).filter(id__in=ids).only("id", "function").order_by("id"))
        for task in tasks:
            task.function = visible(task.function)
        LogEntry.objects.log_actions(user_id, tasks, CHANGE, verb.answers[answer][1])


def summary(verb: Verb, tally: Tally) -> str:
    """The whole truth in one sentence, such as "12 canceled, 3 had already finished, 2 no longer exist."."""
    return ", ".join(_parts(verb, tally)) + "."


def _parts(verb: Verb, tally: Tally) -> Iterator[str]:
    for position, (answer, (words, _logged)) in enumerate(verb.answers.items()):
        count = len(tally.changed.get(answer, ()))
        if count or (position == 0 and not tally.changed):
            yield words % {"count": count}
    for words, count in ((verb.refused, tally.refused), (_BUSY, tally.busy), (_MISSING, tally.missing)):
        if count:
            yield words % {"count": count}


def question(verb: Verb, count: int) -> str:
    """What the page asks before it changes `count` tasks."""
    asked = {
        "cancel": ngettext("Cancel %(count)s task?", "Cancel %(count)s tasks?", count),
        "retry": ngettext("Retry %(count)s task?", "Retry %(count)s tasks?", count),
        "run_now": ngettext("Run %(count)s task now?", "Run %(count)s tasks now?", count),
    }
    return asked[verb.name] % {"count": f"{count:,}"}
