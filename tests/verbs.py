"""Every verb of the lifecycle, as one call on one task: `VERBS["cancel"](execute, task)`.

`task` is the row as it was read before; a verb of a run carries the lease that stands there.
"""

from functools import partial

from django_dhara import lifecycle
from django_dhara.lifecycle import Report, Settled, Wanted
from django_dhara.states import ARROWS, FINAL, State
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
    """Of the final state that the task was read in, or of canceled tasks."""
    state = task.state if task.state in FINAL else State.CANCELED
    return lifecycle.prune(execute, "default", task.backend, state, older_than=0.0, keyed_older_than=0.0)


VERBS = {
    "claim": claim,
    **{verb: partial(settle, verb) for verb in OUTCOMES},
    "rescue": rescue,
    "cancel": lambda execute, task: lifecycle.cancel(execute, task.id),
    "revive": lambda execute, task: lifecycle.revive(execute, task.id),
    "renew": renew,
    "report": report,
    "run now": lambda execute, task: lifecycle.run_now(execute, task.id),
    "prune": prune,
}

#: Where a verb does something without an arrow in `states.ARROWS`: the state stays, or the row goes.
NO_ARROW = {
    (State.RUNNING, "cancel"),
    (State.RUNNING, "renew"),
    (State.RUNNING, "report"),
    (State.PENDING, "run now"),
    *((state, "prune") for state in (State.COMPLETED, State.DEAD, State.CANCELED)),
}

DOES_SOMETHING = NO_ARROW | {(arrow.source, arrow.verb) for arrow in ARROWS}

#: What a verb answers when it leaves out a row that somebody else has locked. The others wait for it.
SKIPPED = {
    "claim": [],
    **{verb: Settled(None, refused=False) for verb in OUTCOMES},
    "rescue": [],
    "renew": (set(), set(), False),
    "report": set(),
    "prune": 0,
}
