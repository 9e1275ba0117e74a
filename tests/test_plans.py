"""What our statements read, by EXPLAIN ANALYZE, when the table is large, whatever the planner knows about it.

A statement may read pages and rows for each task that it is about, and some for each lane; none for the others. Each is
looked at as the planner makes it for its values and as it makes it for any value (the worker's sessions use the second
kind), before ANALYZE and after one that saw nothing run.
"""

import json
import re
from functools import partial
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from psycopg import sql

from django_dhara import fleet, lifecycle, stats
from django_dhara.lifecycle import Ending, Wanted
from django_dhara.lifecycle.claim import WHOLE
from django_dhara.models import Queue, Task
from django_dhara.sql import on
from django_dhara.states import Completed, State
from tests.rows import MAX_INTERRUPTED, MAX_LOST, WORKER

SIZES = [pytest.param(200_000, id="200k"), pytest.param(1_000_000, id="1M", marks=pytest.mark.slow)]
FIFTY = tuple(f"queue {n}" for n in range(50))

#: Runs of a worker that lives, and of one that died.
RUNNING, ABANDONED = 1000, 50

#: What a statement may touch: so much for each task that it changes or asks for, and so much in any case (fifty lanes,
#: each found twice by going down an index of four levels; all running tasks, for the reaper).
PAGES_PER_TASK, PAGES = 25, 1500
ROWS_PER_TASK, ROWS = 8, 1500

_FILL = """
INSERT INTO dhara_task (id, backend, function, queue, priority, payload, state, lease, run_at, finished_at, worker_id,
                        lease_until, lost)
SELECT gen_random_uuid(), 'default', 'tests.app.tasks.add', {queue}, {priority}, '{{"args": [1], "kwargs": {{}}}}',
       {state}, 1, {run_at}, {finished_at}, {worker}, {lease_until}, 0
FROM generate_series(1, {number}) AS n
"""


def fill(number, state=State.PENDING, *, queue="'default'", priority="0", run_at="now() - make_interval(secs => n)"):
    final = state not in (State.PENDING, State.RUNNING)
    running = state == State.RUNNING
    statement = _FILL.format(
        number=number,
        state=f"'{state}'",
        queue=queue,
        priority=priority,
        run_at=run_at,
        finished_at="now() - interval '1 hour' - make_interval(secs => n * 0.01)" if final else "NULL",
        worker=f"'{WORKER}'" if running else "NULL",
        lease_until=f"now() + make_interval(secs => CASE WHEN n <= {ABANDONED} THEN -1 ELSE 600 END)"
        if running
        else "NULL",
    )
    with connection.cursor() as cursor:
        cursor.execute(statement)


# --------------------------------------------------------------------------------------- the shapes of the table


