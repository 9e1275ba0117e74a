"""PgBouncer in transaction mode between everything and the server: all works, but wake-ups are found by polling."""

import pytest

from tests.workers.harness import until

FLOW = """
from datetime import timedelta
from django.db import transaction
from django_dhara import cancel, enqueue_many, revive
from tests.app.tasks import acount, atomic_note, count, tell
count.enqueue("one")
enqueue_many([count.bind(f"many {n}") for n in range(200)])
for n in range(20):
    acount.enqueue("coroutine")
    atomic_note.enqueue(f"atomic {n}", 0)
tell.enqueue("told")
first = count.using(idempotency_key="k").enqueue("keyed")
print("duplicate", count.using(idempotency_key="k").enqueue("keyed").id == first.id)
try:
    with transaction.atomic():
        count.enqueue("rolled back")
        raise ValueError
except ValueError:
    pass
later = count.using(run_after=timedelta(hours=1)).enqueue("later")
print("answers", cancel(later.id), revive(later.id), cancel(later.id), count.get_result(later.id).state)
"""
UNFINISHED = "SELECT count(*) FROM dhara_task WHERE state IN ('PENDING', 'RUNNING')"


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_everything_works_through_a_pooler_that_shares_sessions(crew, database, pooler, flags):  # I07, I08
    workers = [crew.start(*flags, **pooler.env) for _ in range(2)]
    shell = crew.run("shell", "-c", FLOW, **pooler.env)
    assert shell.ends(60) == 0, shell.log
    assert "duplicate True" in shell.log
    assert "answers canceled True canceled CANCELED" in shell.log
    until(lambda: database.value(UNFINISHED) == 0, 60)
    marks = dict(database.rows("SELECT task, count(*) FROM app_effect GROUP BY task"))
    assert marks == {"one": 1, "coroutine": 20, "told": 2, "keyed": 1, **{f"many {n}": 1 for n in range(200)}}
    assert database.value("SELECT count(DISTINCT text) FROM app_note") == 20
    assert database.value("SELECT sum(lost + interrupted) FROM dhara_task") == 0
    for worker in workers:
        worker.says("LISTEN hears nothing on this connection")
        assert worker.log.count("LISTEN hears nothing") == 1
        assert "prepared statement" not in worker.log
    lost = database.add("doze", "lost", 60.0, max_attempts=1)
    until(lambda: database.effects("lost") == 1)
    owner = next(worker for worker in workers if crew.id_of(worker) == database.task(lost)["worker_id"])
    owner.kill()
    until(lambda: database.states(lost) == ["DEAD"])
    workers.remove(owner)
    canceled = database.add("anap", "canceled", 60.0)
    until(lambda: database.effects("canceled") == 1)
    code = f"from django_dhara import cancel; print(cancel('{canceled}'))"
    assert crew.run("shell", "-c", code, **pooler.env).ends(30) == 0
    until(lambda: database.states(canceled) == ["CANCELED"], 5)
    prune = crew.run("dhara_prune", "--completed-days", "0", **pooler.env)
    assert (prune.ends(30), "COMPLETED: 242 deleted" in prune.log) == (0, True), prune.log
    assert workers[0].stop() == 0


def test_sessions_of_the_pooler_are_left_as_they_were(crew, database, pooler):  # I09
    name = database.parameters["dbname"]
    database.rows(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    try:
        pooler.restart()
        before = pooler.sessions()
        assert {settings[2] for settings in before.values()} == {"serializable"}
        workers = [crew.start("--concurrency", "4", **pooler.env) for _ in range(2)]
        tasks = [database.add("count", f"task {n}") for n in range(200)]
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        until(lambda: database.value(locks) > 0 or database.states(*tasks) == ["COMPLETED"] * 200, 60)
        assert database.value(locks) == 0
        for worker in workers:
            worker.says("LISTEN hears nothing on this connection")
        burst = crew.run("dhara_worker", "--burst", **pooler.env)
        assert burst.ends(30) == 0
        assert [worker.stop() for worker in workers] == [0, 0]
        assert pooler.sessions() == before
        assert database.value("SELECT sum(failures + lost) FROM dhara_task") == 0
    finally:
        database.rows(f"ALTER DATABASE {name} RESET ALL")


def test_a_pooler_that_restarts_costs_no_run(crew, database, pooler):  # I08
    workers = [crew.start(**pooler.env) for _ in range(2)]
    long = [database.add("doze", f"long {n}", 6.0) for n in range(4)]
    until(lambda: all(database.effects(f"long {n}") for n in range(4)))
    for _ in range(4):
        pooler.restart(seconds=0.5)
        for worker in workers:
            until(lambda worker=worker: not _is_away(worker.log))
    after = [database.add("count", f"after {n}") for n in range(20)]
    until(lambda: database.states(*long, *after) == ["COMPLETED"] * 24, 30)
    assert [database.effects(f"long {n}") for n in range(4)] == [1] * 4
    assert database.value("SELECT sum(lost + interrupted) FROM dhara_task") == 0
    assert all("has lost the database" in worker.log for worker in workers)
    assert [worker.stop() for worker in workers] == [0, 0]


def _is_away(log):
    return log.count("has lost the database") > log.count("has the database again")


def test_a_worker_that_listens_past_the_pooler_is_woken(crew, database, pooler):  # I07
    where = database.parameters
    dsn = f"host={where['host']} port={where['port']} user={where['user']} dbname={where['dbname']}"
    worker = crew.start("--poll-interval", "30", DHARA_LISTEN_DSN=dsn, **pooler.env)
    until(lambda: database.sessions("dhara listen%"))
    until(lambda: database.value("SELECT count(*) FROM dhara_worker") == 1)
    for n in range(3):
        task = database.add("count", f"task {n}")
        until(lambda task=task: database.states(task) == ["COMPLETED"], 5)
    assert "LISTEN hears nothing" not in worker.log
    assert worker.stop() == 0


def test_behind_a_pooler_that_shares_no_sessions_a_worker_is_woken(crew, database, pooler):  # I07
    pooler.restart(mode="session")
    worker = crew.start("--poll-interval", "30", "--concurrency", "1", **pooler.env)
    for n in range(3):
        task = database.add("count", f"task {n}")
        until(lambda task=task: database.states(task) == ["COMPLETED"], 5)
    assert "LISTEN hears nothing" not in worker.log
    assert worker.stop() == 0
