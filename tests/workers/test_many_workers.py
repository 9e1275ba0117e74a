"""Many workers on one queue: each task runs once, by one of them, and none is forgotten."""

import pytest

from tests.workers.harness import until

_FILL = """
INSERT INTO dhara_task (id, backend, queue, function, payload)
SELECT gen_random_uuid(), 'default', 'default', 'tests.app.tasks.count',
       jsonb_build_object('args', jsonb_build_array('task ' || n), 'kwargs', '{{}}'::jsonb)
FROM generate_series(1, {count}) AS n
"""


@pytest.mark.fast
def test_three_workers_share_a_hundred_tasks(crew, database):
    workers = [crew.start("--concurrency", "2") for _ in range(3)]
    tasks = [database.add("nap", f"task {n}", 0.05) for n in range(100)]
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 100, 30)
    assert database.value("SELECT count(DISTINCT task) FROM app_effect WHERE task NOT LIKE '% ended'") == 100
    assert database.effects() == 200
    took = dict(database.rows("SELECT worker, count(*) FROM app_effect GROUP BY worker"))
    assert set(took) == {str(worker.pid) for worker in workers}
    assert min(took.values()) > 20
    assert [worker.stop() for worker in workers] == [0, 0, 0]


@pytest.mark.slow
def test_five_thousand_tasks_run_once_each_on_four_processes(crew, database):
    workers = [crew.start("--concurrency", "8") for _ in range(4)]
    database.rows(_FILL.format(count=5000))
    until(lambda: database.states() == {"COMPLETED"}, 110)
    counted = "SELECT count(*), count(DISTINCT task), count(DISTINCT worker) FROM app_effect"
    assert database.rows(counted) == [(5000, 5000, 4)]
    assert database.rows("SELECT max(lease), max(failures + lost + interrupted) FROM dhara_task") == [(1, 0)]
    assert database.value("SELECT count(*) FROM dhara_attempt") == 0
    assert [worker.stop() for worker in workers] == [0] * 4
    assert database.value("SELECT sum(completed) FROM dhara_minute") == 5000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tasks_that_fail_at_first_are_counted_right_while_workers_die(crew, database):
    env = {"DHARA_BACKOFF_BASE_SECONDS": 0.01, "DHARA_BACKOFF_CAP_SECONDS": 0.1, "DHARA_LEASE_SECONDS": 1}
    env |= {"DHARA_MAX_LOST": 100}
    workers = [crew.start("--concurrency", "8", **env) for _ in range(4)]
    database.rows(_FILL.replace("tasks.count", "tasks.fail_until").replace("|| n)", "|| n, 2)").format(count=1000))
    database.rows("UPDATE dhara_task SET max_attempts = 100")
    for n in range(6):
        until(lambda n=n: database.value("SELECT sum(failures) FROM dhara_task") > 100 * (n + 1), 60)
        workers.pop(0).kill()
        workers.append(crew.start("--concurrency", "8", **env))
    until(lambda: database.states() == {"COMPLETED"}, 200)
    runs = "SELECT count(*) FROM app_effect AS e WHERE e.task = task.payload #>> '{args,0}'"
    wrong = f"""SELECT id FROM dhara_task AS task WHERE failures + lost + 1 < ({runs}) OR failures + lost < 1
                OR failures + lost <> (SELECT count(*) FROM dhara_attempt WHERE task_id = task.id)"""
    assert database.rows(wrong) == []
