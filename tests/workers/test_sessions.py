"""Connections, language, time zone and context: a run finds them as a request would, and leaves nothing behind."""

import json
from pathlib import Path

import pytest

from tests.app.faults import LEAVES
from tests.workers.harness import until

PLAIN = ['"$user", public', "en-us", "UTC", "default"]
OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name NOT LIKE 'dhara %%'"
)


def with_database(**settings):
    return {"DHARA_TEST_DATABASE": json.dumps(settings)}


def run(database, name, *args):
    task = database.add(name, *args)
    until(lambda: database.states(task) == ["COMPLETED"])
    return database.task(task)["result"]


@pytest.mark.parametrize("age", [60, *(pytest.param(age, marks=pytest.mark.slow) for age in (0, None))])
@pytest.mark.parametrize("tasks", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_sessions_do_not_pile_up(crew, database, age, tasks):  # J01
    crew.start("--concurrency", "20", **with_database(CONN_MAX_AGE=age))
    before, most = database.value(OTHERS), 0
    ids = [database.add("queries", 1, 1) for _ in range(tasks)]

    def ends():
        nonlocal most
        most = max(most, database.value(OTHERS))
        return database.states(*ids) == ["COMPLETED"] * tasks

    until(ends, 60)
    assert most - before <= 20
    if age == 0:
        until(lambda: database.value(OTHERS) <= before)
    clerks = len(database.sessions("dhara settle%"))  # under load there is one
    assert clerks <= 1
    assert len(database.sessions("dhara %")) == 2 + clerks


def test_a_session_is_kept_between_runs_as_conn_max_age_says(crew, database):  # J01
    crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=None))
    assert run(database, "session_pid") == run(database, "session_pid")


def test_a_session_that_died_while_idle_is_not_used_again(crew, database):  # J02
    crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False))
    old = run(database, "session_pid")
    assert database.rows("SELECT pg_terminate_backend(%s, 5000)", old) == [(True,)]
    assert run(database, "session_pid") != old
    assert database.value("SELECT sum(failures) FROM dhara_task") == 0


@pytest.mark.slow
def test_a_pool_is_kept_from_run_to_run(crew, database):  # J05
    pytest.importorskip("psycopg_pool")
    pool = {"pool": {"min_size": 2, "max_size": 4}}
    crew.start("--concurrency", "4", **with_database(CONN_MAX_AGE=0, OPTIONS=pool))
    pids = {run(database, "session_pid") for _ in range(30)}
    assert len(pids) <= 4


@pytest.mark.parametrize("name", ["leave_transaction", "leave_autocommit_off", "leave_atomic"])
@pytest.mark.slow
def test_a_pool_gets_nothing_back_that_is_not_clean(crew, database, name):  # J05, B05
    pytest.importorskip("psycopg_pool")
    pool = {"pool": {"min_size": 1, "max_size": 1, "timeout": 3}}
    worker = crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=0, OPTIONS=pool))
    for _ in range(3):
        run(database, name, "left")
        run(database, "write_note", "after")
    assert database.rows("SELECT text, count(*) FROM app_note GROUP BY text") == [("after", 3)]
    worker.says("rolled back and closed")


@pytest.mark.fast
def test_language_time_zone_and_context_do_not_reach_the_next_run(crew, database):  # J11
    crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=None))
    assert run(database, "look_around") == PLAIN
    run(database, "leave_context")
    assert run(database, "look_around") == PLAIN


@pytest.mark.parametrize(
    "how",
    [
        "composed",
        "SELECT 1; SET search_path TO elsewhere",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in (
                "SET search_path TO elsewhere",
                "set session search_path = elsewhere",
                "/* tenant: 7 */ SET search_path TO elsewhere",
                "-- tenant 7\nSET search_path TO elsewhere",
                "SELECT set_config('search_path', 'elsewhere', false)",
            )
        ),
    ],
)
def test_the_schema_of_one_tenant_does_not_reach_the_next_run(crew, database, how):  # J12
    crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=None))
    run(database, "leave_session", how)
    assert run(database, "look_around") == PLAIN


@pytest.mark.slow
def test_set_local_costs_no_session(crew, database):  # J12
    crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=None))
    old = run(database, "session_pid")
    run(database, "leave_session", "SET LOCAL search_path TO elsewhere")
    assert run(database, "session_pid") == old


@pytest.mark.slow
def test_a_temporary_table_does_not_reach_the_next_run(crew, database):  # J12
    crew.start("--concurrency", "1", **with_database(CONN_MAX_AGE=None))
    run(database, "leave_session", "CREATE TEMP TABLE app_note (text text)")
    run(database, "write_note", "after")
    assert database.rows("SELECT text FROM app_note") == [("after",)]


