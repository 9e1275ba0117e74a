"""The life of a task without a database: what each verb answers, and what it makes of the task.

Written from the promises and not from the SQL, so that the two can be compared. A verb takes the task as it stands
(None: there is none) and the time in seconds, and gives its answer and the task as it stands then. A verb that does not
apply gives back the very task that it was given.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django_dhara.states import FINAL, REVIVABLE, State

MAX_LOST = 3
MAX_INTERRUPTED = 2

#: Ends of a run that count against `max_attempts`, with what their attempt is called.
FAILURES = {"fail": "FAILED", "time out": "TIMED_OUT", "discard": "FAILED"}
#: Ends of a run after which the task waits.
DELAYED = ("fail", "time out", "snooze")

RESULT, ERROR, LOSS = {"answer": 42}, "tests.Boom", "django_dhara.errors.WorkerLost"
PROGRESS, CHECKPOINT = {"done": 7}, "here"


@dataclass(frozen=True)
class Task:
    """What one can see of a task. Times are in seconds since some moment."""

    argument: int = 1
    key: str | None = None
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    state: State = State.PENDING
    run_at: float = 0.0
    lease: int = 0
    lease_until: float | None = None
    worker: UUID | None = None
    failures: int = 0
    lost: int = 0
    interrupted: int = 0
    snoozed: int = 0
    canceled_at: float | None = None
    started_at: float | None = None
    attempted_at: float | None = None
    finished_at: float | None = None
    result: Any = None
    error: str | None = None
    progress: Any = None
    checkpoint: Any = None
    #: How runs that counted ended: (how, number of the attempt, lease).
    attempts: tuple[tuple[str, int, int], ...] = ()
    #: How many times its worker was told to stop it.
    commands: int = 0

    @property
    def attempt(self) -> int:
        return self.failures + self.lost + 1

    def is_run(self, lease: int) -> bool:
        return self.state == State.RUNNING and self.lease == lease

    def was_lost(self, lease: int) -> bool:
        return any((ended, of) == ("LOST", lease) for ended, _, of in self.attempts)


TIMES = ("run_at", "lease_until", "canceled_at", "started_at", "attempted_at", "finished_at")


def later(task, seconds):
    """The same task, when so much time has passed that all its times lie so much further back."""
    moved = {name: getattr(task, name) for name in TIMES}
    return replace(task, **{name: time - seconds for name, time in moved.items() if time is not None})


def with_times_of(task, other, seconds):
    """`task`, its times those of `other` as far as they differ by no more than `seconds`."""
    if task is None or other is None:
        return task
    times = {name: (getattr(task, name), getattr(other, name)) for name in TIMES}
    near = {name: b for name, (a, b) in times.items() if None not in (a, b) and abs(a - b) <= seconds}
    return replace(task, **near)


# ------------------------------------------------------------------------------------------------------- its beginning


def enqueue(task, now, **options):
    """`new` or `duplicate`; with other arguments under the same key, `conflict`."""
    if task is None:
        return "new", Task(**{"run_at": now, **options})
    same = task.argument == options.get("argument", 1)
    return ("duplicate" if same else "conflict"), task


# ----------------------------------------------------------------------------------------------------------- its runs


def claim(task, now, worker, *, seconds):
    """The lease and the number of the attempt, or None."""
    if task is None or task.state != State.PENDING or task.run_at > now:
        return None, task
    run = {"lease": task.lease + 1, "lease_until": now + seconds, "worker": worker, "attempted_at": now}
    started_at = now if task.started_at is None else task.started_at
    return (task.lease + 1, task.attempt), replace(task, state=State.RUNNING, started_at=started_at, **run)


def renew(task, now, lease, *, seconds):
    if task is not None and (task.lease, task.state) == (lease, State.COMPLETED):
        return "skipped", task  # by this run itself, whose answer may be on its way
    if task is None or not task.is_run(lease):
        return "refused", task
    return "renewed", replace(task, lease_until=now + seconds)


def report(task, lease):
    if task is None or not task.is_run(lease):
        return "refused", task
    return "taken", replace(task, progress=PROGRESS, checkpoint=CHECKPOINT)


def settle(task, now, verb, lease, *, delay=0.0, seconds=0.5):
    """The state that the run has left the task in, or `refused`. A run may ask again: its answer may have got lost."""
    if task is None or task.lease != lease or task.was_lost(lease):
        return "refused", task
    if task.state != State.RUNNING:
        return task.state, task
    state = _after(task, verb)
    counted = {"failures": task.failures + (verb in FAILURES), "interrupted": task.interrupted + (verb == "interrupt")}
    counted["snoozed"] = task.snoozed + (verb == "snooze")
    told = {"result": RESULT} if verb == "complete" else {}
    if verb in FAILURES or state == State.DEAD:
        ended = FAILURES.get(verb, "INTERRUPTED")
        told = {"error": ERROR, "attempts": (*task.attempts, (ended, task.attempt, lease))}
    if state == State.PENDING and (verb in DELAYED or delay):
        told["run_at"] = now + delay
    return state, _ended(replace(task, **counted, **told, **_began(task, now, seconds)), state, now)


def _after(task, verb):
    if verb == "complete":
        return State.COMPLETED
    if task.canceled_at is not None:
        return State.CANCELED
    spent = {
        "fail": task.attempt >= task.max_attempts,
        "time out": task.attempt >= task.max_attempts,
        "discard": True,
        "interrupt": task.interrupted + 1 >= MAX_INTERRUPTED,
    }
    return State.DEAD if spent.get(verb) else State.PENDING


def _began(task, now, seconds):
    """A run began when its function did. One that was handed back unstarted did not begin."""
    is_first = task.started_at == task.attempted_at
    began = None if seconds is None else now - seconds
    if is_first:
        return {"started_at": began, "attempted_at": began}
    return {"attempted_at": task.attempted_at if began is None else began}


def _ended(task, state, now):
    if state == State.PENDING:
        return replace(task, state=state, lease_until=None, worker=None)
    return replace(task, state=state, lease_until=None, finished_at=now)


# ---------------------------------------------------------------------------------------------- what is done about it


def rescue(task, now):
    """The state that the task is in now, if its run was lost."""
    if task is None or task.state != State.RUNNING or task.lease_until >= now:
        return None, task
    state = State.PENDING
    if task.attempt >= task.max_attempts or task.lost + 1 >= MAX_LOST:
        state = State.DEAD
    if task.canceled_at is not None:
        state = State.CANCELED
    history = (*task.attempts, ("LOST", task.attempt, task.lease))
    return state, _ended(replace(task, lost=task.lost + 1, error=LOSS, attempts=history), state, now)


def prune(task, now, state, *, age=0.0, keyed_age=0.0):
    """How many were deleted."""
    least = max(age, keyed_age) if task is not None and task.key is not None else age
    if task is None or task.state != state or state not in FINAL or task.finished_at >= now - least:
        return 0, task
    return 1, None


def cancel(task, now):
    if task is None:
        return None, None
    if task.state in FINAL:
        return "finished", task
    first = task.canceled_at is None
    asked = replace(task, canceled_at=now if first else task.canceled_at)
    if task.state == State.RUNNING:
        return "requested", replace(asked, commands=task.commands + first) if first else task
    return "canceled", _ended(asked, State.CANCELED, now)


def revive(task, now):
    if task is None:
        return None, None
    if task.state not in REVIVABLE:
        return False, task
    new = {"failures": 0, "lost": 0, "interrupted": 0, "snoozed": 0, "canceled_at": None, "progress": None}
    return True, replace(task, state=State.PENDING, run_at=now, finished_at=None, worker=None, **new)


def run_now(task, now):
    if task is None:
        return None, None
    if task.state != State.PENDING or task.run_at <= now:
        return False, task
    return True, replace(task, run_at=now)


def change_queue(task, now, queue):
    return _moved(task, task is not None and task.queue != queue, queue=queue)


def change_priority(task, now, priority):
    return _moved(task, task is not None and task.priority != priority, priority=priority)


def put_off(task, now, seconds):
    return _moved(task, task is not None and task.run_at < now + seconds, run_at=now + seconds)


def _moved(task, is_other, **columns):
    """Only what waits moves, and only to where it is not yet."""
    if task is None:
        return None, None
    if task.state != State.PENDING or not is_other:
        return False, task
    return True, replace(task, **columns)


def delete(task, now):
    if task is None:
        return None, None
    return (True, None) if task.state in FINAL else (False, task)


# ----------------------------------------------------------------------------------------------------------- many tasks


def in_order(tasks: Mapping[UUID, Task], now: float, queues: Iterable[str], suspects: int) -> list[UUID]:
    """Whom a worker may claim from these queues, in the order of claiming: so many suspects, and all others."""
    due = [id_ for id_, task in tasks.items() if claim(task, now, None, seconds=0)[0] and task.queue in queues]
    due.sort(key=lambda id_: (-tasks[id_].priority, tasks[id_].run_at, id_))
    allowed = [id_ for id_ in due if tasks[id_].lost][:suspects]
    return [id_ for id_ in due if not tasks[id_].lost or id_ in allowed]
