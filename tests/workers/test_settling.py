"""How runs end is written once, whatever happens to the connection, the server or the value."""

import time

import pytest
from django.db import connections

from django_dhara.compat import task_backends
from django_dhara.lifecycle import Wanted
from django_dhara.worker import Worker
from django_dhara.worker.session import Disconnected
from tests.app.tasks import _RETURNED
from tests.workers.harness import DJANGOS_LOGGER, for_as_long_as, until

SLOW = pytest.mark.slow
#: A trigger that refuses the next settles with this SQLSTATE.
REFUSE = """
CREATE TABLE refusals (code text);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE found text;
BEGIN
    found := nextval('refused');
    IF found::int <= {times} THEN RAISE EXCEPTION 'refused by the test' USING ERRCODE = '{code}'; END IF;
    RETURN new;
END $$;
CREATE SEQUENCE refused;
CREATE TRIGGER refuse BEFORE UPDATE OF state ON dhara_task FOR EACH ROW
    WHEN (old.state = 'RUNNING') EXECUTE FUNCTION refuse();
"""


@pytest.fixture
def refuse(database):
    """Lets the next settles fail; answers how often one was tried."""

    def refuse(code, times):
        database.rows(REFUSE.format(code=code, times=times))
        return lambda: database.value("SELECT last_value FROM refused")

    yield refuse
    database.rows("DROP TRIGGER IF EXISTS refuse ON dhara_task")
    database.rows("DROP FUNCTION IF EXISTS refuse()")
    database.rows("DROP SEQUENCE IF EXISTS refused")
    database.rows("DROP TABLE IF EXISTS refusals")


@pytest.mark.fast
def test_a_function_whose_session_is_ended_completes(crew, database):  # B01
    worker = crew.start()
    task = database.add("end_own_session", "once")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert (database.task(task)["result"], database.effects("once")) == ("done", 1)
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])
    assert worker.stop() == 0


def test_a_worker_whose_own_sessions_are_ended_writes_what_it_has_done(crew, database, tmp_path):  # B01
    worker = crew.start()
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    assert len(database.terminate("dhara %")) == 2
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"], 5)
    assert database.task(task)["lease"] == 1
    worker.says("has lost the database", "has the database again")


@pytest.mark.slow
def test_a_restart_of_the_server_in_the_middle_of_a_run_changes_nothing(server_crew, server):  # B01
    worker = server_crew.start()
    task = server.database.add("doze", "once", 3.0)
    until(lambda: server.database.effects("once") == 1)
    started = server.database.value("SELECT pg_postmaster_start_time()")
    server.stop()
    server.start()
    database = server.connect()
    assert database.value("SELECT pg_postmaster_start_time()") > started
    until(lambda: database.states(task) == ["COMPLETED"])
    assert (database.effects("once"), database.task(task)["lease"]) == (1, 1)
    assert worker.stop() == 0


@pytest.mark.parametrize("code", ["40P01", *(pytest.param(code, marks=SLOW) for code in ("40001", "55P03", "57014"))])
def test_a_settle_that_is_refused_for_a_passing_reason_is_written_later(crew, database, refuse, code):  # B02, B04
    tries = refuse(code, 3)
    worker = crew.start("--concurrency", "1")
    task, after = database.add("count", "first"), database.add("count", "second")
    until(lambda: database.states(task, after) == ["COMPLETED"] * 2, 10)
    assert tries() == 5
    assert [database.effects(name) for name in ("first", "second")] == [1, 1]
    worker.says("tries again: refused by the test")


def test_a_settle_that_waits_for_a_lock_frees_the_slot(crew, database, tmp_path):  # B02
    crew.start("--concurrency", "1")
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    with database.connection.transaction():
        database.rows("SELECT FROM dhara_task WHERE id = %s FOR UPDATE", task)
        (tmp_path / "go").touch()
        other = type(database)(**database.parameters)
        after = other.add("count", "after")
        until(lambda: other.states(after) == ["COMPLETED"], 5)
        assert other.states(task) == ["RUNNING"]
        other.close()
    until(lambda: database.states(task) == ["COMPLETED"], 5)


@pytest.mark.slow
def test_statements_that_wait_for_a_lock_do_not_pile_up_on_the_server(crew, database):  # I12
    worker = crew.start()
    with database.connection.transaction():
        database.rows("LOCK dhara_task IN ACCESS EXCLUSIVE MODE")
        other = type(database)(**database.parameters)
        worker.says("tries again: canceling statement due to statement timeout")
        for_as_long_as(2.0, lambda: len(other.sessions("dhara worker%")) == 1)
        other.close()
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 5)
    assert "has lost the database" not in worker.log


@pytest.mark.parametrize(
    "name",
    [
        "leave_autocommit_off",
        *(pytest.param(f"leave_{what}", marks=SLOW) for what in ("transaction", "atomic", "broken_transaction")),
    ],
)
def test_what_a_function_leaves_open_is_rolled_back_and_told(crew, database, name):  # B05
    worker = crew.start("--concurrency", "1")
    task, after = database.add(name, "left"), database.add("write_note", "after")
    until(lambda: database.states(task, after) == ["COMPLETED"] * 2)
    worker.says(f"tests.app.tasks.{name} left", "rolled back")
    assert database.rows("SELECT text FROM app_note") == [("after",)]


