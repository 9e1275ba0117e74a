"""Every verb of the lifecycle, as one call on one task: `VERBS["cancel"](execute, task)`.

`task` is the row as it was read before; a verb of a run carries the lease that stands there. `PURE` has the verbs as
the model has them: `PURE["cancel"](task, now, row)`, where `task` is how things stand and `row` what was read before.
"""

import re
from functools import partial
from itertools import product

from django_dhara import enqueue as enqueue_module
from django_dhara import lifecycle
from django_dhara.lifecycle import Report, Wanted
from django_dhara.states import ARROWS, FINAL, State
from tests import model
from tests.app.tasks import add
from tests.rows import MAX_INTERRUPTED, MAX_LOST, OTHER_WORKER, OUTCOMES, WORKER, an_ending


def claim(execute, task, worker=OTHER_WORKER, **named):
    options = {"limit": 1, "suspects": 1, "lease_seconds": 60.0, **named}
    return lifecycle.claim(execute, "default", Wanted(task.backend), worker, **options).claims


def settle(verb, execute, task):
    [answer] = lifecycle.settle(execute, WORKER, [an_ending(task, verb)], max_interrupted=MAX_INTERRUPTED)
    return answer


def rescue(execute, task, grace_seconds=0.0):
    return lifecycle.rescue(execute, "default", task.backend, max_lost=MAX_LOST, grace_seconds=grace_seconds)


def renew(execute, task):
    return lifecycle.renew(execute, WORKER, [(task.id, task.lease)], lease_seconds=60.0)


def report(execute, task):
    return lifecycle.report(execute, [Report(task.id, task.lease, '{"done": 7}', '"here"')])


def prune(execute, task):
    return lifecycle.prune(execute, "default", task.backend, _pruned(task), older_than=0.0, keyed_older_than=0.0)


def _pruned(task):
    """The final state that the task was read in, or of canceled tasks."""
    return task.state if task.state in FINAL else State.CANCELED


def enqueue(execute, task):
    """The call that has made the task, once more; on Django's connection of this thread, as everywhere."""
    return add.using(idempotency_key=task.idempotency_key).enqueue(1)


def look_then_insert(monkeypatch):
    """Plant what many queues do: a key is looked up first, and inserted if it is not there."""
    look, insert = enqueue_module._read_taken, enqueue_module._insert_fresh

    def _insert_fresh(connection, backend, rows):
        look(connection, rows)
        if free := [row for row in rows if row.result is None]:
            insert(connection, backend, free)

    monkeypatch.setattr(enqueue_module, "_insert_fresh", _insert_fresh)
    for name in ("_INSERT_ONE", "_INSERT_MANY"):
        bold = re.sub(r"ON CONFLICT .* DO NOTHING", "", getattr(enqueue_module, name))
        monkeypatch.setattr(enqueue_module, name, bold)


#: Where an operator puts a task: another queue, a priority, seconds from now.
PLACES = {"change queue": {"queue": "mail"}, "change priority": {"priority": 7}, "put off": {"seconds": 300.0}}


def _one(verb, execute, task, **arguments):
    """Of a verb that takes many tasks what it says of one, as `revive` does."""
    tally = getattr(lifecycle, verb)(execute, [task.id], wait=True, **arguments)
    return None if tally.missing else bool(tally.changed)


VERBS = {
    "claim": claim,
    **{verb: partial(settle, verb) for verb in OUTCOMES},
    "rescue": rescue,
    "cancel": lambda execute, task: lifecycle.cancel(execute, task.id),
    "revive": lambda execute, task: lifecycle.revive(execute, task.id),
    "renew": renew,
    "report": report,
    "run now": lambda execute, task: lifecycle.run_now(execute, task.id),
    **{name: partial(_one, f"{name.replace(' ', '_')}_all", **place) for name, place in PLACES.items()},
    "delete": partial(_one, "delete_all"),
    "prune": prune,
}


def _settle(verb, task, now, row):
    return model.settle(task, now, verb, row.lease, delay=getattr(OUTCOMES[verb], "delay", 0.0))


PURE = {
    "claim": lambda task, now, row: model.claim(task, now, OTHER_WORKER, seconds=60.0),
    **{verb: partial(_settle, verb) for verb in OUTCOMES},
    "rescue": lambda task, now, row: model.rescue(task, now),
    "cancel": lambda task, now, row: model.cancel(task, now),
    "revive": lambda task, now, row: model.revive(task, now),
    "renew": lambda task, now, row: model.renew(task, now, row.lease, seconds=60.0),
    "report": lambda task, now, row: model.report(task, row.lease),
    "run now": lambda task, now, row: model.run_now(task, now),
    "change queue": lambda task, now, row: model.change_queue(task, now, **PLACES["change queue"]),
    "change priority": lambda task, now, row: model.change_priority(task, now, **PLACES["change priority"]),
    "put off": lambda task, now, row: model.put_off(task, now, **PLACES["put off"]),
    "delete": lambda task, now, row: model.delete(task, now),
    "prune": lambda task, now, row: model.prune(task, now, _pruned(row)),
    "enqueue": lambda task, now, row: model.enqueue(task, now, key=row.idempotency_key),
}


def _settled(answer):
    return answer.state or ("refused" if answer.refused else "skipped")


def _renewed(answer):
    return "renewed" if answer.renewed else "refused" if answer.refused else "skipped"


#: Answers as the model puts them; `skipped`: the verb has left out a locked row. Those not here are the same.
_TOLD = {
    "claim": lambda claims: next(((claimed.lease, claimed.attempt) for claimed in claims), None),
    **dict.fromkeys(OUTCOMES, _settled),
    "rescue": lambda rescued: next((task.state for task in rescued), None),
    "renew": _renewed,
    "report": lambda taken: "taken" if taken else "refused",
    "enqueue": lambda result: "duplicate" if result.duplicate else "new",
}


def told(verb, answer):
    """What a verb of `VERBS` has answered for one task, as the model puts it."""
    return _TOLD[verb](answer) if verb in _TOLD else answer


#: Where a verb does something without an arrow in `states.ARROWS`: the state stays, or the row goes.
NO_ARROW = {
    (State.RUNNING, "cancel"),
    (State.RUNNING, "renew"),
    (State.RUNNING, "report"),
    *((State.PENDING, verb) for verb in ("run now", *PLACES)),
    *product((State.COMPLETED, State.DEAD, State.CANCELED), ("delete", "prune")),
}

DOES_SOMETHING = NO_ARROW | {(arrow.source, arrow.verb) for arrow in ARROWS}

#: What a verb answers when it leaves out a row that somebody else has locked. The others wait for it.
SKIPPED = {
    "claim": None,
    **dict.fromkeys(OUTCOMES, "skipped"),
    "rescue": None,
    "renew": "skipped",
    "report": "refused",
    "prune": 0,
}
