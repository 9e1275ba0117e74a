"""Two verbs on one task at the same moment, their order forced, each on a real session of its own.

What they come to must be what the model (model.py) makes of one after the other, in either order; or what the first one
alone comes to, where the second is documented to leave out a row that somebody has locked.
"""

from dataclasses import replace
from functools import cache

from django_dhara.models import Task
from django_dhara.states import State
from tests import model
from tests.rows import MAX_INTERRUPTED, WORKER, put, read
from tests.sessions import Operator, Session, wait
from tests.verbs import PLACES, PURE, SKIPPED, VERBS, enqueue, told

VERBS = {**VERBS, "enqueue": enqueue}

#: The two-party orders are those of these fourteen: who meets whom. Verbs of one party differ in a column or two.
PARTIES = {
    "claim": ("claim",),
    "renew": ("renew", "report"),
    "settle ok": ("complete",),
    "settle fail": ("fail", "time out", "discard"),
    "hand back": ("hand back", "interrupt"),
    "reap": ("rescue",),
    "cancel": ("cancel",),
    "operator retry": ("revive",),
    "prune": ("prune",),
    "re-enqueue": ("enqueue",),
    "snooze": ("snooze",),
    "reschedule": ("run now", "put off"),
    "move": ("change queue", "change priority"),
    "delete": ("delete",),
}

_DUE = model.Task(key="k", lease=1, run_at=-1000.0)
_RUNNING = replace(_DUE, state=State.RUNNING, worker=WORKER, lease_until=300.0, started_at=-900.0, attempted_at=-800.0)
_OVERDUE = replace(_RUNNING, lease_until=-300.0)

#: Tasks to collide on, their times far apart.
STARTS = {
    "absent": None,
    "due": _DUE,
    "scheduled": replace(_DUE, run_at=1000.0),
    "suspect": replace(_DUE, lost=1, attempts=(("LOST", 1, 1),)),
    "running": _RUNNING,
    "overdue": _OVERDUE,
    "last": replace(_OVERDUE, failures=1, max_attempts=2, interrupted=MAX_INTERRUPTED - 1),
    "asked": replace(_OVERDUE, canceled_at=-200.0, commands=0),
    "completed": replace(_DUE, state=State.COMPLETED, finished_at=-600.0),
    "dead": replace(_DUE, state=State.DEAD, finished_at=-600.0, failures=5, attempts=(("FAILED", 5, 1),)),
    "canceled": replace(_DUE, state=State.CANCELED, finished_at=-600.0, canceled_at=-600.0),
}

#: These wait for whoever holds the row, since their answer must be the truth. Nobody else ever waits.
PATIENT = {"cancel", "revive", "run now", "enqueue", "delete", *PLACES}
#: What a web process does; the rest is done by a worker.
OPERATORS = PATIENT

#: A time may be off by so many seconds: that long a test may take. Those of the starts and delays are further apart.
SLACK = 25.0


class Table:
    """Where they meet: two sessions of workers, two of web processes, and one that looks on."""

    def __init__(self):
        self.workers, self.operators = [[kind(), kind()] for kind in (Session, Operator)]
        self.watcher = Session()

    def close(self):
        for session in self.workers:
            session.cancel()
        for session in (*self.workers, *self.operators, self.watcher):
            session.close()

    def clear(self):
        self.watcher.connection.execute("DELETE FROM dhara_task; DELETE FROM dhara_attempt; DELETE FROM dhara_command")

    def collide(self, name, first, second, how, planted=()):
        """Let two verbs meet on one task, and compare with the model.

        how: "commit" and "rollback": `second` runs while the transaction of `first` is open, which then ends like that.
             "snapshot": `first` is done wholly while `second` is between its snapshot and its locks.
        planted: changes to the SQL of both.
        """
        self.clear()
        start = STARTS[name]
        [[since]] = self.watcher.execute("SELECT statement_timestamp()", {})
        row = _row(start) if start is None else put(start)
        leader, follower = self._seat(first, 0), self._seat(second, 1)
        leader.planted = follower.planted = planted
        if how == "snapshot":
            answers = self._in_the_middle(leader, follower, row, start, first, second)
        else:
            answers = self._while_open(leader, follower, row, first, second, how)
        self._compare(name, first, second, how, answers, since)

    def _seat(self, verb, place):
        return (self.operators if verb in OPERATORS else self.workers)[place]

    def _while_open(self, leader, follower, row, first, second, how):
        leader.begin()
        try:
            answer = leader.start(VERBS[first], row).result()
            future = follower.start(VERBS[second], row)
            if not wait(future, follower, self.watcher):
                assert second in PATIENT, f"{second} waits for {first}"
        finally:
            leader.end(how.upper())
        return [None if how == "rollback" else told(first, answer), told(second, future.result())]

    def _in_the_middle(self, leader, follower, row, start, first, second):
        with self.watcher.gate():
            follower.holds = True
            future = follower.start(VERBS[second], row)
            was_held = not wait(future, follower, self.watcher)
            answer = leader.start(VERBS[first], row).result()
        answers = [told(first, answer), told(second, future.result())]
        follower.holds = False
        # A statement whose snapshot has no such row is not held: it is over before anything happens.
        concerned = acts(second, start) or (second == "enqueue" and start is not None)
        assert was_held or not concerned, f"{second} was not held inside its statement"
        return answers

    def _compare(self, name, first, second, how, answers, since):
        [after] = read(self.watcher.execute, since).values() or [None]
        legal = [(said, model.with_times_of(task, after, SLACK)) for said, task in _legal(name, first, second, how)]
        assert (answers, after) in legal, _told(answers, after, legal)
        [[orphans]] = self.watcher.execute(
            "SELECT count(*) FROM dhara_attempt WHERE task_id NOT IN (SELECT id FROM dhara_task)", {}
        )
        assert orphans == 0


def _told(answers, after, legal):
    """Where it differs from what it might have come to."""
    lines = [f"{answers} and {after}, but it may only be"]
    for said, task in legal:
        pairs = [(name, getattr(task, name, None), getattr(after, name, None)) for name in model.Task.__annotations__]
        lines.append(f"{said} with " + ", ".join(f"{name}={a!r} not {b!r}" for name, a, b in pairs if a != b))
    return "\n".join(lines)


def acts(verb, start):
    """Does the verb change such a task?"""
    return _one_by_one(start, [(0, verb)])[1] is not start


@cache
def _legal(name, first, second, how):
    """What the two may come to: one after the other in either order, or the second leaves the locked row out."""
    start, one, two = STARTS[name], (0, first), (1, second)
    happened = [] if how == "rollback" else [one]
    found = [_one_by_one(start, [*happened, two]), _one_by_one(start, [two, *happened])]
    if second in SKIPPED:
        found.append(_one_by_one(start, happened, left_out=SKIPPED[second]))
    if first == second == "run now" and how == "snapshot":
        # The time to which the first one moved the task lies in the future of the second, which began before it.
        found.append(([True, True], _one_by_one(start, [one])[1]))
    if first == second == "put off" and how == "snapshot":
        # The second one, which began before, would have the task run sooner than it now does.
        found.append(([True, False], _one_by_one(start, [one])[1]))
    return found


def _one_by_one(start, steps, left_out=None):
    task, answers = start, [None, left_out]
    for n, (place, verb) in enumerate(steps):
        answers[place], task = PURE[verb](task, n / 1000, _row(start))
    return answers, task


def _row(start):
    """What is known of a task before the two meet."""
    known = start or model.Task(key="k")
    return Task(idempotency_key=known.key, state=known.state, lease=known.lease, backend="default")