@pytest.mark.slow
def test_a_function_that_closes_its_socket_harms_only_itself(crew, database):  # B05
    worker = crew.start("--concurrency", "1")
    task = database.add("leave_closed_socket", "left")
    until(lambda: database.states(task) == ["COMPLETED"])
    after = [database.add("count", f"after {n}") for n in range(3)]
    until(lambda: database.states(*after) == ["COMPLETED"] * 3, 30)
    assert worker.lives


def pickup(database, name):
    """Seconds from an enqueue with a wake-up to the begin of the function."""
    begun = time.monotonic()
    task = database.add("count", name)
    until(lambda: database.states(task) == ["COMPLETED"], 30)
    return time.monotonic() - begun


def test_a_listener_whose_session_is_ended_listens_again(crew, database):  # B07
    worker = crew.start("--poll-interval", "20")
    first = until(lambda: database.sessions("dhara listen%"))
    assert pickup(database, "before") < 2
    database.terminate("dhara listen%")
    again = until(lambda: database.sessions("dhara listen%"), 5)
    assert not first & again
    worker.says("The listening session was lost and is opened again")
    assert pickup(database, "after") < 2


@pytest.mark.slow
def test_no_task_waits_for_the_poll_while_the_listener_comes_and_goes(crew, database):  # B08
    crew.start("--poll-interval", "60")
    until(lambda: database.sessions("dhara listen%"))
    slowest = 0.0
    for number in range(5):
        database.terminate("dhara listen%")
        slowest = max(slowest, pickup(database, f"task {number}"))
    assert slowest < 5
    assert database.effects() == 5


@pytest.mark.slow
def test_a_hundred_ends_of_the_listener_delay_no_task(crew, database):  # B08
    crew.start("--poll-interval", "60")
    slowest = max(
        pickup(database, f"task {number}") for number in range(100) if not database.terminate("dhara listen%") or True
    )
    assert slowest < 10
    assert database.effects() == 100


@pytest.mark.parametrize("times", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_worker_survives_the_end_of_all_sessions_again_and_again(crew, database, times):  # B09
    connections.close_all()  # not ours
    worker, ended = crew.start(), 0
    for number in range(times):
        tasks = [database.add("count", f"task {number}") for _ in range(3)]
        if number % 2:
            until(lambda tasks=tasks: "PENDING" not in database.states(*tasks))
        ended += len(
            database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND datname = current_database() AND application_name LIKE 'dhara worker%'"
            )
        )
        database.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                      " AND datname = current_database()")  # fmt: skip
    last = database.add("count", "last")
    until(lambda: database.states(last) == ["COMPLETED"], 10)
    until(lambda: not {"PENDING", "RUNNING"} & database.states(), 60)
    assert worker.stop() == 0
    assert ended > 1  # it had come back before it was cut off again
    assert "has lost the database" in worker.log


@pytest.mark.slow
def test_a_worker_cut_off_without_a_word_leaves_in_time_and_says_so(crew, database, proxy, tmp_path):  # B10
    worker = crew.start("--drain-timeout", "1", **proxy.env)
    task = database.add("doze", "cut off", 60.0)
    until(lambda: database.effects("cut off") == 1)
    proxy.freeze()
    begun = time.monotonic()
    assert worker.stop(20) == 1
    assert time.monotonic() - begun < 1 + 5 + 5
    assert "leaves 1 outcomes unwritten" in worker.log
    assert database.states(task) == ["RUNNING"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["idle", "busy"])
def test_a_half_open_network_is_noticed_and_survived(crew, database, proxy, moment):  # B10
    worker = crew.start(**proxy.env)
    long = database.add("doze", "long", 12.0) if moment == "busy" else None
    until(lambda: moment == "idle" or database.effects("long") == 1)
    proxy.freeze()
    worker.says("has lost the database: no answer within 0.6 s")
    for_as_long_as(6.0, lambda: worker.lives)
    proxy.thaw()
    worker.says("has the database again")
    task = database.add("count", "after")
    until(lambda: database.states(task) == ["COMPLETED"], 15)
    if long:
        until(lambda: database.states(long) == ["COMPLETED"], 20)


def test_a_worker_that_starts_before_the_database_waits_for_it(server_crew, server):  # B12
    server.stop()
    worker = server_crew.run("dhara_worker", "--poll-interval", "30")
    worker.says("waits for the database")
    for_as_long_as(1.0, lambda: worker.lives)
    server.start()
    database = server.connect()
    until(lambda: database.sessions("dhara listen%"), 10)
    assert pickup(database, "first") < 2
    assert worker.stop() == 0


def test_the_pause_between_tries_to_connect_stays_short_after_days(settings):  # B12
    worker = Worker(task_backends["default"], task_backends["default"].settings, Wanted("default"))
    worker._session.open = lambda: (_ for _ in ()).throw(Disconnected("away"))
    for _ in range(5000):
        worker._contact.due_at = 0.0
        with pytest.raises(Disconnected):
            worker._contact.is_there()
        assert 0 < worker._contact.due_at - time.monotonic() < 3
    worker._hand.close()
    worker._alarm.close()


