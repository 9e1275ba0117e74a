"""W11: the pages of the admin beside five million tasks."""

from __future__ import annotations

import sys
from typing import ClassVar

from benchmarks.contender import Contender
from benchmarks.measure import percentile
from benchmarks.process import Process
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told
from benchmarks.workloads.workload import US, Metric, Outcome, Scale, Workload

#: Every page, by name. `{dead_task}` is the id of a task that died, `{group}` says a group of dead letters, `{queue}`
#: and `{worker}` end an address.
PAGES = {
    "overview": "/admin/dhara/",
    "overview, 24 hours": "/admin/dhara/?range=24h",
    "overview, 7 days": "/admin/dhara/?range=7d",
    "tasks": "/admin/dhara/task/",
    "tasks, dead": "/admin/dhara/task/?state=DEAD",
    "tasks, pending in a queue": "/admin/dhara/task/?state=PENDING&queue=queue-3",
    "tasks, of a function": "/admin/dhara/task/?function=shop.tasks.f7",
    "search, dead of a function and error": "/admin/dhara/task/?q=state:dead+function:f7+error:Error3",
    "search, part of a name": "/admin/dhara/task/?q=f7+after:2h",
    "search, payload": "/admin/dhara/task/?q=payload.args:nothing",
    "one task": "/admin/dhara/task/{dead_task}/change/",
    "dead letters": "/admin/dhara/task/dead/",
    "dead letters, a group": "/admin/dhara/task/dead/group/?{group}",
    "queues": "/admin/dhara/queue/",
    "one queue": "/admin/dhara/queue/{queue}",
    "workers": "/admin/dhara/worker/",
    "one worker": "/admin/dhara/worker/{worker}",
    "bulk changes": "/admin/dhara/bulkchange/",
}

_ID = "(lpad(to_hex({first} + i), 12, '0') || '7' || left(md5(i::text), 3) || 'a' || right(md5(i::text), 15))::uuid"
_TASKS = """
    INSERT INTO dhara_task (id, backend, function, queue, run_at, payload, state, enqueued_at, lease, failures,
                            error_class, error_fingerprint, worker_id, started_at, attempted_at, finished_at, result)
    SELECT {id}, 'default', 'shop.tasks.f' || i % 30, 'queue-' || i % 6, {at},
           jsonb_build_object('args', jsonb_build_array(i), 'kwargs', '{{}}'::jsonb), '{state}', {at}, {lease},
           {failures}, {error}, {fingerprint}, {worker}, {started}, {started}, {finished}, {result}
    FROM generate_series(1, {count}) AS i
"""
_WORKER = "'00000000-0000-4000-8000-000000000001'"
_PENDING = {
    "state": "PENDING", "lease": 0, "failures": 0, "error": "NULL", "fingerprint": "NULL", "worker": "NULL",
    "started": "NULL", "finished": "NULL", "result": "NULL",
}  # fmt: skip
_ENDED = {**_PENDING, "lease": 1, "worker": _WORKER}
_DEAD_AT = "now() - make_interval(secs => {count} - i)"
_DONE_AT = "now() - make_interval(secs => ({count} - i) / 8.0)"
#: Workers, and functions that each of them ran in each minute.
_MINUTES = """
    INSERT INTO dhara_{table} ({key}, backend, queue, function, completed, failed, dead, run_seconds, wait_seconds,
                               run_histogram, wait_histogram)
    SELECT {start}{worker}, 'default', 'queue-' || f % 6, 'shop.tasks.f' || f, 30, 1, 0, 3, 5,
           (SELECT jsonb_object_agg((8 + f % 6 + b)::text, 1 + (random() * 20)::int)
            FROM generate_series(0, 7) AS b WHERE n >= 0),
           (SELECT jsonb_object_agg((2 + f % 6 + b)::text, 1 + (random() * 20)::int)
            FROM generate_series(0, 9) AS b WHERE n >= 0)
    FROM generate_series({first}, {last}) AS n CROSS JOIN generate_series(0, 29) AS f {workers}
"""
_EACH = {"key": "start", "table": "quarter", "worker": "", "workers": ""}
_BIN = "date_bin('{}', now(), '2000-01-01') - make_interval({})"
#: As workers fold them: the histograms of a minute are in one row.
_FOLDED = """
    UPDATE dhara_minute SET run_histogram = '{}', wait_histogram = '{}'
    WHERE right(worker_id::text, 1) <> '0' AND minute < now() - interval '2 min'
"""
_WORKERS = """
    INSERT INTO dhara_worker (id, backend, name, host, pid, version, queues, exclude_queues, concurrency, lease_seconds)
    SELECT ('00000000-0000-4000-8000-00000000000' || w)::uuid, 'default', 'box' || w, 'box' || w, w, '0', '[]', '[]',
           10, 86400
    FROM generate_series(0, 9) AS w
"""
_ATTEMPTS = """
    INSERT INTO dhara_attempt (task_id, lease, number, worker_id, started_at, ended, error_class, message, traceback)
    SELECT id, 1, 1, worker_id, started_at, 'FAILED', error_class, 'it broke', repeat('a line of it' || chr(10), 40)
    FROM dhara_task WHERE state = 'DEAD'
"""
#: What workers leave of a week, from the newest: minutes of each, quarters, two hours.
_HISTORY = (
    _MINUTES.format(
        table="minute",
        key="minute, worker_id",
        start="date_trunc('minute', now()) - make_interval(mins => n)",
        worker=", ('00000000-0000-4000-8000-00000000000' || w)::uuid",
        first=0,
        last=74,
        workers="CROSS JOIN generate_series(0, 9) AS w",
    ),
    _FOLDED,
    _MINUTES.format(**_EACH, start=_BIN.format("15 min", "mins => 15 * n"), first=5, last=101),
    _MINUTES.format(**_EACH, start=_BIN.format("2 h", "hours => 2 * n"), first=13, last=420),
    _WORKERS,
    _ATTEMPTS,
    "VACUUM ANALYZE",
)


