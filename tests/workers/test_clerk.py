"""Under load a worker settles on a second session; whatever happens to that, each task runs once and ends once."""

import pytest

from django_dhara.worker.clerk import Clerk
from django_dhara.worker.session import Disconnected
from tests.workers.harness import until

BACKLOG = 6000
INSERT = """
    INSERT INTO dhara_task (id, backend, queue, function, payload)
    SELECT gen_random_uuid(), 'default', 'default', 'tests.app.tasks.add', '{"args": [1], "kwargs": {}}'
    FROM generate_series(1, %s)
"""
#: What became of all tasks.
ENDED = "SELECT DISTINCT state, failures + lost + interrupted FROM dhara_task"
#: The settles of one statement are of one transaction.
MOST_AT_ONCE = "SELECT max(n) FROM (SELECT count(*) AS n FROM dhara_task GROUP BY xmin::text) AS batch"

END_A_SETTLE = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name ~ '^dhara settle'
      AND query ~ 'dhara:settle' AND state = 'active'
"""


@pytest.fixture
def load(database):
    database.rows(INSERT, BACKLOG)


def all_completed_once(database, worker):
    """Wait until all have ended; the worker says of each that it has settled it."""
    until(lambda: not left(database))
    assert database.rows(ENDED) == [("COMPLETED", 0)]
    count = database.value("SELECT count(*) FROM dhara_task")
    until(lambda: worker.log.count("state=SUCCESSFUL") >= count)
    assert worker.log.count("state=SUCCESSFUL") == count


def left(database):
    return database.value("SELECT count(*) FROM dhara_task WHERE state <> 'COMPLETED'")


def test_many_runs_are_settled_beside_the_control_loop_and_few_are_not(crew, database, load):
    worker = crew.start()
    all_completed_once(database, worker)
    assert len(database.sessions("dhara settle%")) == 1
    assert database.value(MOST_AT_ONCE) >= 100
    assert worker.stop() == 0
    quiet = crew.start()
    task = database.add("count", "alone")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert not database.sessions("dhara settle%")
    assert quiet.stop() == 0


def test_a_clerk_whose_session_is_ended_again_and_again_loses_nothing(crew, database):
    worker = crew.start()
    ended = 0
    while ended < 3:
        if left(database) < BACKLOG:
            database.rows(INSERT, BACKLOG)
        ended += len(database.rows(END_A_SETTLE))
    all_completed_once(database, worker)
    worker.says("has lost the database", "has the database again")
    assert worker.stop() == 0


def test_answers_of_a_clerk_that_never_came_are_read_back(crew, database, load, proxy):
    proxy.swallows = b"dhara:settle"
    worker = crew.start(**proxy.env)
    all_completed_once(database, worker)
    assert proxy.swallowed
    assert worker.stop() == 0
    assert "Lease lost" not in worker.log


def test_a_clerk_whose_network_went_silent_is_given_up(crew, database, load, proxy):
    worker = crew.start(**proxy.env)
    until(lambda: database.sessions("dhara settle%") or not left(database))
    proxy.freeze()
    worker.says("has lost the database")
    proxy.thaw()
    until(lambda: not left(database))
    assert {state for state, *_ in database.rows(ENDED)} == {"COMPLETED"}
    assert worker.stop() == 0


def test_where_no_further_session_is_to_be_had_the_control_loop_settles(crew, database, load):
    role, user = "of_two_sessions", database.parameters["user"]
    database.rows(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 2 IN ROLE {user}")
    try:
        url = f"postgresql://{role}@/{database.parameters['dbname']}?host={database.parameters['host']}"
        worker = crew.start(DATABASE_URL=f"{url}&port={database.parameters['port']}", DATABASE_OPTIONS_ASSUME_ROLE=user)
        all_completed_once(database, worker)
        assert not database.sessions("dhara settle%")
        assert "has lost the database" not in worker.log
        assert worker.stop() == 0
    finally:
        until(lambda: not database.rows("SELECT 1 FROM pg_stat_activity WHERE usename = %s", role))
        database.rows(f"DROP ROLE {role}")


@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_that_is_stopped_under_load_leaves_nothing_running(crew, database, load, signals):
    worker = crew.start()
    until(lambda: left(database) < BACKLOG * 0.8)
    for _ in range(signals - 1):
        worker.signal(15)
    assert worker.stop() == 0
    assert {state for state, *_ in database.rows(ENDED)} <= {"COMPLETED", "PENDING"}
    assert database.value("SELECT max(failures + lost) FROM dhara_task") == 0


@pytest.mark.fast
def test_what_goes_wrong_in_a_job_is_the_control_loops(monkeypatch):
    class Session:
        is_open, execute = False, None

        def open(self):
            if not self.is_open:
                raise Disconnected("none to be had")

        def close(self):
            pass

    def job(execute):
        yield "first"
        raise MemoryError

    session, rung, failed = Session(), [], []
    clerk = Clerk(session, lambda: rung.append(True), failed.append)
    clerk.start(job)
    until(lambda: clerk.has_done)
    assert clerk.take() == ([], None)
    assert not clerk.is_free
    session.is_open = True
    clerk.start(job)
    until(lambda: clerk.has_done)
    answers, error = clerk.take()
    assert (answers, type(error)) == (["first"], MemoryError)
    assert rung == [True, True]
    clerk.close(5)
    assert not clerk.has_done
    assert failed == []
