"""W2, W3: tasks are enqueued; no worker runs."""

from __future__ import annotations

from benchmarks.contender import Contender
from benchmarks.measure import percentile
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told, Trial
from benchmarks.workloads.workload import CELERY, GRAPHILE, LIMIT, US, Metric, Outcome, Scale, Workload


class W2(Workload):
    name = "W2"
    title = "Single enqueue"
    measures = "Enqueues a second from one thread, each in a transaction of its own, and what one takes (3,000 calls)."
    prediction = (
        "0.75 x the bare INSERT: one statement, one flush, and 70 microseconds of Python, Django's cursor included."
    )
    predicted = {"rate": 3_000, "p50": 0.3, "p99": 0.6}
    metrics = (Metric("rate", "enqueues/s"), Metric("p50", "p50 ms", 2), Metric("p99", "p99 ms", 2))
    primary = "rate"
    targets = (
        Target(US, "rate", 0.9, 0.95, of=(LIMIT,), says="enqueues/s beside a bare INSERT of the same row"),
        Target(US, "p99", 1.0, at_most=True, of=(CELERY,), says="p99 beside Celery's delay"),
    )
    _CALLS = 3_000

    def takes(self, contender: Contender, part: str) -> bool:
        return True

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        with lane.trial(self.name) as trial:
            trial.run("single", scale.count(self._CALLS))
            seconds = _calls(trial)
        figures = {f"p{percent}": percentile(seconds, percent) * 1000 for percent in (50, 95, 99)}
        return Outcome({"rate": len(seconds) / sum(seconds)} | figures)


class W3(Workload):
    name = "W3"
    title = "Bulk enqueue"
    measures = "Rows a second when 100,000 tasks are enqueued at once (a slow peer gets fewer)."
    prediction = (
        "65,000/s, which is 0.35 x COPY: 8 microseconds of the server's and 7 of checks and encoding for each task."
    )
    predicted = {"rate": 65_000}
    metrics = (Metric("rate", "tasks/s"),)
    primary = "rate"
    targets = (
        Target(US, "rate", 0.35, 0.5, of=(LIMIT,), says="tasks/s beside COPY of the same rows"),
        Target(US, "rate", 1.5, of=(GRAPHILE,), says="tasks/s beside graphile-worker"),
    )
    _TASKS = 100_000

    def takes(self, contender: Contender, part: str) -> bool:
        return True

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        count = scale.count(self._TASKS, lane.contender)
        with lane.trial(self.name) as trial:
            trial.run("bulk", count)
            return Outcome({"rate": count / sum(_calls(trial))})


def _calls(trial: Trial) -> list[float]:
    return [seconds for (seconds,) in trial.query("SELECT seconds FROM bench_call")]
