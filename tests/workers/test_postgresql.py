"""What PostgreSQL does to its clients, and what a queue does to PostgreSQL: sessions, locks, schemas, vacuum."""

import json
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from django_dhara import lifecycle
from django_dhara.states import State
from tests.workers.harness import Database, for_as_long_as, until


def test_a_listener_is_never_in_a_transaction(crew, database):  # I05
    crew.start()
    [listener] = until(lambda: database.sessions("dhara listen%"))
    state = "SELECT state FROM pg_stat_activity WHERE pid = %s"
    until(lambda: database.value(state, listener) == "idle")
    tasks = [database.add("count", f"task {n}") for n in range(20)]
    for_as_long_as(0.5, lambda: database.value(state, listener) == "idle")
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 20)


def test_many_who_prune_and_rescue_at_once_do_not_deadlock(database):  # I11
    number = 4000
    database.rows(
        "INSERT INTO dhara_task (id, backend, queue, function, payload, state, lease, lease_until, worker_id,"
        " finished_at) SELECT gen_random_uuid(), 'default', 'default', 'tests.app.tasks.count', '{}',"
        " CASE WHEN n %% 2 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END, 1, now() - interval '1 hour', gen_random_uuid(),"
        " CASE WHEN n %% 2 = 1 THEN now() - interval '1 hour' END FROM generate_series(1, %s) AS n",
        number,
    )
    database.rows("INSERT INTO dhara_attempt (task_id, lease, number, worker_id, started_at, ended, error_class)"
                  " SELECT id, 1, 1, gen_random_uuid(), now(), 'FAILED', 'x' FROM dhara_task")  # fmt: skip

    def work(_):
        mine = Database(**database.parameters)

        def execute(statement, parameters):
            return mine.connection.execute(statement, parameters).fetchall()

        done = 0
        for _ in range(number // 50):
            done += lifecycle.prune(
                execute, "default", "default", State.COMPLETED, older_than=0.0, keyed_older_than=0.0, limit=50
            )
            done += len(lifecycle.rescue(execute, "default", "default", max_lost=9, grace_seconds=0.0, limit=50))
        mine.close()
        return done

    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(work, range(8)))  # what is a deadlock raises here
    assert sum(done) == number
    assert sum(count > 0 for count in done) > 1, "one did it all"
    assert database.rows("SELECT DISTINCT state, lost FROM dhara_task") == [("PENDING", 1)]
    assert database.value("SELECT count(*) FROM dhara_attempt WHERE ended = 'LOST'") == number / 2


@pytest.mark.slow
def test_while_no_connection_is_left_leases_are_kept_and_nobody_exits(server_crew, server):  # I15
    crew, database = server_crew, server.database
    database.rows("CREATE ROLE many LOGIN")  # a superuser would get the connections that are kept for him
    for table in ("dhara_task", "dhara_attempt", "dhara_worker", "dhara_command", "dhara_minute", "dhara_queue",
                  "app_effect", "django_migrations"):  # fmt: skip
        database.rows(f"GRANT ALL ON {table} TO many")
    database.rows("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO many")
    as_many = {"DATABASE_URL": server.env["DATABASE_URL"].replace("//postgres@", "//many@")}
    workers = [crew.start("--concurrency", "2", **as_many) for _ in range(4)]
    tasks = [database.add("doze", f"long {n}", 8.0) for n in range(8)]
    until(lambda: all(database.effects(f"long {n}") for n in range(8)))
    taken = []
    with pytest.raises(psycopg.OperationalError, match="connection slots are reserved"):
        while True:
            taken.append(psycopg.connect(**{**server.parameters, "user": "many"}))
    late = [database.add("count", f"late {n}") for n in range(3)]
    for_as_long_as(5.0, lambda: "PENDING" not in database.states(*tasks))
    for connection in taken:
        connection.close()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 8)
    assert {database.task(task)["lost"] for task in tasks} == {0}
    until(lambda: database.states(*late) == ["COMPLETED"] * 3, 30)
    assert all(worker.lives for worker in workers)
    assert [worker.stop() for worker in workers] == [0] * 4
    database.rows("DROP OWNED BY many")
    database.rows("DROP ROLE many")


def test_the_table_brings_its_own_autovacuum(database):  # I16
    [[options]] = database.rows("SELECT reloptions FROM pg_class WHERE relname = 'dhara_task'")
    found = dict(option.split("=") for option in options)
    assert float(found["autovacuum_vacuum_scale_factor"]) <= 0.02
    assert float(found["autovacuum_analyze_scale_factor"]) <= 0.05
    assert int(found["autovacuum_vacuum_threshold"]) <= 1000
    assert int(found["fillfactor"]) < 100


def test_nothing_refers_to_the_table_of_tasks(database):  # I17
    assert database.rows("SELECT conname FROM pg_constraint WHERE contype = 'f' AND confrelid = 'dhara_task'::regclass"
                         " OR contype = 'f' AND conrelid = 'dhara_task'::regclass") == []  # fmt: skip


ENQUEUE = """
from django.db import connection
from tests.app.tasks import count, look_around
from django_dhara import cancel, revive
count.enqueue("in a schema")
task = count.using(idempotency_key="k", run_after=__import__("datetime").timedelta(hours=1)).enqueue("later")
print("answer", cancel(task.id), count.get_result(task.id).state, revive(task.id))
"""


def test_the_tables_may_live_in_a_schema_of_their_own(crew, database):  # I18
    database.rows("DROP SCHEMA IF EXISTS jobs CASCADE")
    database.rows("CREATE SCHEMA jobs")
    env = {"DHARA_TEST_DATABASE": json.dumps({"OPTIONS": {"options": "-c search_path=jobs"}})}
    migrated = crew.run("migrate", "--run-syncdb", "-v0", **env)
    assert migrated.ends(60) == 0, migrated.log
    inside = Database(**database.parameters, options="-c search_path=jobs")
    try:
        crew.database = inside
        worker = crew.start(**env)
        shell = crew.run("shell", "-c", ENQUEUE, **env)
        assert shell.ends(30) == 0, shell.log
        assert "answer canceled CANCELED True" in shell.log
        until(lambda: inside.rows("SELECT state FROM dhara_task") == [("COMPLETED",)] * 2)
        assert (inside.effects("in a schema"), inside.effects("later")) == (1, 1)
        lost = inside.add("doze", "lost", 60.0)
        until(lambda: inside.effects("lost") == 1)
        worker.kill()
        other = crew.start(**env)
        until(lambda: inside.history(lost) == ["LOST"])
        prune = crew.run("dhara_prune", "--completed-days", "0", **env)
        assert (prune.ends(30), "COMPLETED: 1 deleted" in prune.log) == (0, True), prune.log
        assert database.value("SELECT count(*) FROM public.dhara_task") == 0
        other.kill()
    finally:
        crew.database = database
        inside.close()
        database.rows("DROP SCHEMA jobs CASCADE")


def test_a_rescued_task_comes_before_newer_and_lesser_ones(crew, database):  # L01
    victim = crew.start("--concurrency", "1")
    task = database.add("doze", "first", 30.0, priority=9)
    until(lambda: database.effects("first") == 1)
    victim.kill()
    for n in range(50):
        database.add("nap", f"lesser {n}", 0.3, priority=0)
    crew.start("--concurrency", "1")
    until(lambda: database.effects("first") == 2)
    waiting = "SELECT count(*) FROM dhara_task WHERE state = 'PENDING'"
    assert database.value(waiting) > 25, "it waited behind them"
    assert database.history(task) == ["LOST"]