@pytest.mark.slow
def test_an_idle_transaction_that_the_server_ends_is_a_failure_of_its_run(crew, database):  # I14
    database.rows(f"ALTER DATABASE {database.parameters['dbname']} SET idle_in_transaction_session_timeout = '300ms'")
    worker = crew.start("--concurrency", "1")
    task = database.add("idle_in_transaction", 1.5, max_attempts=1)
    after = database.add("count", "after")
    until(lambda: database.states(task, after) == ["DEAD", "COMPLETED"])
    assert "terminat" in database.value("SELECT message FROM dhara_attempt")
    assert worker.stop() == 0


def test_timeouts_of_the_role_do_not_end_the_worker(crew, database):  # I13
    name = database.parameters["dbname"]
    database.rows(f"ALTER DATABASE {name} SET statement_timeout = '300ms'")
    database.rows(f"ALTER DATABASE {name} SET lock_timeout = '100ms'")
    worker = crew.start()
    with database.connection.transaction():
        database.rows("LOCK dhara_task IN ACCESS EXCLUSIVE MODE")
        worker.says("tries again: canceling statement due to lock timeout")
    task = database.add("count", "after")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert worker.stop() == 0


WAYS = {"threads": ("--concurrency", "1"), "processes": ("--processes", "1")}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_a_run_leaves_reaches_the_next_one(crew, database, way):  # B05, J11, J12
    database.rows(
        "CREATE OR REPLACE FUNCTION leave_something() RETURNS text LANGUAGE sql AS"
        " $$ SELECT set_config('application_name', 'left by a function', false) $$"
    )
    try:
        worker = crew.start(*WAYS[way], **with_database(CONN_MAX_AGE=None))
        faults = "tests.app.faults.{}".format

        def look():
            task = database.add("", function=faults("look_closely"))
            until(lambda: database.states(task) == ["COMPLETED"])
            return database.task(task)["result"]

        plain = look()
        for what in LEAVES:
            task = database.add("", what, function=faults("leave"), max_attempts=1)
            until(lambda task=task: database.states(task) == ["COMPLETED"])
            assert look() == plain, what
            assert database.effects(f"leave {what}") == 1
        assert database.effects("never") == 0
        assert database.value("SELECT count(*) FROM app_note") == 0
        assert "could not be closed" not in worker.log
        assert worker.stop() == 0
    finally:
        database.rows("DROP FUNCTION leave_something()")


def test_locale_and_directory_of_a_child_are_those_of_its_beginning(crew, database):
    crew.start("--processes", "1")

    def look():
        task = database.add("", function="tests.app.faults.look_at_process")
        until(lambda: database.states(task) == ["COMPLETED"])
        return database.task(task)["result"]

    plain = look()
    task = database.add("", "place", function="tests.app.faults.leave")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert look() == plain
    assert plain[1] != "/"


def test_a_timeout_for_all_sockets_harms_no_child_that_starts_later(crew, database):
    worker = crew.start("--processes", "1")
    timeout = database.add("aleave_timeout", function="tests.app.faults.aleave_timeout")
    until(lambda: database.states(timeout) == ["COMPLETED"])
    kill = database.add("die", "gone", max_attempts=1)
    after = database.add("count", "after")
    until(lambda: database.states(kill, after) == ["DEAD", "COMPLETED"], 30)
    assert worker.stop() == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_database_of_another_make_is_left_as_clean(crew, database, tmp_path, way):
    (tmp_path / "both.py").write_text(
        "from tests.settings import *\nDATABASES['lite'] = {'ENGINE': 'django.db.backends.sqlite3', "
        f"'NAME': '{tmp_path}/lite.sqlite', 'CONN_MAX_AGE': None}}\n"
    )
    env = {"DJANGO_SETTINGS_MODULE": "both", "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    worker = crew.start(*WAYS[way], **env)
    for n in range(3):
        task = database.add("", f"note {n}", function="tests.app.faults.leave_lite", max_attempts=1)
        until(lambda task=task: database.states(task) == ["COMPLETED"])
        assert database.task(task)["result"] == 0, "the last one's insert was committed"
    assert "could not be closed" not in worker.log
    worker.says("leave_lite left autocommit switched off on connection 'lite'")
    assert worker.stop() == 0


@pytest.fixture(autouse=True)
def _plain_database(database):
    yield
    database.rows(f"ALTER DATABASE {database.parameters['dbname']} RESET ALL")
