"""What changes while one looks: how far a running task is, and what its worker says of its stack."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import TextField
from django.db.models.functions import Cast, Left, Length, Now
from django.utils.translation import gettext as _

from django_dhara import operations
from django_dhara.admin import traces
from django_dhara.admin.text import first_line, grouped, visible
from django_dhara.models import Command, Task
from django_dhara.states import State

#: Seconds between two looks at a task that runs or may start, and at the answer of its worker.
PROGRESS_SECONDS, STACK_SECONDS = 2.0, 0.3
#: Between two looks at one that is not due.
SCHEDULED_SECONDS = 30.0
#: After so many seconds a worker is said not to answer.
PATIENCE_SECONDS = 3.0
#: Characters of what a function says of its progress that are read for the bar.
SAID = 2000


class Gauge(NamedTuple):
    """How far a function says it is."""

    #: 0 to 100; None where it gives no number for all.
    percent: float | None
    said: str


def gauge(text: str | None) -> Gauge | None:
    """What `context.progress()` has stored, if it can be shown as a bar or a sentence."""
    if text is None or len(text) > SAID:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, str):
        return Gauge(None, first_line(value))
    if isinstance(value, dict):
        return _gauge_of(value)
    percent = _percent(value)
    return None if percent is None else Gauge(percent, "")


def _gauge_of(value: dict[str, Any]) -> Gauge | None:
    said = next((first_line(value[key]) for key in ("message", "step") if isinstance(value.get(key), str)), "")
    for done, of in (("done", "of"), ("done", "total"), ("current", "total")):
        share = _share(value.get(done), value.get(of))
        if share is not None:
            counted = _("%(done)s of %(of)s") % {"done": grouped(value[done]), "of": grouped(value[of])}
            return Gauge(share, f"{counted}, {said}" if said else counted)
    percent = _percent(value.get("percent"))
    return Gauge(percent, said) if said or percent is not None else None


def _share(done: Any, of: Any) -> float | None:
    if not (_is_number(done) and _is_number(of)) or of <= 0:
        return None
    return float(min(max(done / of, 0.0), 1.0)) * 100


def _percent(value: Any) -> float | None:
    """Up to 1 a share, up to 100 a percentage."""
    if not _is_number(value) or not 0 <= value <= 100:
        return None
    return float(value * 100 if value <= 1 else value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def seconds(task: Any) -> float | None:
    """When its page looks again; None: it has ended."""
    if task.state == State.PENDING:
        wait: float = (task.run_at - task.now).total_seconds()
        return min(max(wait, PROGRESS_SECONDS), SCHEDULED_SECONDS)
    return PROGRESS_SECONDS if task.state == State.RUNNING else None


def mark(task: Any) -> str:
    """What is another when more of the page is old than what `glance` reads."""
    waits = task.state == State.PENDING and task.run_at > task.now
    return f"{task.state} {task.lease} {waits} {task.cancel_requested_at is not None}"


def glance(queryset: Any) -> Any:
    """The tasks with the beginning of what they say of their progress, for `gauge`."""
    text = Cast("progress", TextField())
    return queryset.annotate(progress_text=Left(text, SAID), progress_size=Length(text), now=Now())


# The stack of a running task


class Stack(NamedTuple):
    """What a worker was asked, and what it said."""

    command: int
    asked_at: datetime
    #: Nothing yet, and there is still hope.
    waits: bool
    #: Where it runs in its worker, in the worker's words, and its frames.
    where: str = ""
    pieces: tuple[traces.Piece, ...] = ()
    #: Why there are none.
    problem: str = ""


def ask(alias: str, task: Any) -> int | None:
    """Ask the worker of a running task for its stack; returns the command, or None: it does not run."""
    with transaction.atomic(using=alias):
        running = Task.objects.using(alias).filter(pk=task.pk, state=State.RUNNING)
        found = running.values_list("worker_id", "lease", "backend", "queue").first()
        worker, lease, backend, queue = found or (None, 0, "", "")
        if worker is None:
            return None
        argument = {"task": str(task.pk), "lease": lease}
        command = Command.objects.using(alias).create(
            worker_id=worker, verb=Command.Verb.STACKS, argument=argument, created_at=Now()
        )
        operations.wake_at_commit(alias, backend, queue)
    return command.pk


def stack(alias: str, task_id: UUID, command: int, function: str) -> Stack | None:
    """How that stands; None: nobody asked this about this task."""
    asked = Command.objects.using(alias).filter(pk=command, verb=Command.Verb.STACKS, argument__task=str(task_id))
    found = asked.annotate(now=Now()).first()
    if found is None:
        return None
    if found.answered_at is None:
        waits = (found.now - found.created_at).total_seconds() < PATIENCE_SECONDS
        return Stack(command, found.created_at, waits, problem="" if waits else _silence())
    return _told(found, function)


def _told(command: Any, function: str) -> Stack:
    match command.answer:
        case {"stack": str(text), "where": str(where)}:
            frames = tuple(traces.pieces(text, function))
            return Stack(command.pk, command.created_at, waits=False, where=visible(where), pieces=frames)
        case {"problem": str(problem)}:
            return Stack(command.pk, command.created_at, waits=False, problem=_problem(problem))
        case dict(threads):  # a worker of an older version tells of all its threads
            text = "\n".join(f"{name}:\n{stack}" for name, stack in threads.items())
            where = _("all threads of its worker")
            frames = tuple(traces.pieces(text, function))
            return Stack(command.pk, command.created_at, waits=False, where=where, pieces=frames)
    return Stack(command.pk, command.created_at, waits=False, problem=first_line(str(command.answer)))


def _problem(problem: str) -> str:
    known = {
        "not running here": _("Its worker says that it does not run there any more."),
        "not started": _("Its worker has claimed it, and has not started the function yet."),
        "ended": _("The function has just ended."),
        "silent": _(
            "Its worker lives, but what runs the function does not answer: it may be in C code that holds the "
            "interpreter."
        ),
    }
    return known.get(problem, visible(problem))


def _silence() -> str:
    return _("Its worker has not answered: it may be gone, out of reach, or of a version that does not know how.")
