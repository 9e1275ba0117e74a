"""W4, W6: a worker that has little to do, or nothing."""

from __future__ import annotations

import time

from benchmarks.measure import percentiles
from benchmarks.process import DriverFailed, wait_until
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told, Trial, no_progress
from benchmarks.workloads.workload import CELERY, US, Metric, Outcome, Scale, Workload

_SLOTS = 20
#: After the first task, for whatever a worker does when it has just started.
_SETTLE_SECONDS = 2.0


class W4(Workload):
    name = "W4"
    title = "Pick-up latency"
    measures = "From just before the enqueue call to the function's first line: 300 tasks at 20/s, one idle worker."
    prediction = "p50 4 ms and p99 12 ms: an insert and its flush, a NOTIFY, a claim and its flush."
    predicted = {"p50": 4, "p95": 8, "p99": 12}
    metrics = tuple(Metric(f"p{percent}", f"p{percent} ms", 1) for percent in (50, 95, 99))
    primary = "p50"
    targets = (
        Target(US, "p50", 1.2, 0.8, at_most=True, of=(CELERY,), says="p50 beside Celery + Redis"),
        Target(US, "p99", 1.2, 0.8, at_most=True, of=(CELERY,), says="p99 beside Celery + Redis"),
    )
    _TASKS, _PER_SECOND = 300, 20

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        count = scale.count(self._TASKS) if not scale.quick else 60
        with lane.trial(self.name) as trial, trial.workers(1, _SLOTS) as workers:
            trial.await_ready(workers, no_progress)
            wait_until(time.monotonic() + _SETTLE_SECONDS)
            trial.run("trickle", count, self._PER_SECOND)
            trial.drain(workers, no_progress)
            told(1.0)
            latencies = _latencies(trial, count)
        return Outcome(percentiles(latencies), {"latencies": sorted(latencies)})


def _latencies(trial: Trial, count: int) -> list[float]:
    rows = trial.query("SELECT (s.at - sent.at) * 1000 FROM bench_sent AS sent JOIN bench_started AS s USING (i)")
    if len(rows) != count:
        raise DriverFailed(f"{len(rows)} of {count} calls wrote down when they started")
    return [milliseconds for (milliseconds,) in rows]


class W6(Workload):
    name = "W6"
    title = "Idle cost"
    measures = "What an idle worker asks of the server and of a processor, over 20 seconds."
    prediction = "1 statement a second, the poll, and 0.1 % of a core."
    predicted = {"statements": 1.0, "cpu": 0.1}
    metrics = (Metric("statements", "statements/s", 2), Metric("cpu", "% of a core", 3))
    primary = "statements"
    targets = (
        Target(US, "statements", 1.2, at_most=True, says="statements/s"),
        Target(US, "cpu", 0.3, 0.1, at_most=True, says="% of a core"),
    )
    _SECONDS = 20.0

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        with lane.trial(self.name) as trial, trial.workers(1, _SLOTS) as [worker]:
            trial.await_ready([worker], no_progress)
            wait_until(time.monotonic() + _SETTLE_SECONDS)
            before, cpu, began = trial.counters(), worker.cpu_seconds(), time.monotonic()
            wait_until(began + scale.seconds(self._SECONDS))
            seconds = time.monotonic() - began
            used, statements = worker.cpu_seconds() - cpu, trial.counters().statements - before.statements
        return Outcome({"statements": statements / seconds, "cpu": used / seconds * 100})