class W11(Workload):
    name = "W11"
    title = "Pages"
    measures = (
        "Milliseconds at the server for each page of the admin, median of 20 requests, beside 4.9 million finished, "
        "50,000 dead and 50,000 pending tasks and a week of statistics of 10 workers and 30 functions."
    )
    prediction = (
        "The overview 90 ms, of 24 hours 135 ms, of 7 days 160 ms; "
        "lists and pages 40 ms: each reads a bounded number of rows."
    )
    predicted: ClassVar[dict[str, float]] = {
        "overview": 90,
        "overview, 24 hours": 135,
        "overview, 7 days": 160,
        "tasks": 40,
    }
    metrics = (*(Metric(name, f"{name}, ms") for name in PAGES), Metric("query", "longest query, ms", worst=True))
    primary = "overview"
    targets = (
        *(
            Target(US, name, 200 if "overview" in name else 300, 100, at_most=True, says=f"{name}, ms")
            for name in PAGES
        ),
        Target(US, "query", 1000, 200, at_most=True, says="longest query, ms"),
    )

    def takes(self, contender: Contender, part: str) -> bool:
        return contender.name == US

    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        template = lane.further_template("pages", statements(scale))
        told(0.5)
        with lane.trial(self.name, template) as trial:
            program = [sys.executable, "-m", "benchmarks.ours.pages"]
            with Process(program, ["5" if scale.quick else "20"], trial.variables) as process:
                process.finish(600)
            figures = {
                name: percentile([ms for (ms,) in trial.query(f"SELECT at * 1000 FROM bench_sent WHERE i = {i}")], 50)
                for i, name in enumerate(PAGES)
            }
            [(figures["query"],)] = trial.query("SELECT max(at) * 1000 FROM bench_started")
        return Outcome(figures)


def statements(scale: Scale) -> list[str]:
    """The SQL that fills the tables, the oldest ids first."""
    filled, first = [], 0x18_0000_0000_00
    ended = {"started": "now() - interval '1 h'"}
    dead = {"failures": 5, "error": "'shop.Error' || i % 7", "fingerprint": "md5((i % 40)::text)", "state": "DEAD"}
    for count, at, values in (
        (4_900_000, _DONE_AT, {**_ENDED, **ended, "state": "COMPLETED", "result": "'null'"}),
        (50_000, _DEAD_AT, {**_ENDED, **ended, **dead}),
        (50_000, _DONE_AT, _PENDING),
    ):
        number = scale.count(count)
        when = at.format(count=number)
        finished = {"finished": when} if values["state"] != "PENDING" else {}
        id_ = _ID.format(first=first)
        filled.append(_TASKS.format(id=id_, at=when, count=number, **{**values, **finished}))
        first += count
    return [*filled, *_HISTORY]
