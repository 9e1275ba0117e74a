"""What the rules look at, and the questions that several of them ask."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

FINAL = {"COMPLETED", "DEAD", "CANCELED"}
#: By which the clocks of the log and of the history may differ after minutes, in seconds.
SLACK = 0.1
#: Within so many seconds of what is said of a step it may have happened.
AT_A_STEP = 1.0


class Violation(NamedTuple):
    """A promise that was not kept, and the events that show it."""

    rule: str
    text: str
    shown: tuple = ()


#: Functions with `atomic=True`.
ATOMIC = (".effect", ".long_effect")


class Row(NamedTuple):
    """A task at the end."""

    id: str
    uid: str
    function: str
    state: str
    lease: int = 1
    failures: int = 0
    lost: int = 0
    interrupted: int = 0
    snoozed: int = 0
    max_attempts: int = 5
    key: str | None = None
    is_due: bool = True
    priority: int = 0

    @property
    def is_atomic(self):
        return self.function.endswith(ATOMIC)


class Change(NamedTuple):
    """A line of the trigger log. `t` is on the history's clock; `run_at` is what it was before, on the same clock.

    `worker` is whose the task is after it.
    """

    n: int
    t: float
    id: str
    was: str
    state: str
    old_lease: int
    lease: int
    verb: str
    run_at: float
    failures: int = 0
    lost: int = 0
    interrupted: int = 0
    snoozed: int = 0
    asked: bool = False
    newly_asked: bool = False
    worker: str | None = None


class Attempt(NamedTuple):
    """A row of dhara_attempt."""

    task_id: str
    lease: int
    ended: str


@dataclass(frozen=True)
class Limits:
    """What the run was set to, and what is asked of it; in seconds where nothing else is said.

    Args:
        recovery: from a worker's death until its tasks may start again, beyond lease and sweep: where all were killed
            the start of a process, and what a busy machine takes.
        pickup: from the acknowledgement to the start; None: not asked.
        pickup_in_faults: not only in quiet times.
        order: a task that waits for so long is not overtaken by one behind it; None: more than one slot, not asked.
        poison: tasks that kill their workers are among the others, and nothing else does.
        throughput: within which it is back after a fault of the database; None: not asked.
        handover: from the return of a task by a worker that stops until another one claims it.
        few: of the processes that run functions fewer are too few to compare waits.
        calm_share: so many times longer than without poison its neighbours may wait, with poison, in 99 of 100 cases.
    """

    lease: float = 2.0
    sweep: float = 0.3
    drain: float = 3.0
    max_lost: int = 5
    max_interrupted: int = 20
    sessions: int = 300
    recovery: float = 6.0
    back: float = 5.0
    pickup: float | None = None
    pickup_in_faults: bool = False
    poison: bool = False
    order: float | None = None
    throughput: float | None = 15.0
    handover: float = 2.0
    calm_share: float = 2.0
    few: int = 1


@dataclass
class Evidence:
    """One run. `events` are in the order of their time, `changes` in the order of the log.

    Args:
        minutes: (function, completed) of each row of the statistics; None: not looked at.
    """

    events: list = field(default_factory=list)
    changes: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    attempts: list = field(default_factory=list)
    effects: list = field(default_factory=list)
    written: set = field(default_factory=set)
    limits: Limits = Limits()
    minutes: list | None = None

    @cached_property
    def _by_name(self):
        found = defaultdict(list)
        for event in self.events:
            found[event["e"]].append(event)
        return found

    def of(self, *names):
        """Events of these names, by time."""
        if len(names) == 1:
            return self._by_name.get(names[0], [])
        return sorted((event for name in names for event in self._by_name.get(name, ())), key=lambda e: e["t"])

    @cached_property
    def modes(self):
        """How the caller of each operation enqueued."""
        return {event["op"]: event["mode"] for event in self.of("try")}

    @cached_property
    def row(self):
        return {row.id: row for row in self.rows}

    @cached_property
    def changes_of(self):
        return _grouped(self.changes, lambda change: change.id)

    @cached_property
    def starts_of(self):
        """By the id of the task."""
        return _grouped(self.of("start"), lambda event: event["id"])

    @cached_property
    def ends_of(self):
        return _grouped(self.of("end"), lambda event: event["id"])

    @cached_property
    def attempts_of(self):
        return _grouped(self.attempts, lambda attempt: attempt.task_id)

    @cached_property
    def parents(self):
        """Child processes, and the worker of each."""
        return {event["p"]: event["parent"] for event in self.of("hello")}

    @cached_property
    def _harms(self):
        """For each process: the times of what was done to it, from and to."""
        found = defaultdict(list)
        heals = _grouped(self.of("heal"), lambda event: tuple(event.get("pids", ())))
        for event in self.of("fault"):
            after = [heal["t"] for heal in heals.get(tuple(event.get("pids", ())), ()) if heal["t"] >= event["t"]]
            ends = event["t"] if event["kind"].startswith("kill") else (after[0] if after else float("inf"))
            for pid in event.get("pids", ()):
                found[pid].append((event["t"], ends, event["kind"]))
        return found

    def deaths_of(self, id_, lease):
        """When the process of this run, or its worker, was killed."""
        pid = self.start_of.get((id_, lease), {}).get("p")
        for each in {pid, self.parents.get(pid)} - {None}:
            yield from (begins for begins, _, kind in self._harms.get(each, ()) if kind.startswith("kill"))

    @cached_property
    def start_of(self):
        """By the id of the task and the lease."""
        return {(start["id"], start["lease"]): start for start in self.of("start")}

    def was_harmed(self, pid, since, until, kinds=()):
        """Was this process, or its worker, killed, frozen, starved or told to stop in that time?"""
        for each in {pid, self.parents.get(pid)}:
            for begins, ends, kind in self._harms.get(each, ()):
                if begins <= until and ends >= since and (not kinds or kind in kinds):
                    return True
        return False

    @cached_property
    def outages(self):
        """From and to: times in which nobody could reach the database."""
        return [
            (begins, ends) for begins, ends, event in self._spans if event.get("down") or event.get("through_proxy")
        ]

    @cached_property
    def poisoned_since(self):
        """When poison began to be enqueued; None: never, or always."""
        return max((event["t"] for event in self.of("poison")), default=None)

    @cached_property
    def starvations(self):
        """From and to: some worker was starved."""
        return sorted((begins, ends) for begins, ends, event in self._spans if event["kind"] == "starve")

    def undermanned(self, least):
        """From and to: fewer processes than before lived that run functions and had begun to, fewer than `least`."""
        begun = {}
        for start in self.of("start"):
            begun.setdefault(start["p"], start["t"])
        edges = [(t, 1) for t in begun.values()] + [(self._end_of(pid), -1) for pid in begun]
        living, since, spans = 0, None, []
        for t, step in sorted(edges):
            if living == least - 1 and step == 1 and since is not None:
                spans.append((since, t))
            living += step
            since = t if living == least - 1 and step == -1 else since
        return spans

    def _end_of(self, pid):
        """When it was killed, or was gone, or its worker."""
        kills = [begins for begins, _, kind in self._harms.get(pid, ()) if kind.startswith("kill")]
        exits = [self._exits[each] for each in (pid, self.parents.get(pid)) if each in self._exits]
        return min([*kills, *exits], default=float("inf"))

    @cached_property
    def _exits(self):
        return {event["pid"]: event["t"] for event in self.of("exit")}

    @cached_property
    def crashes(self):
        """From and to: the server was gone, and started anew."""
        return [(begins, ends) for begins, ends, event in self._spans if event["kind"] == "crash"]

    @cached_property
    def disturbances(self):
        """From and to: every fault that is not one of a process."""
        return [(begins, ends) for begins, ends, event in self._spans if "pids" not in event]

    def was_stepped(self, since, until):
        """Did the clock of the server step in that time?"""
        return any(
            event["kind"].startswith("clock") and begins <= until and ends >= since
            for begins, ends, event in self._spans
        )

    def is_at_a_step(self, t):
        """Was the clock of the server stepping just then?"""
        edges = [
            edge for begins, ends, event in self._spans if event["kind"].startswith("clock") for edge in (begins, ends)
        ]
        return any(abs(t - edge) < AT_A_STEP for edge in edges)

    @cached_property
    def disturbed_since(self):
        """When these began, by time."""
        return sorted(begins for begins, _ in self.disturbances)

    @cached_property
    def _spans(self):
        heals = _grouped(self.of("heal"), lambda event: event["kind"])
        spans = []
        for event in self.of("fault"):
            times = [heal["t"] for heal in heals.get(event["kind"], ())]
            place = bisect_left(times, event["t"])
            spans.append((event["t"], times[place] if place < len(times) else event["t"], event))
        return spans

    def was_quiet(self, since, until):
        """Did no fault of any kind touch that time?"""
        place = bisect_right(self._troubles, (until, float("inf")))
        return place == 0 or self._troubles[place - 1][1] < since

    @cached_property
    def _troubles(self):
        """From and to: times with any fault, each merged with those that it touches."""
        merged = []
        for begins, ends, _ in sorted(self._spans, key=lambda span: span[:2]):
            if merged and begins <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(ends, merged[-1][1]))
            else:
                merged.append((begins, ends))
        return merged

    def was_disturbed(self, since, until):
        """Did any fault touch that time that is not one of a process?"""
        return any(begins <= until and ends >= since for begins, ends in self.disturbances)

    def was_up(self, since, until):
        """Could the database be reached all the time?"""
        return not any(begins <= until and ends >= since for begins, ends in self.outages)

    @cached_property
    def load(self):
        """From and to: the time in which tasks were enqueued."""
        marks = {event["phase"]: event["t"] for event in self.of("phase")}
        return marks.get("load", 0.0), marks.get("heal", float("inf"))


def _grouped(things, key):
    found = defaultdict(list)
    for thing in things:
        found[key(thing)].append(thing)
    return found
