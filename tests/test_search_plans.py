"""What a search reads of a large table, by EXPLAIN ANALYZE, whatever the planner knows about it."""

from uuid import UUID

import pytest
from django.db import connection

from django_dhara import search
from django_dhara.models import Worker
from django_dhara.search import finding, parse, sources
from tests.rows import WORKER

_FILL = """
INSERT INTO dhara_task (id, backend, function, queue, priority, payload, state, lease, run_at, enqueued_at, finished_at,
                        error_class, idempotency_key, worker_id, lease_until)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n %% 4096), 3, '0')
        || '8' || substr(md5(n::text), 1, 15))::uuid,
       'default', 'shop.f' || n %% 20, 'queue ' || n %% 5, n %% 3, jsonb_build_object('args', '[]'::jsonb, 'kwargs',
       jsonb_build_object('order_id', n)), state, 1, at, at, CASE WHEN state NOT IN ('PENDING', 'RUNNING') THEN at END,
       CASE WHEN state = 'DEAD' THEN 'shop.Boom' END, CASE WHEN n %% 50 = 0 THEN 'key ' || n END,
       CASE WHEN state = 'RUNNING' THEN '00000000-0000-0000-0000-000000000001'::uuid END,
       CASE WHEN state = 'RUNNING' THEN now() + interval '1 hour' END
FROM (
    SELECT n, now() - make_interval(secs => %(number)s - n) AS at,
           CASE WHEN n %% 1000 = 0 THEN 'RUNNING' WHEN n %% 100 = 1 THEN 'DEAD' WHEN n %% 100 = 2 THEN 'PENDING'
                ELSE 'COMPLETED' END AS state
    FROM generate_series(1, %(number)s) AS n) AS made
"""

PLANS = [
    "",
    "state:dead",
    "state:dead function:f1 error:Boom",
    "state:completed queue:nothing",
    "state:pending",
    'state:pending queue:"queue 2"',
    "state:running worker:box7",
    "is:ready",
    "queue:nothing",
    "after:1h before:30m -state:completed",
    "key:no-such-key",
    "worker:box7",
    "priority:>50 attempts:>9",
    "payload.order_id:-1",
    "id:018f queue:nothing",
    "nothing.of.this.name",
    "state:dead,canceled queue:nothing",
]


NUMBER = 200_000
#: What no statement may read more rows than: a window, twice what is gathered, and some.
ROWS = 12_000


def run(statement, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def small_bounds(monkeypatch):
    monkeypatch.setattr(finding, "WINDOWS", (5_000, 500))
    for module in (finding, sources):
        monkeypatch.setattr(module, "GATHER", 5_000)


@pytest.mark.timeout(600)
def test_no_search_reads_the_whole_table(commits, small_bounds):
    run("ALTER TABLE dhara_task SET (autovacuum_enabled = false)")
    run(_FILL, {"number": NUMBER})
    Worker.objects.create(id=WORKER, name="box7-1", host="box7", pid=1, concurrency=1, lease_seconds=30)
    found = [*complaints("before ANALYZE")]
    run("VACUUM ANALYZE dhara_task")
    found += complaints("after ANALYZE")
    run("ALTER TABLE dhara_task RESET (autovacuum_enabled)")
    assert not found, "\n".join(["", *found])


def complaints(when):
    for text in PLANS:
        plans = []
        with connection.execute_wrapper(_only_outside(_noted(plans))):
            _look(parse(text))
        assert plans
        for statement, plan in plans:
            nodes = [n for n in _nodes(plan) if n.get("Relation Name") == "dhara_task"]
            read = sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in nodes)
            if read > ROWS or any(n["Node Type"] == "Seq Scan" for n in nodes):
                yield f"“{text}”, {when}: {read:.0f} rows, {[n['Node Type'] for n in nodes]}: {statement[-300:]}"


def _look(asked):
    """Two pages, a count, and a part of a walk."""
    cursor = ""
    for _ in range(2):
        cursor = search.page("default", asked, cursor=cursor).older
    search.count("default", asked)
    search.walk("default", asked, below=UUID(int=2**128 - 1), size=100)


def _noted(plans):
    """Explains each statement that reads tasks; those of the planner's own estimate are explained already."""

    def note(execute, statement, parameters, many, context):
        if "dhara_task" in statement and statement.startswith(("SELECT", "/* dhara:search")):
            explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"
            [[plan]] = run(explain, parameters)
            plans.append((statement, plan[0]["Plan"]))
        return execute(statement, parameters, many, context)

    return note


def _only_outside(wrapper):
    """Not around the EXPLAIN that the wrapper itself sends."""
    busy = []

    def outer(execute, statement, parameters, many, context):
        if busy:
            return execute(statement, parameters, many, context)
        busy.append(1)
        try:
            return wrapper(execute, statement, parameters, many, context)
        finally:
            busy.pop()

    return outer


def _nodes(node):
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)
