"""`atomic=True` under faults: in the end each COMPLETED task has one effect, and every other task has none."""

import random
import signal
from contextlib import suppress

import psycopg
import pytest

from tests.workers.harness import until

SLOW = pytest.mark.slow
ENV = {"DHARA_BACKOFF_BASE_SECONDS": 0.05, "DHARA_MAX_ATTEMPTS": 50, "DHARA_MAX_LOST": 50, "DHARA_MAX_INTERRUPTED": 500}
WAYS = {"threads": ("--concurrency", "4"), "processes": ("--processes", "3")}
TROUBLES = ["", "", "", "query", "close", "raise", "exit"]
END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
)
UNFINISHED = "SELECT count(*) FROM dhara_task WHERE state IN ('PENDING', 'RUNNING')"
AGREE = """
    SELECT state, effects, count(*)
    FROM dhara_task, LATERAL (SELECT count(*) AS effects FROM app_note WHERE text = payload->'args'->>0) AS note
    GROUP BY state, effects
"""


def add(database, number, seconds=0.2, **columns):
    columns = {"function": "tests.app.faults.effect", "max_attempts": 50, **columns}
    return [
        database.add("", f"effect {n}", random.uniform(0, 2 * seconds), TROUBLES[n % len(TROUBLES)], **columns)
        for n in range(number)
    ]


def agrees(database, *, completed):
    """Effects and states agree, and so many tasks are COMPLETED."""
    found = database.rows(AGREE)
    assert all(effects == (state == "COMPLETED") for state, effects, _ in found), found
    assert sum(number for state, _, number in found if state == "COMPLETED") == completed, found


def ended(database, how):
    return database.value("SELECT count(*) FROM dhara_attempt WHERE ended = %s", how)


def goes_on(database, left):
    """Wait until so many tasks, or fewer, are left."""
    until(lambda: database.value(UNFINISHED) <= left, 60)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "threads" else SLOW) for way in WAYS])
def test_when_workers_are_killed(crew, database, way):
    add(database, 60)
    for left in (50, 40, 30, 20):
        workers = [crew.start(*WAYS[way], **ENV) for _ in range(2)]
        goes_on(database, left)
        for worker in workers:
            worker.kill()
    crew.start(*WAYS[way], **ENV)
    goes_on(database, 0)
    assert ended(database, "LOST") > 0
    agrees(database, completed=60)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "processes" else SLOW) for way in WAYS])
def test_when_all_sessions_are_ended_again_and_again(crew, database, way):
    add(database, 60)
    workers = [crew.start(*WAYS[way], **ENV) for _ in range(2)]
    killed = 0
    for left in range(55, 5, -5):
        goes_on(database, left)
        killed += len(database.rows(END_ALL))
    goes_on(database, 0)
    assert killed > 20
    agrees(database, completed=60)
    assert all(worker.lives for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_when_the_server_crashes(server_crew, server, way):
    server.database.rows("TRUNCATE app_note")
    crew = server_crew
    add(server.database, 60)
    workers = [crew.start(*WAYS[way], **ENV) for _ in range(2)]
    for left in (50, 40, 30, 20):
        goes_on(server.database, left)
        server.stop()
        server.start()
        crew.database = server.connect()
    goes_on(server.database, 0)
    assert ended(server.database, "FAILED") > 60 * 4 / 7 / 2, "no run was cut off"
    agrees(server.database, completed=60)
    assert all(worker.lives for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_when_leases_are_lost_under_frozen_workers(crew, database, way):
    add(database, 24, 1.5)
    zombie, _ = (crew.start(*WAYS[way], **ENV) for _ in range(2))
    holds = "SELECT count(*) FROM dhara_task WHERE state = 'RUNNING' AND worker_id = %s"
    for left in (20, 10):
        goes_on(database, left)
        until(lambda: database.value(holds, crew.id_of(zombie)) >= 2)
        lost = ended(database, "LOST")
        zombie.signal(signal.SIGSTOP)
        until(lambda lost=lost: ended(database, "LOST") > lost, 30)  # past its lease; its children go on meanwhile
        zombie.signal(signal.SIGCONT)
    goes_on(database, 0)
    agrees(database, completed=24)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "threads" else SLOW) for way in WAYS])
def test_when_runs_are_overdue_and_workers_stop(crew, database, way):
    add(database, 40, timeout=0.3)  # some just end in time, some do not, some end at that moment
    for left in (30, 20):
        worker = crew.start(*WAYS[way], "--drain-timeout", "0", **{**ENV, "DHARA_MAX_ABANDONED": 1000})
        goes_on(database, left)
        assert worker.stop() == 0
    database.rows("UPDATE dhara_task SET max_attempts = 3")
    crew.start(*WAYS[way], **{**ENV, "DHARA_MAX_ABANDONED": 1000})
    goes_on(database, 0)
    assert ended(database, "TIMED_OUT") > 0
    assert database.value("SELECT sum(interrupted) FROM dhara_task") > 0
    agrees(database, completed=database.value("SELECT count(*) FROM dhara_task WHERE state = 'COMPLETED'"))


@pytest.fixture
def altered(database):
    """Changes a setting of the database for all new sessions, and takes it back in the end."""
    name = database.parameters["dbname"]
    yield lambda what: database.rows(f"ALTER DATABASE {name} SET {what}")
    database.rows(f"ALTER DATABASE {name} RESET ALL")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "level", ["repeatable read", pytest.param("serializable", marks=SLOW)], ids=["repeatable", "serializable"]
)
def test_above_read_committed(crew, database, altered, way, level):
    altered(f"default_transaction_isolation = '{level}'")
    add(database, 40, 0.05)
    long = database.add("", "long", 2.5, "", function="tests.app.faults.effect", max_attempts=2)
    crew.start(*WAYS[way], **ENV)
    goes_on(database, 0)
    assert database.states(long) == ["DEAD"]  # its row was renewed meanwhile: check dhara.E009 says so
    assert "could not serialize" in database.value("SELECT max(message) FROM dhara_attempt WHERE task_id = %s", long)
    agrees(database, completed=40)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_with_small_timeouts_of_the_server(crew, database, altered, way):
    altered("statement_timeout = '300ms'")
    altered("lock_timeout = '100ms'")
    altered("idle_in_transaction_session_timeout = '700ms'")
    add(database, 30, 0.1)
    slow = database.add("", "slow", 0, "slow query", function="tests.app.faults.effect", max_attempts=9)
    idle = database.add("", "idle", 2, "", function="tests.app.faults.effect", max_attempts=2)
    crew.start(*WAYS[way], **ENV)
    goes_on(database, 10)
    with suppress(psycopg.errors.LockNotAvailable), database.connection.transaction():
        database.rows("LOCK dhara_task IN ACCESS EXCLUSIVE MODE")
        database.rows("SELECT pg_sleep(0.25)")
    goes_on(database, 0)
    assert database.states(slow, idle) == ["COMPLETED", "DEAD"]
    assert database.history(slow)[0] == "FAILED"
    agrees(database, completed=31)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way == "threads" else SLOW) for way in WAYS])
def test_through_a_pooler_that_is_killed(crew, database, pooler, way):
    add(database, 60)
    workers = [crew.start(*WAYS[way], **ENV, **pooler.env) for _ in range(2)]
    for left in (50, 40, 30, 20):
        goes_on(database, left)
        pooler.restart()
    goes_on(database, 0)
    agrees(database, completed=60)
    assert all(worker.lives for worker in workers)
