"""W8: somebody keeps an old snapshot, and nothing that is deleted or updated meanwhile can be vacuumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg

from benchmarks.contender import Contender
from benchmarks.measure import percentile, rate
from benchmarks.ours.done import Done
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told, Trial, no_progress
from benchmarks.workloads.workload import US, Metric, Outcome, Scale, Workload

_WITHOUT, _WITH = "without", "with the snapshot"
_LONG = "15 min at 300/s, "


class W8(Workload):
    name = "W8"
    title = "An old snapshot held open"
    measures = (
        "Tasks a second of one worker process while 500,000 no-op tasks pass through, enqueued in bulk beside it with "
        "a backlog of 20,000 at most: as it is, and with a REPEATABLE READ session (a report, pg_dump) that is older "
        "than all of them. With --long also 15 minutes at 300 tasks/s."
    )
    prediction = (
        "0.9 x, and flat: a claim begins at the place of the last one, and only a tenth of the time goes into looks "
        "that walk over the dead entries of the ready index."
    )
    predicted: ClassVar[dict[str, float]] = {}
    metrics = (
        Metric("rate", "tasks/s"),
        Metric("last", "tasks/s, last fifth"),
        Metric("claim", "claim mean ms", 2),
        Metric("wait", "wait p99 ms, last fifth", 1),
    )
    primary = "rate"
    targets = (
        Target(_WITH, "rate", 0.8, 0.95, of=(_WITHOUT,), says="500,000 tasks: tasks/s"),
        Target(_WITH, "last", 0.8, 0.95, of=(_WITHOUT,), says="the last 100,000 of them: tasks/s"),
        Target(_LONG + _WITH, "rate", 0.8, 0.95, of=(_LONG + _WITHOUT,), says="15 minutes at 300/s: tasks/s"),
        Target(_LONG + _WITH, "last", 0.8, 0.95, of=(_LONG + _WITHOUT,), says="the last 3 of them: tasks/s"),
    )
    _TASKS, _BACKLOG, _SLOTS = 500_000, 20_000, 20
    _LONG_SECONDS, _PER_SECOND = 900.0, 300
    _PATIENCE_SECONDS = 3600.0

    def parts(self, scale: Scale) -> tuple[str, ...]:
        return (_WITHOUT, _WITH, *((_LONG + _WITHOUT, _LONG + _WITH) if scale.long else ()))

    def takes(self, contender: Contender, part: str) -> bool:
        return contender.name == US

    def is_once(self, part: str) -> bool:
        return part.startswith(_LONG)

    def row(self, contender: Contender, part: str) -> str:
        return part

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        with lane.trial(self.name) as trial, _snapshot(trial, held=part.endswith(_WITH)):
            return self._pace(trial, scale, told) if part.startswith(_LONG) else self._churn(trial, scale, told)

    def _churn(self, trial: Trial, scale: Scale, told: Told) -> Outcome:
        count = scale.count(self._TASKS)
        done = Done(trial.query)
        with trial.workers(1, self._SLOTS) as workers, trial.start("feed", count, self._BACKLOG) as feeder:
            samples = trial.drain(workers, told, lambda: count - done.count())
            feeder.finish(self._PATIENCE_SECONDS)
        figures = {"rate": rate(samples, 0.05, 1.0), "last": rate(samples, 0.8, 1.0)}
        return Outcome(figures | _claims_and_waits(trial), {"churn": _per_second(trial)})

    def _pace(self, trial: Trial, scale: Scale, told: Told) -> Outcome:
        seconds = scale.seconds(self._LONG_SECONDS)
        with trial.workers(1, self._SLOTS) as workers, trial.start("pace", seconds, self._PER_SECOND) as feeder:
            began = time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                told(passed / seconds)
                for process in workers:
                    process.check()
                time.sleep(1)
            feeder.finish(self._PATIENCE_SECONDS)
            trial.drain(workers, no_progress)
        series = _per_second(trial)
        ended = [tasks for _, tasks in series]
        last = ended[-len(ended) // 5 : -1]
        figures = {"rate": sum(ended) / len(ended), "last": sum(last) / len(last)}
        return Outcome(figures | _claims_and_waits(trial), {"pace": series})


@contextmanager
def _snapshot(trial: Trial, *, held: bool) -> Iterator[None]:
    if not held:
        yield
        return
    with psycopg.connect(trial.variables["BENCH_DSN"]) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT count(*) FROM dhara_task")
        yield
        session.execute("SELECT count(*) FROM dhara_task")  # it was held to the end, or this fails


def _per_second(trial: Trial) -> list[list[float]]:
    """Tasks that ended in each second, from the first one on."""
    rows: list[tuple[Any, ...]] = trial.query("""
        SELECT floor(extract(epoch FROM finished_at - min(finished_at) OVER ()))::int AS second, count(*)
        FROM dhara_task WHERE state = 'COMPLETED' GROUP BY finished_at
    """)
    tasks: dict[int, float] = {}
    for second, count in rows:
        tasks[second] = tasks.get(second, 0.0) + count
    return [[second, tasks.get(second, 0.0)] for second in range(max(tasks) + 1)]


def _claims_and_waits(trial: Trial) -> dict[str, float]:
    waits = trial.query("""
        SELECT extract(epoch FROM attempted_at - enqueued_at)::float8 * 1000 FROM dhara_task
        WHERE enqueued_at > (SELECT max(enqueued_at) - (max(enqueued_at) - min(enqueued_at)) / 5 FROM dhara_task)
    """)
    return {"claim": trial.mean_ms("%FOR UPDATE SKIP LOCKED%"), "wait": percentile((w for (w,) in waits), 99)}