def finished_rows(size):
    fill(size, State.COMPLETED)
    fill(1000, State.DEAD)
    fill(size // 5)


def a_backlog(size):
    fill(size)


def scheduled_in_front(size):
    fill(size, priority="50", run_at="now() + interval '1 day' + make_interval(secs => n)")
    fill(size // 5)


def fifty_queues(size):
    fill(size, queue="'queue ' || n % 50")
    for n in range(10, 15):
        Queue.objects.create(backend="default", name=f"queue {n}", paused_at="2026-01-01T00:00Z")


def grown_since_it_was_analyzed(size):
    fill(100, queue="'queue ' || n")
    run("ANALYZE dhara_task")
    fill(size)


SHAPES = [finished_rows, a_backlog, scheduled_in_front, fifty_queues, grown_since_it_was_analyzed]


# ----------------------------------------------------------------------------------------------- the statements


def claim(execute, limit, wanted, view=WHOLE):
    lifecycle.claim(
        execute,
        "default",
        wanted,
        uuid4(),
        limit=limit,
        suspects=1,
        lease_seconds=60.0,
        unknown=["a.b", "a.c"],
        view=view,
    )


def settle(execute):
    endings = [Ending(id_, 1, Completed("null"), 0.1) for id_ in ids(State.RUNNING, 500)]
    lifecycle.settle(execute, WORKER, endings, max_interrupted=MAX_INTERRUPTED)


def renew(execute):
    leases = [(id_, 1) for id_ in ids(State.RUNNING, 500)]
    lifecycle.renew(execute, WORKER, leases, lease_seconds=60.0)


def report(execute):
    reports = [lifecycle.Report(id_, 1, '{"done": 1}', None) for id_ in ids(State.RUNNING, 500)]
    lifecycle.report(execute, reports)


def sweep(execute):
    lifecycle.rescue(execute, "default", "default", max_lost=MAX_LOST, grace_seconds=0.0)


def prune(execute):
    lifecycle.prune(execute, "default", "default", State.COMPLETED, older_than=60.0, keyed_older_than=60.0, limit=500)


def in_bulk(verb, state, execute):
    verb(execute, ids(state, 500))


to_another_queue = partial(lifecycle.change_queue_all, queue="mail", without=["x"])


def copy(execute):
    lifecycle.copy_all(execute, {id_: uuid4() for id_ in ids(State.DEAD, 500)})


def ids(state, number):
    return list(Task.objects.filter(state=state).values_list("id", flat=True)[:number])


def know(execute):
    fleet.is_in_tables(execute, "default", "nobody's")


#: Each with the number of tasks that it is about.
STATEMENTS = {
    "claim 10 of one queue": (10, partial(claim, limit=10, wanted=Wanted("default", ("default",)))),
    "claim 500 of one queue": (500, partial(claim, limit=500, wanted=Wanted("default", ("default",)))),
    "claim 500 of fifty queues": (500, partial(claim, limit=500, wanted=Wanted("default", FIFTY, ("queue 3",)))),
    "claim 10 of all queues": (10, partial(claim, limit=10, wanted=Wanted("default"))),
    "claim 500 of all queues but two": (
        500,
        partial(claim, limit=500, wanted=Wanted("default", (), ("queue 3", "queue 4"))),
    ),
    "settle": (500, settle),
    "renew": (500, renew),
    "report": (500, report),
    "sweep": (RUNNING, sweep),
    "prune": (500, prune),
    "cancel pending": (500, partial(in_bulk, lifecycle.cancel_all, State.PENDING)),
    "cancel running": (500, partial(in_bulk, lifecycle.cancel_all, State.RUNNING)),
    "revive": (500, partial(in_bulk, lifecycle.revive_all, State.DEAD)),
    "run now": (500, partial(in_bulk, lifecycle.run_now_all, State.PENDING)),
    "copy": (500, copy),
    "change queue": (500, partial(in_bulk, to_another_queue, State.PENDING)),
    "put off": (500, partial(in_bulk, partial(lifecycle.put_off_all, seconds=9.0), State.PENDING)),
    "delete": (500, partial(in_bulk, lifecycle.delete_all, State.DEAD)),
    "know a queue": (RUNNING, know),
}


# ------------------------------------------------------------------------------------------------------ explaining


class Explained(Exception):
    """Instead of the rows that the statement would have brought."""


class Plan:
    """What a statement did."""

    def __init__(self, plan):
        self.nodes = list(_nodes(plan))
        self.pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.spilled = plan["Temp Written Blocks"]

    @property
    def scans_whole(self):
        return any(n["Node Type"] == "Seq Scan" and n["Relation Name"] == "dhara_task" for n in self.nodes)

    @property
    def rows(self):
        """Read of our tables, and compared in joins."""
        read = [n for n in self.nodes if n.get("Relation Name", "").startswith("dhara_") and "Scan" in n["Node Type"]]
        return sum(map(_read, read)) + sum(_times(n, "Rows Removed by Join Filter") for n in self.nodes)


def _nodes(node):
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


def _read(node):
    return _times(node, "Actual Rows") + _times(node, "Rows Removed by Filter")


def _times(node, what):
    return node.get(what, 0) * node["Actual Loops"]


def run(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def explain(call, mode):
    """The plan of the statement that `call` sends; what it changes is rolled back."""
    plans = []

    def execute(statement, parameters):
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        for number, name in enumerate(names, start=1):
            statement = statement.replace(f"%({name})s", f"${number}")
        values = ", ".join(sql.Literal(parameters[name]).as_string(None) for name in names)
        run(f"SET plan_cache_mode = force_{mode}_plan; SET jit = off")
        run(f"PREPARE explained AS {statement.replace('%%', '%')}")
        run("BEGIN")
        try:
            [[plan]] = run(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE explained ({values})")
        finally:
            run("ROLLBACK; DEALLOCATE explained; RESET plan_cache_mode; RESET jit")
        plans.append(plan if isinstance(plan, list) else json.loads(plan))
        raise Explained

    with pytest.raises(Explained):
        call(execute)
    return Plan(plans[0][0]["Plan"])


def complaints(when):
    for mode in ("custom", "generic"):
        for name, (tasks, call) in STATEMENTS.items():
            plan = explain(call, mode)
            told = f"{name}, {mode} plan, {when}: {plan.pages} pages, {plan.rows:.0f} rows"
            if plan.scans_whole:
                yield f"{told}, a sequential scan"
            elif (
                plan.spilled or plan.pages > PAGES_PER_TASK * tasks + PAGES or plan.rows > ROWS_PER_TASK * tasks + ROWS
            ):
                yield told


@pytest.fixture
def without_statistics(commits):
    """The planner knows nothing of the table, and autovacuum tells it nothing."""
    run("ALTER TABLE dhara_task SET (autovacuum_enabled = false)")
    run("DELETE FROM pg_statistic WHERE starelid = 'dhara_task'::regclass")
    yield
    run("ALTER TABLE dhara_task RESET (autovacuum_enabled)")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_statement_costs_more_because_the_table_is_large(without_statistics, shape, size):
    shape(size)
    fill(RUNNING, State.RUNNING)
    found = list(complaints("before ANALYZE"))
    Task.objects.running().delete()
    run("VACUUM ANALYZE dhara_task")
    fill(RUNNING, State.RUNNING)
    found += complaints("after ANALYZE")
    assert not found, "\n".join(["", *found])


@pytest.mark.timeout(600)
def test_the_overview_reads_no_table_of_tasks_as_a_whole(without_statistics):
    fill(150_000, State.COMPLETED)
    fill(3000, State.DEAD)
    fill(20_000, queue="'queue ' || n % 50", priority="n % 3")
    fill(300, State.RUNNING)
    for when in ("before ANALYZE", "after ANALYZE"):
        with CaptureQueriesContext(connection) as sent:
            found = stats.overview("default", None, stats.RANGES["24h"])
        assert (found.slow, len(found.waiting)) == ([], 50)
        statements = [each["sql"] for each in sent if "dhara_task" in each["sql"]]
        assert len(statements) >= 8
        for statement in statements:
            [[plan]] = run(f"EXPLAIN (FORMAT JSON) {statement}")
            [top] = plan if isinstance(plan, list) else json.loads(plan)
            scanned = [n for n in _nodes(top["Plan"]) if n["Node Type"] == "Seq Scan"]
            assert all(n["Relation Name"] != "dhara_task" for n in scanned), f"{when}: {statement}"
        run("VACUUM ANALYZE dhara_task")


def test_while_a_snapshot_is_held_a_look_from_its_place_walks_over_no_claimed_task(without_statistics, other_session):
    wanted = Wanted("default", ("default",))
    fill(40_000)
    with other_session.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM dhara_task")
    claimed = "SET state = 'COMPLETED', finished_at = now()"
    for left in (1000, 0):
        run(f"UPDATE dhara_task {claimed} WHERE state = 'PENDING' AND run_at < now() - make_interval(secs => {left})")
        haul = lifecycle.claim(on("default"), "default", wanted, WORKER, limit=1, suspects=1, lease_seconds=60.0)
        assert len(haul.claims) == bool(left)
        for mode in ("custom", "generic"):
            whole = explain(partial(claim, limit=10, wanted=wanted), mode)
            again = explain(partial(claim, limit=10, wanted=wanted, view=haul.view), mode)
            unknown = explain(partial(claim, limit=10, wanted=wanted, view=haul.view._replace(places="[]")), mode)
            assert whole.pages > 1500, whole.pages
            assert again.pages < 500, again.pages
            assert unknown.pages < 1200 or left, unknown.pages
    with other_session.cursor() as cursor:
        cursor.execute("ROLLBACK")
