"""W7: the table has grown; it is filled by SQL, with rows as the queue itself leaves them."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.contender import Contender
from benchmarks.measure import percentile, rate
from benchmarks.ours.done import Done
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told, Trial
from benchmarks.workloads.workload import US, Metric, Outcome, Scale, Workload

_DRAINED = 60_000
#: Ids as UUIDv7 makes them: in the order of the rows, so that the index grows where it does in life.
_ID = "(lpad(to_hex({first} + i), 12, '0') || '7' || left(md5(i::text), 3) || 'a' || right(md5(i::text), 15))::uuid"
#: Finished rows were written once and updated twice; the dead versions are long vacuumed.
_ROWS = """
    INSERT INTO dhara_task (id, backend, function, queue, priority, run_at, payload, max_attempts, state, enqueued_at,
                            lease, worker_id, started_at, attempted_at, finished_at, result)
    SELECT {id}, 'default', 'benchmarks.ours.tasks.noop', {queue}, {priority}, {run_at},
           jsonb_build_object('args', jsonb_build_array(i), 'kwargs', '{{}}'::jsonb), 5, '{state}',
           now() - interval '2 h', {finished}
    FROM generate_series(1, {count}) AS i
"""
_NOT_FINISHED = "0, NULL, NULL, NULL, NULL, NULL"
_FINISHED = """1, '00000000-0000-4000-8000-000000000001', now() - interval '1 h', now() - interval '1 h',
           now() - interval '1 h' + make_interval(secs => i / 1000.0), 'null'"""
_DUE = "now() - interval '2 h' + make_interval(secs => i / 1000.0)"
#: What is in the table, in the order in which it came there.
_SHAPES: dict[str, tuple[dict[str, object], ...]] = {
    "empty": ({"count": _DRAINED},),
    "1 M finished, 200,000 pending": ({"count": 1_000_000, "state": "COMPLETED"}, {"count": 200_000}),
    "1 M scheduled at a higher priority": (
        {"count": 1_000_000, "priority": 50, "run_at": "now() + interval '1 d' + make_interval(secs => i)"},
        {"count": _DRAINED},
    ),
    "50 queues, 200,000 pending": ({"count": 200_000, "queue": "'queue-' || i % 50"},),
}
#: Before ANALYZE has seen it, and after: the plan must not hang on that.
_STATES = ("fresh", "analyzed")


class W7(Workload):
    name = "W7"
    title = "Growth"
    measures = (
        "Tasks a second of one worker process while 60,000 no-op tasks are drained from tables that hold more than "
        "those, and what one claim of 100 tasks takes: before the table's first ANALYZE, and after it."
    )
    prediction = (
        "Every shape drains as fast as the table that holds nothing else (0.95 to 1.05 x): a claim walks the few lanes "
        "of the ready index and reads only what it takes. p99 of a claim 5 ms, 8 ms with 50 queues."
    )
    predicted: ClassVar[dict[str, float]] = {}
    metrics = (Metric("rate", "tasks/s"), Metric("p50", "claim p50 ms", 2), Metric("p99", "claim p99 ms", 2))
    primary = "rate"
    _SLOTS, _CLAIMS = 20, 200

    def parts(self, scale: Scale) -> tuple[str, ...]:
        return tuple(f"{shape}, {state}" for shape in _SHAPES for state in _STATES)

    def takes(self, contender: Contender, part: str) -> bool:
        return contender.name == US

    def row(self, contender: Contender, part: str) -> str:
        return part

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        shape, state = part.rsplit(", ", 1)
        template = lane.further_template(f"{list(_SHAPES).index(shape)}", statements(shape, scale))
        drained = scale.count(_DRAINED)
        with lane.trial(self.name, template) as trial:
            _bring_to(trial, state)
            trial.run("claims", int(self._CLAIMS * drained / _DRAINED))
            claims = [seconds * 1000 for (seconds,) in trial.query("SELECT seconds FROM bench_call")]
        told(0.4)
        with lane.trial(self.name, template) as trial:
            _bring_to(trial, state)
            done = Done(trial.query, "now()")
            with trial.workers(1, self._SLOTS) as workers:
                samples = trial.drain(workers, told, lambda: max(drained - done.count(), 0))
        return Outcome({"rate": rate(samples, 0.05, 1.0), "p50": percentile(claims, 50), "p99": percentile(claims, 99)})

    targets = (
        *(
            Target(f"{shape}, {state}", "rate", 0.9, 0.97, of=(f"empty, {state}",), says=f"{shape}, {state}: tasks/s")
            for shape in list(_SHAPES)[1:]
            for state in _STATES
        ),
        *(
            Target(f"{shape}, {state}", "p99", 10, at_most=True, says=f"{shape}, {state}: claim p99 ms")
            for shape in _SHAPES
            for state in _STATES
        ),
    )


def statements(shape: str, scale: Scale) -> list[str]:
    """The SQL that fills the table."""
    filled, first = [], 0x18_0000_0000_00
    for rows in _SHAPES[shape]:
        is_finished = rows.get("state") == "COMPLETED"
        values = {"queue": "'default'", "priority": 0, "run_at": _DUE, "state": "PENDING"} | rows
        values["count"] = scale.count(int(str(rows["count"])))
        values["finished"] = _FINISHED if is_finished else _NOT_FINISHED
        filled.append(_ROWS.format(id=_ID.format(first=first), **values))
        first += int(str(rows["count"]))
    return filled


def _bring_to(trial: Trial, state: str) -> None:
    if state == "analyzed":
        trial.query("ANALYZE dhara_task")
