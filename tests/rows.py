"""Rows for tests, one line each: `a_task(State.RUNNING, lost=1)`. Times are the database's own."""

from datetime import timedelta
from uuid import UUID, uuid4

from django.db.models.functions import Now

from django_dhara.lifecycle import Ending
from django_dhara.models import Attempt, Command, Task
from django_dhara.states import (
    FINAL,
    Completed,
    Discarded,
    Error,
    Failed,
    HandedBack,
    Interrupted,
    Snoozed,
    State,
    TimedOut,
)

WORKER = UUID(int=1)
OTHER_WORKER = UUID(int=2)
MAX_LOST = 3
MAX_INTERRUPTED = 3

BOOM = Error("tests.Boom", "it broke", "Traceback: it broke", "f00")

#: One outcome for every way in which a run can end.
OUTCOMES = {
    "complete": Completed('{"answer": 42}'),
    "fail": Failed(BOOM, delay=60.0),
    "time out": TimedOut(BOOM, delay=60.0),
    "discard": Discarded(BOOM),
    "snooze": Snoozed(delay=60.0),
    "interrupt": Interrupted(BOOM),
    "hand back": HandedBack(),
}


def ago(seconds):
    return Now() - timedelta(seconds=seconds)


def ahead(seconds):
    return Now() + timedelta(seconds=seconds)


def a_task(state=State.PENDING, **columns):
    """A row in `state`, due and with a full budget; the columns that its state needs are filled in."""
    values = {
        "id": uuid4(),
        "backend": "default",
        "function": "tests.app.tasks.add",
        "queue": "default",
        "state": state,
        "payload": {"args": [1], "kwargs": {}},
        "run_at": ago(10),
    }
    if state == State.RUNNING:
        values |= {"lease": 1, "lease_until": ahead(60), "worker_id": WORKER, "started_at": Now()}
        values |= {"attempted_at": Now()}
    if state in FINAL:
        values |= {"lease": 1, "finished_at": Now()}
    return Task.objects.create(**{**values, **columns})


def an_attempt(task, **columns):
    values = {"lease": 1, "number": 1, "worker_id": WORKER, "started_at": Now(), "ended": "FAILED"}
    return Attempt.objects.create(task_id=task.id, **{**values, "error_class": "tests.Boom", **columns})


def an_ending(task, verb="complete", *, lease=None, seconds=0.5, outcome=None):
    """How a run of `task` ended; by default the run that holds its newest lease."""
    return Ending(task.id, task.lease if lease is None else lease, outcome or OUTCOMES[verb], seconds)


def row(task):
    """The whole row as it stands now, or None."""
    return Task.objects.filter(pk=task.pk).values().first()


def fresh(task):
    return Task.objects.get(pk=task.pk)


def everything():
    """Every row that a verb could change."""
    return [list(model.objects.order_by("pk").values()) for model in (Task, Attempt, Command)]
