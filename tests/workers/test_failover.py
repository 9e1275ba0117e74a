"""A server that only reads, an answer that never comes to the one who enqueues, a signal to the whole process group."""

import os
import signal
import socket
from time import monotonic

import pytest

from django_dhara.conf import Options
from tests.workers.harness import Crew, for_as_long_as, until, url_of

ENQUEUE = "from tests.app.tasks import count; count.enqueue('once')"


REFUSED = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"


def test_a_worker_leaves_a_server_that_only_reads_and_finds_one_that_writes(crew, database):  # B11
    worker, name = crew.start(), database.parameters["dbname"]
    database.rows(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')  # for new sessions
    try:
        before = database.value(REFUSED)
        assert database.terminate("dhara worker%")
        task = database.add("count", "after")
        until(lambda: database.value(REFUSED) >= before + 2)  # it comes back, is refused, and leaves again
        assert database.states(task) == ["PENDING"]
        assert worker.lives
    finally:
        database.rows(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    until(lambda: database.states(task) == ["COMPLETED"], 5 * 10)
    worker.says("has the database again")
    assert worker.stop() == 0


def test_an_enqueue_whose_answer_is_lost_is_an_error_and_never_sent_twice(crew, database, proxy):  # B14
    proxy.swallows = b"INSERT INTO dhara_task"
    caller = crew.run("shell", "-c", ENQUEUE, **proxy.env)
    assert caller.ends(30) == 1
    assert "django.db.utils.OperationalError" in caller.log
    assert proxy.swallowed, "the answer came through"
    assert database.value("SELECT count(*) FROM dhara_task") <= 1


def test_with_a_key_an_enqueue_whose_answer_is_lost_may_be_repeated(crew, database, proxy):  # B14
    code = ENQUEUE.replace("count.", "count.using(idempotency_key='k').")
    proxy.swallows = b"INSERT INTO dhara_task"
    assert crew.run("shell", "-c", code, **proxy.env).ends(30) == 1
    assert proxy.swallowed, "the answer came through"
    assert crew.run("shell", "-c", code, **proxy.env).ends(30) == 0
    assert database.rows("SELECT idempotency_key FROM dhara_task") == [("k",)]


def test_a_signal_to_the_whole_process_group_lets_functions_finish(crew, database):  # C04
    worker = crew.start()
    tasks = [database.add("nap", f"nap {n}", 1.0) for n in range(3)]
    until(lambda: all(database.effects(f"nap {n}") for n in range(3)))
    os.killpg(os.getpgid(worker.pid), signal.SIGTERM)
    began = monotonic()
    assert worker.ends() == 0
    assert monotonic() - began > 0.1, "nothing ran any more"
    assert database.states(*tasks) == ["COMPLETED"] * 3
    assert database.value("SELECT max(interrupted) FROM dhara_task") == 0


def test_by_default_a_dead_workers_task_is_back_within_a_minute():  # A18
    options = Options()
    assert options.lease_seconds + options.sweep_seconds + options.poll_seconds < 60


def between(parameters, *others):
    """Leads a worker to several hosts, tried in this order."""
    hosts = ",".join(each["host"] for each in (parameters, *others))
    return {"DATABASE_URL": url_of({**parameters, "host": hosts})}


@pytest.mark.slow
def test_after_a_failover_the_worker_is_with_the_new_primary_and_no_run_is_lost(pair, tmp_path):  # B11
    primary, standby = pair
    env = between(primary.parameters, standby.parameters)
    env["DATABASE_URL"] += "&target_session_attrs=read-write"  # for the functions' own connections, too
    crew = Crew(tmp_path, primary.database, **env)
    workers = [crew.start() for _ in range(2)]
    long = [primary.database.add("doze", f"long {n}", 9.0) for n in range(4)]
    until(lambda: all(primary.database.effects(f"long {n}") for n in range(4)))
    standby.has_all_of(primary)
    primary.stop()
    for worker in workers:
        worker.says("has lost the database")
    for_as_long_as(3.0, lambda: all(worker.lives for worker in workers))  # only the standby is there
    standby.promote()
    database = crew.database = standby.database
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 10)
    until(lambda: database.states(*long) == ["COMPLETED"] * 4, 20)
    assert [database.effects(f"long {n}") for n in range(4)] == [1] * 4
    assert [database.task(task)["lost"] for task in long] == [0] * 4
    assert [worker.log.count("has lost the database") for worker in workers] == [1, 1]  # it waited quietly
    assert [worker.stop() for worker in workers] == [0, 0]
    crew.end()


@pytest.mark.slow
def test_a_worker_before_a_standby_waits_quietly_for_its_promotion(pair, tmp_path):  # B11, B12
    primary, standby = pair
    crew = Crew(tmp_path, primary.database, **between(standby.parameters, primary.parameters))
    finds = crew.start("--queues", "finds")  # the one that can write, though it stands second and nothing was said
    task = primary.database.add("add", 1, 2, queue="finds")
    until(lambda: primary.database.states(task) == ["COMPLETED"])
    assert finds.stop() == 0
    waits = crew.run("dhara_worker", **between(standby.parameters))
    waits.says("waits for the database: the server is a standby and only reads")
    for_as_long_as(4.0, lambda: waits.lives)
    assert waits.log.count("standby") == 1
    assert waits.cpu_seconds < 5
    standby.has_all_of(primary)
    primary.stop()
    standby.promote()
    task = standby.database.add("count", "after")
    until(lambda: standby.database.states(task) == ["COMPLETED"], 10)
    assert waits.stop() == 0
    crew.database = standby.database
    crew.end()


@pytest.fixture
def silent():
    """A port that lets connect and says nothing, as a network that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
        yield listener.getsockname()


def test_a_way_past_the_pooler_that_leads_nowhere_costs_no_lease(crew, database, silent):  # B07, B10
    dsn = f"host={silent[0]} port={silent[1]} dbname=x user=x connect_timeout=60"
    worker = crew.start(DHARA_LISTEN_DSN=dsn, DHARA_LEASE_SECONDS=6)
    crew.start("--queues", "idle")
    task = database.add("doze", "long", 14.0)
    until(lambda: database.effects("long") == 1)
    slowest = 0.0
    for n in range(10):
        began = monotonic()
        other = database.add("count", f"task {n}")
        until(lambda other=other: database.states(other) == ["COMPLETED"])
        slowest = max(slowest, monotonic() - began)
    assert slowest < 2.0 + 3  # one try to connect
    until(lambda: database.states(task) == ["COMPLETED"], 30)
    assert database.task(task)["lost"] == 0
    worker.says("Not listening for wake-ups yet")
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_host_that_says_nothing_is_left_for_the_next_one_in_time(crew, database, proxy, silent):  # B10, B11
    name, user = database.parameters["dbname"], database.parameters["user"]
    # Two hosts, both of 127.0.0.1: the first port is silent, the second leads to the server.
    ports = f"{silent[1]},{proxy.port}"
    url = f"postgresql://{user}@/{name}?host=127.0.0.1,127.0.0.1&port={ports}&connect_timeout=30"
    began = monotonic()
    worker = crew.start(DATABASE_URL=url, DHARA_NOTIFY="false", DHARA_LEASE_SECONDS=10)
    assert monotonic() - began < 15
    task = database.add("add", 1, 2)
    until(lambda: database.states(task) == ["COMPLETED"])
    assert worker.stop() == 0
