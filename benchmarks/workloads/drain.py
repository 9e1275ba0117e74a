"""W1, W5, W10: a backlog is worked off."""

from __future__ import annotations

from benchmarks.contender import Contender
from benchmarks.measure import rate
from benchmarks.targets import Target
from benchmarks.trial import Counters, Lane, Told
from benchmarks.workloads.workload import (
    CELERY,
    DJANGO_PEERS,
    GRAPHILE,
    LIMIT,
    PGQUEUER,
    US,
    Metric,
    Outcome,
    Scale,
    Workload,
)


class W1(Workload):
    name = "W1"
    title = "Drain of no-op tasks"
    measures = (
        "Tasks a second from a backlog of 60,000 calls of a function that does nothing (a slow peer gets fewer), one "
        "worker process and then two, and what a task costs the server with one."
    )
    prediction = (
        "25,000/s with one process and 36,000/s with two: 13 microseconds of the control loop's Python and 26 of the "
        "server's for each task, which wait for each other, while functions run beside them. A claim and a settle take "
        "250 tasks each, so a task costs 2/250 of a statement; two row versions and four index entries are 1,050 bytes."
    )
    predicted = {"rate": 25_000, "rate_2": 36_000, "statements": 0.008, "commits": 0.008, "wal": 1050}
    metrics = (
        Metric("rate", "tasks/s, 1 process"),
        Metric("rate_2", "tasks/s, 2 processes"),
        Metric("statements", "statements/task", 4),
        Metric("commits", "commits/task", 4),
        Metric("wal", "WAL bytes/task"),
    )
    primary = "rate"
    targets = (
        Target(US, "rate", 0.9, 1.2, of=(GRAPHILE,), says="1 process beside graphile-worker"),
        Target(US, "rate", 1.3, of=(PGQUEUER,), says="1 process beside pgqueuer"),
        Target(US, "rate", 14, of=(*DJANGO_PEERS, CELERY), says="1 process beside the best of Django's and Celery"),
        Target(US, "rate", 0.3, 0.5, of=(LIMIT,), says="1 process beside the bare loop"),
        Target(US, "rate_2", 1.3, 1.7, of=(US,), of_metric="rate", says="2 processes beside 1"),
        Target(US, "statements", 0.02, 0.01, at_most=True, says="statements per task"),
        Target(US, "commits", 0.02, 0.01, at_most=True, says="commits per task"),
        Target(US, "wal", 900, 700, at_most=True, says="WAL bytes per task"),
    )
    _TASKS, _SLOTS = 60_000, 20

    def parts(self, scale: Scale) -> tuple[str, ...]:
        return ("1 process", "2 processes")

    def takes(self, contender: Contender, part: str) -> bool:
        return True

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        count, processes = scale.count(self._TASKS, lane.contender), int(part[0])
        with lane.trial(self.name) as trial:
            trial.run("fill", "noop", count)
            before = trial.counters()
            with trial.workers(processes, self._SLOTS) as workers:
                speed = rate(trial.drain(workers, told), 0.05, 1.0)
            after = trial.counters()
        if processes == 2:
            return Outcome({"rate_2": speed})
        costs = [(b - a) / count for a, b in zip(before, after, strict=True)]
        return Outcome({"rate": speed} | dict(zip(Counters._fields, costs, strict=True)))


class W5(Workload):
    name = "W5"
    title = "The original's load: functions that wait"
    measures = "Tasks a second of functions that wait 50 to 200 ms, 125 on average: 20 at once, and 200 coroutines."
    prediction = "160/s with 20 slots and 1,600/s with 200, which is all that the slots can give: no slot is ever idle."
    predicted = {"rate": 160, "theory": 1.0}
    metrics = (Metric("rate", "tasks/s", 1), Metric("theory", "share of theory", 3))
    primary = "rate"
    _ASYNC = f"{US}, 200 coroutines"
    targets = (
        Target(US, "theory", 0.99, says="20 slots beside theory"),
        Target(_ASYNC, "theory", 0.99, says="200 coroutines beside theory"),
    )
    _SECONDS, _MEAN_SECONDS = 15, 0.125

    def parts(self, scale: Scale) -> tuple[str, ...]:
        return ("20 slots", "200 coroutines")

    def takes(self, contender: Contender, part: str) -> bool:
        return contender.name == US if part == "200 coroutines" else contender.name != LIMIT

    def row(self, contender: Contender, part: str) -> str:
        return self._ASYNC if part == "200 coroutines" else contender.name

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        slots, is_async = int(part.split(maxsplit=1)[0]), part == "200 coroutines"
        theory = slots / self._MEAN_SECONDS
        count = scale.count(int(theory * self._SECONDS), lane.contender)
        with lane.trial("W5 async" if is_async else "W5") as trial:
            trial.run("fill", "sleep", count)
            with trial.workers(1, slots, *(["--async"] if is_async else [])) as workers:
                # Not to the very end: the last functions run beside empty slots, whoever runs them.
                speed = rate(trial.drain(workers, told), 0.05, 0.95)
        return Outcome({"rate": speed, "theory": speed / theory})


class W10(Workload):
    name = "W10"
    title = "A burst"
    measures = "What becomes of a backlog of 5,800 tasks, each of which writes a row on a connection of its own."
    prediction = "5,800 of 5,800 completed, each started exactly once."
    predicted = {"lost": 0, "repeated": 0, "unfinished": 0}
    metrics = (
        Metric("lost", "never started", worst=True),
        Metric("repeated", "started again", worst=True),
        Metric("unfinished", "not completed", worst=True),
        Metric("rate", "tasks/s"),
    )
    primary = "rate"
    targets = (
        Target(US, "lost", 0, at_most=True, says="tasks that never started"),
        Target(US, "repeated", 0, at_most=True, says="starts beyond the first"),
        Target(US, "unfinished", 0, at_most=True, says="tasks not COMPLETED"),
    )
    _TASKS, _SLOTS = 5_800, 20

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        count = scale.count(self._TASKS)
        with lane.trial(self.name) as trial:
            trial.run("fill", "stamp", count)
            with trial.workers(1, self._SLOTS) as workers:
                speed = rate(trial.drain(workers, told), 0.05, 1.0)
            [(starts, started)] = trial.query("SELECT count(*), count(DISTINCT i) FROM bench_started")
            done = trial.done()
        figures = {"lost": count - started, "repeated": starts - started, "rate": speed}
        return Outcome(figures | ({} if done is None else {"unfinished": count - done}))