def test_an_outage_costs_no_processor_time(server_crew, server):
    worker = server_crew.start()
    until(lambda: server.database.sessions("dhara listen%"))
    server.stop()
    worker.says("has lost the database")
    before = worker.cpu_seconds
    for_as_long_as(2.0, lambda: server.cluster.pid() is None)
    assert worker.cpu_seconds - before < 0.5


def test_an_outcome_that_came_through_unheard_is_not_lost_and_not_written_twice(crew, database, proxy, tmp_path):  # B15
    worker = crew.start(**proxy.env)
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    proxy.swallows = b"dhara:settle"
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    worker.says("has the database again")
    assert proxy.swallowed, "the answer came through"
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 5)
    worker.says(f"{DJANGOS_LOGGER}: Task id={task}")
    assert worker.stop() == 0
    assert "Lease lost" not in worker.log


@pytest.mark.slow
def test_a_failure_that_came_through_unheard_is_counted_once(crew, database, proxy):  # B15
    worker = crew.start(**proxy.env)
    proxy.swallows = b"dhara:settle"
    task = database.add("fail_until", "twice", 2, max_attempts=3)
    until(lambda: database.states(task) == ["COMPLETED"])
    assert proxy.swallowed
    assert (database.task(task)["failures"], database.history(task)) == (1, ["FAILED"])
    assert worker.stop() == 0


def test_tasks_of_a_claim_whose_answer_never_came_are_handed_back_for_free(crew, database, proxy):  # B15
    worker = crew.start(**proxy.env)
    proxy.swallows = b"dhara:claim"
    until(lambda: proxy.swallowed)
    worker.says("has the database again")
    tasks = [database.add("count", f"task {n}") for n in range(3)]
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 3)
    database.rows("UPDATE dhara_queue SET paused_at = now()")
    for name in ("a", "b", "c"):
        with database.connection.transaction():
            proxy.swallows = b"dhara:claim"
            tasks.append(database.add("count", name))
        until(lambda: not proxy.swallows)
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 6)
    assert database.value("SELECT sum(lost + failures + interrupted) FROM dhara_task") == 0
    assert database.value("SELECT count(*) FROM app_effect") == 6


@pytest.mark.parametrize(
    "what",
    ["snooze for ever", *(pytest.param(w, marks=SLOW) for w in ("retry for ever", "snooze text", "snooze backwards"))],
)
def test_a_delay_that_no_calendar_holds_harms_nobody(crew, database, what):
    worker = crew.start("--concurrency", "1")
    odd = database.add("end_by", what, priority=5, max_attempts=3)
    others = [database.add("count", f"other {n}") for n in range(3)]
    until(lambda: database.states(*others) == ["COMPLETED"] * 3, 10)
    until(lambda: database.states(odd) == ["PENDING"], 10)
    assert "Lease lost" not in worker.log
    assert "could not be stored" not in worker.log
    assert database.value("SELECT max(lost) FROM dhara_task") == 0


def test_one_outcome_that_the_database_never_takes_does_not_hold_up_others(crew, database):
    database.rows(
        "CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'never' USING ERRCODE = '23514'; END $$"
    )
    database.rows(
        "CREATE TRIGGER refuse_one BEFORE UPDATE ON dhara_task FOR EACH ROW WHEN (new.state = 'COMPLETED'"
        " AND new.priority = 7) EXECUTE FUNCTION refuse_one()"
    )
    try:
        worker = crew.start("--concurrency", "4")
        odd = database.add("count", "odd", priority=7)
        until(lambda: database.effects("odd") == 1)
        others = [database.add("count", f"other {n}") for n in range(20)]
        until(lambda: database.states(*others) == ["COMPLETED"] * 20, 15)
        assert database.states(odd) == ["RUNNING"]
        assert "Lease lost" not in worker.log
        assert database.effects() == 21
    finally:
        database.rows("DROP FUNCTION refuse_one CASCADE")


@pytest.mark.slow
def test_outcomes_that_do_not_fit_into_one_statement_are_written_in_several(crew, database):
    crew.start(DHARA_MAX_RESULT_BYTES=50_000_000, DHARA_LEASE_SECONDS=60)
    tasks = [database.add("queries", 1, 45_000_000) for _ in range(25)]  # PostgreSQL takes no value above 1 GB
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 25, 100)
    assert database.value("SELECT min(length(result #>> '{}')) FROM dhara_task") == 45_000_000
    assert database.value("SELECT max(lease) FROM dhara_task") == 1


def test_the_results_that_json_and_postgresql_do_not_have_complete_all_the_same(crew, database):  # E03
    worker = crew.start()
    tasks = {what: database.add("give", what) for what in _RETURNED}
    until(lambda: database.states(*tasks.values()) == ["COMPLETED"] * len(tasks), 30)
    assert [database.effects(what) for what in tasks] == [1] * len(tasks)
    assert database.value("SELECT max(pg_column_size(result)) FROM dhara_task") < 1_100_000
    assert worker.stop() == 0
