"""What an operator can do to tasks. Each changed task gets an entry in Django's admin log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import transaction
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from django_dhara import bulk, operations
from django_dhara.admin.text import grouped, visible
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
    #: The argument that it takes, if it takes one.
    argument: str = ""
    #: On the button of one task, where that is another word.
    label_of_one: Promise | str = ""

    @property
    def button(self) -> Promise | str:
        """What stands on the button of one task."""
        return self.label_of_one or self.label


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
COPY = Verb(
    name="copy",
    label=_("Retry as new tasks"),
    permission="revive_task",
    change="copy",
    answers={
        "copied": (ngettext_lazy("%(count)s enqueued anew", "%(count)s enqueued anew", "count"), "Enqueued anew."),
    },
    refused=ngettext_lazy(
        "%(count)s was neither dead nor canceled, or has such a task already",
        "%(count)s were neither dead nor canceled, or have such tasks already",
        "count",
    ),
    explanation=_(
        "The same calls are enqueued once more, as new tasks that begin with nothing; these stay as they are, and keep "
        "their idempotency keys. Each is enqueued anew once, however often it is asked for."
    ),
    label_of_one=_("Retry as a new task"),
)
CHANGE_PRIORITY = Verb(
    name="change_priority",
    label=_("Change priority"),
    permission="move_task",
    change="change_priority",
    answers={
        "moved": (
            ngettext_lazy("%(count)s has the new priority", "%(count)s have the new priority", "count"),
            "Priority changed to %s.",
        ),
    },
    refused=ngettext_lazy(
        "%(count)s was not pending, or had it already", "%(count)s were not pending, or had it already", "count"
    ),
    explanation=_("Pending tasks get another priority: larger ones run sooner."),
    argument="priority",
    label_of_one=_("Change priority…"),
)
CHANGE_QUEUE = Verb(
    name="change_queue",
    label=_("Change queue"),
    permission="move_task",
    change="change_queue",
    answers={
        "moved": (ngettext_lazy("%(count)s moved", "%(count)s moved", "count"), "Moved to queue %s."),
    },
    refused=ngettext_lazy(
        "%(count)s was not pending, was there already, or has no such queue",
        "%(count)s were not pending, were there already, or have no such queue",
        "count",
    ),
    explanation=_("Pending tasks wait in another queue. A task moves only to a queue that its backend in TASKS has."),
    argument="queue",
    label_of_one=_("Change queue…"),
)
SNOOZE = Verb(
    name="snooze",
    label=_("Snooze"),
    permission="snooze_task",
    change="snooze",
    answers={
        "snoozed": (ngettext_lazy("%(count)s put off", "%(count)s put off", "count"), "Put off for %s s."),
    },
    refused=ngettext_lazy(
        "%(count)s was not pending, or waits for longer", "%(count)s were not pending, or wait for longer", "count"
    ),
    explanation=_("Pending tasks do not run before so much time has passed. What waits for longer already stays."),
    argument="seconds",
    label_of_one=_("Snooze…"),
)
DELETE = Verb(
    name="delete_finished",
    label=_("Delete finished"),
    permission="delete_task",
    change="delete",
    answers={
        "deleted": (ngettext_lazy("%(count)s deleted", "%(count)s deleted", "count"), "Deleted."),
    },
    refused=ngettext_lazy("%(count)s had not finished", "%(count)s had not finished", "count"),
    explanation=_(
        "Completed, dead and canceled tasks and their attempts are deleted for good. Their idempotency keys are free."
    ),
    label_of_one=_("Delete…"),
)
VERBS = {verb.name: verb for verb in (RETRY, COPY, CANCEL, RUN_NOW, SNOOZE, CHANGE_PRIORITY, CHANGE_QUEUE, DELETE)}


class Outcome(NamedTuple):
    """What came of it, in words, and whether every task was changed."""

    summary: str
    complete: bool
    #: Of a copy: the new task of each that was copied.
    copies: Mapping[UUID, UUID]


class Wish(NamedTuple):
    """Who wants what, and why."""

    verb: Verb
    #: The primary key of a user, of whatever type that is.
    user_id: Any
    #: As `operations.change` takes them.
    arguments: Mapping[str, Any] = MappingProxyType({})
    reason: str = ""


def perform(wish: Wish, alias: str, ids: Sequence[UUID], *, missing: int = 0) -> Outcome:
    """Change the tasks on the database `alias`, in chunks, each in one transaction with its log entries.

    Args:
        missing: how many tasks were asked for besides, that do not exist any more.

    Raises:
        ValueError: an argument is of no use.
    """
    total = Tally({}, missing=missing)
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        with transaction.atomic(using=alias):
            gone = _doomed(wish, alias, part)
            tally = operations.change(wish.verb.change, part, database=alias, **wish.arguments)
            _add(total, tally)
            log(wish, alias, tally, gone)
    said = summary(wish.verb, {answer: len(each) for answer, each in total.changed.items()} | _rest(total))
    return Outcome(said, not (total.refused or total.busy or total.missing), total.copies)


def _rest(tally: Tally) -> dict[str, int]:
    return {bulk.REFUSED: tally.refused, bulk.BUSY: tally.busy, bulk.MISSING: tally.missing}


def _doomed(wish: Wish, alias: str, ids: Sequence[UUID]) -> dict[UUID, str]:
    """The functions of tasks of which the log is to tell when they are gone."""
    if wish.verb is not DELETE:
        return {}
    return dict(Task.objects.using(alias).filter(id__in=ids).values_list("id", "function"))


def _add(total: Tally, part: Tally) -> None:
    for answer, ids in part.changed.items():
        total.changed.setdefault(answer, []).extend(ids)
    total.copies |= part.copies
    total.refused += part.refused
    total.busy += part.busy
    total.missing += part.missing


def log(wish: Wish, alias: str, tally: Tally, gone: Mapping[UUID, str] = MappingProxyType({})) -> None:
    """One entry for each task that was changed.

    Args:
        gone: the functions of tasks that were deleted, as far as they are known.
    """
    for answer, ids in tally.changed.items():
        if wish.verb is DELETE:
            tasks = [Task(id=id_, function=gone.get(id_, "")) for id_ in ids]
        else:
            tasks = list(Task.objects.using(alias).filter(id__in=ids).only("id", "function").order_by("id"))
        for task in tasks:
            task.function = visible(task.function)
        flag = DELETION if wish.verb is DELETE else CHANGE
        LogEntry.objects.log_actions(wish.user_id, tasks, flag, said(wish, answer))


def said(wish: Wish, answer: str) -> str:
    """What the log keeps of a change."""
    text = wish.verb.answers[answer][1]
    if wish.verb.argument:
        text %= visible(wish.arguments[wish.verb.argument])
    return f"{text} {visible(wish.reason)}" if wish.reason else text


def summary(verb: Verb, counts: Mapping[str, int]) -> str:
    """The whole truth in one sentence, such as "12 canceled, 3 had already finished, 2 no longer exist."."""
    return ", ".join(_parts(verb, counts)) + "."


def _parts(verb: Verb, counts: Mapping[str, int]) -> Iterator[str]:
    nothing = not any(counts.get(answer) for answer in verb.answers)
    for position, (answer, (words, _logged)) in enumerate(verb.answers.items()):
        if counts.get(answer) or (position == 0 and nothing):
            yield _told(words, counts.get(answer, 0))
    for words, name in ((verb.refused, bulk.REFUSED), (_BUSY, bulk.BUSY), (_MISSING, bulk.MISSING)):
        if counts.get(name):
            yield _told(words, counts[name])


def _told(words: Any, count: int) -> str:
    """The words that go with a count, with the count as people write it."""
    return str(words % {"count": count}).replace(str(count), grouped(count), 1)


def question(verb: Verb, count: int, shown: str = "") -> str:
    """What the page asks before it changes `count` tasks.

    Args:
        shown: the count in words, such as "about 50,000".
    """
    asked = {
        "cancel": ngettext("Cancel %(count)s task?", "Cancel %(count)s tasks?", count),
        "retry": ngettext("Retry %(count)s task?", "Retry %(count)s tasks?", count),
        "copy": ngettext("Retry %(count)s task as a new one?", "Retry %(count)s tasks as new ones?", count),
        "run_now": ngettext("Run %(count)s task now?", "Run %(count)s tasks now?", count),
        "snooze": ngettext("Put %(count)s task off?", "Put %(count)s tasks off?", count),
        "change_priority": ngettext(
            "Change the priority of %(count)s task?", "Change the priority of %(count)s tasks?", count
        ),
        "change_queue": ngettext(
            "Move %(count)s task to another queue?", "Move %(count)s tasks to another queue?", count
        ),
        "delete_finished": ngettext(
            "Delete %(count)s task, if it has finished?", "Delete %(count)s tasks, as far as they have finished?", count
        ),
    }
    return asked[verb.name] % {"count": shown or grouped(count)}
