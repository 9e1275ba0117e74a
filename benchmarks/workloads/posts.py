"""W9: the original's load test, against our HTTP API."""

from __future__ import annotations

import socket
from typing import Any, ClassVar

from benchmarks.contender import Contender
from benchmarks.measure import percentile, percentiles
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told, Trial, no_progress
from benchmarks.workloads.workload import US, Metric, Outcome, Scale, Workload

_PUBLISHED = "the original, as published"


class W9(Workload):
    name = "W9"
    title = "The original's load test over HTTP"
    measures = (
        "Tasks are posted to `POST /api/v1/tasks` of a site under gunicorn (2 processes of 8 threads) by 16 clients "
        "with a token, and run by one worker with 20 slots; each waits 50 to 200 ms, 125 on average. 3,000 at 100/s: "
        "from enqueued to completed, by the database. 4,000 at 200/s, which is more than 20 slots can take: tasks a "
        "second. Clients, site, worker and PostgreSQL share the machine; the original's figures are of another one."
    )
    prediction = (
        "All completed. At 100/s p50 135, p95 205 and p99 215 ms: the function's own 125, 192 and 198, an insert, a "
        "wake-up and a settle; 12 of 20 slots are in use. At saturation 158/s, which is what slots can give but for "
        "the few milliseconds in which the processors are the site's."
    )
    predicted: ClassVar[dict[str, float]] = {"unfinished": 0, "p50": 135, "p95": 205, "p99": 215, "rate": 158}
    metrics = (
        Metric("unfinished", "not completed", worst=True),
        Metric("p50", "p50 ms at 100/s"),
        Metric("p95", "p95 ms"),
        Metric("p99", "p99 ms"),
        Metric("rate", "tasks/s at saturation", 1),
        Metric("answer_p50", "answer p50 ms at 100/s", 1),
        Metric("answer_p99", "answer p99 ms", 1),
    )
    primary = "p50"
    published: ClassVar[dict[str, dict[str, float]]] = {_PUBLISHED: {"p50": 181, "p95": 299, "p99": 380, "rate": 148}}
    targets = (
        Target(US, "unfinished", 0, at_most=True, says="tasks not COMPLETED"),
        Target(US, "p50", 181, at_most=True, says="100/s: p50 ms"),
        Target(US, "p95", 299, at_most=True, says="100/s: p95 ms"),
        Target(US, "p99", 380, at_most=True, says="100/s: p99 ms"),
        Target(US, "rate", 157, says="saturation: tasks/s of 160"),
    )
    _SLOTS = 20
    #: Of each part: tasks, and how many are posted in a second.
    _PARTS: ClassVar[dict[str, tuple[int, int]]] = {"100/s": (3_000, 100), "saturation": (4_000, 200)}

    def parts(self, scale: Scale) -> tuple[str, ...]:
        return tuple(self._PARTS)

    def takes(self, contender: Contender, part: str) -> bool:
        return contender.name == US

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        count, rate = scale.count(self._PARTS[part][0]), self._PARTS[part][1]
        with lane.trial(self.name) as trial, trial.workers(1, self._SLOTS) as workers:
            trial.await_ready(workers, no_progress)
            port = _free_port()
            with trial.start("serve", port):
                trial.run("post", count, rate, port)
                trial.drain(workers, told)
            figures = {"unfinished": count - len(_finished(trial))}
            return Outcome(figures | (_latencies(trial) if part == "100/s" else _rate(trial)))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _finished(trial: Trial) -> list[tuple[Any, ...]]:
    """Of each completed task, when it ended and how long that took from its enqueue, in seconds."""
    return trial.query("""
        SELECT extract(epoch FROM finished_at)::float8, extract(epoch FROM finished_at - enqueued_at)::float8
        FROM dhara_task WHERE function LIKE '%.sleep' AND state = 'COMPLETED' ORDER BY 1
    """)


def _latencies(trial: Trial) -> dict[str, float]:
    took = [seconds * 1000 for _, seconds in _finished(trial)]
    answers = [seconds * 1000 for (seconds,) in trial.query("SELECT seconds FROM bench_call")]
    return percentiles(took) | {f"answer_p{percent}": percentile(answers, percent) for percent in (50, 99)}


def _rate(trial: Trial) -> dict[str, float]:
    """Between 5 and 95 % of the tasks, as in W5: the last ones run beside empty slots."""
    ended = [at for at, _ in _finished(trial)]
    low, high = int(len(ended) * 0.05), int(len(ended) * 0.95)
    return {"rate": (high - low) / (ended[high] - ended[low])}
