"""Rows for tests, one line each: `a_task(State.RUNNING, lost=1)`. Times are the database's own.

`put` makes the row of a task as the model has it (see model.py), `read` reads rows as the model would have them.
"""

from datetime import timedelta
from uuid import UUID, uuid4

from django.db.models.functions import Now

from django_dhara.lifecycle import Ending
from django_dhara.models import Attempt, Command, Task
from django_dhara.payload import canonical_hash, encode
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
from tests import model

WORKER = UUID(int=1)
OTHER_WORKER = UUID(int=2)
MAX_LOST, MAX_INTERRUPTED = model.MAX_LOST, model.MAX_INTERRUPTED

BOOM = Error(model.ERROR, "it broke", "Traceback: it broke", "f00")

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


#: Where a column of the table and a field of the model have different names.
_COLUMNS = {"key": "idempotency_key", "worker": "worker_id", "canceled_at": "cancel_requested_at"}
_COLUMNS |= {"error": "error_class"}
_PLAIN = [name for name in model.Task.__annotations__ if name not in (*model.TIMES, "argument", "attempts", "commands")]


def put(task, **columns):
    """The row of a task of the model, whose times are now and thereabouts."""
    values = {_COLUMNS.get(name, name): getattr(task, name) for name in (*_PLAIN, *model.TIMES)}
    for name in model.TIMES:
        column = _COLUMNS.get(name, name)
        values[column] = values[column] if values[column] is None else ahead(values[column])
    payload = encode((task.argument,), {}, max_bytes=1000)
    values |= {"payload": {"args": payload.args, "kwargs": {}}, "payload_hash": canonical_hash(payload), **columns}
    row = a_task(**values)
    for ended, number, lease in task.attempts:
        an_attempt(row, ended=ended, number=number, lease=lease)
    return row


_READ = f"""
SELECT id, {", ".join(_COLUMNS.get(name, name) for name in _PLAIN)}, (payload->'args'->0)::int,
       {
    ", ".join(
        f"extract(epoch FROM {_COLUMNS.get(name, name)} - %(since)s::timestamptz)::float8" for name in model.TIMES
    )
},
       (SELECT coalesce(jsonb_agg(jsonb_build_array(ended, number, lease) ORDER BY attempt.id), '[]')
        FROM dhara_attempt AS attempt WHERE task_id = task.id),
       (SELECT count(*) FROM dhara_command WHERE argument->>'task' = task.id::text)
FROM dhara_task AS task
"""


def read(execute, since):
    """All tasks that there are, by id, as the model has them, their times in seconds since `since`."""
    names = (*_PLAIN, "argument", *model.TIMES, "attempts", "commands")
    found = {}
    for id_, *values in execute(_READ, {"since": since}):
        columns = dict(zip(names, values, strict=True))
        columns["attempts"] = tuple(map(tuple, columns["attempts"]))
        found[id_] = model.Task(**{**columns, "state": State(columns["state"])})
    return found


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
