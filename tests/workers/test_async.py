"""`async def` functions on the worker's event loop."""

import time

import pytest

from tests.workers.harness import until


@pytest.mark.fast
def test_coroutines_run_side_by_side(crew, database):
    crew.start("--concurrency", "1")
    tasks = [database.add("anap", f"nap {n}", 1.0) for n in range(30)]
    begun = time.monotonic()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 30)
    assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_no_more_run_at_once_than_allowed(crew, database):
    crew.start("--async-concurrency", "3")
    tasks = [database.add("anap", f"nap {n}", 0.3) for n in range(9)]
    most, likes = 0, ("NOT LIKE '% ended'", "LIKE '% ended'")

    def ends():
        nonlocal most
        begun, ended = (database.value(f"SELECT count(*) FROM app_effect WHERE task {like}") for like in likes)
        most = max(most, begun - ended)
        return database.states(*tasks) == ["COMPLETED"] * 9

    until(ends)
    assert most <= 3


def test_coroutines_and_plain_functions_do_not_wait_for_each_other(crew, database, tmp_path):
    crew.start("--concurrency", "1", "--async-concurrency", "1")
    plain = database.add("hold", "plain", str(tmp_path / "go"))
    until(lambda: database.effects("plain") == 1)
    coroutine = database.add("acount", "coroutine")
    until(lambda: database.states(coroutine) == ["COMPLETED"], 5)
    long = database.add("anap", "long", 60.0)
    until(lambda: database.effects("long") == 1)
    (tmp_path / "go").touch()
    until(lambda: database.states(plain) == ["COMPLETED"], 5)
    another = database.add("count", "another")
    until(lambda: database.states(another) == ["COMPLETED"], 5)
    assert database.states(long) == ["RUNNING"]


def test_plain_orm_in_a_coroutine_is_a_clear_failure(crew, database):  # J15
    crew.start()
    task = database.add("aorm_by_mistake", max_attempts=1)
    until(lambda: database.states(task) == ["DEAD"])
    assert database.task(task)["error_class"] == "django.core.exceptions.SynchronousOnlyOperation"


def test_a_decimal_precision_does_not_reach_the_next_coroutine(crew, database):  # J11
    crew.start()
    for _ in range(3):
        task = database.add("around_decimals", 2)
        until(lambda task=task: database.states(task) == ["COMPLETED"])
        assert database.task(task)["result"] == 28


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_connections_of_coroutines_are_closed(crew, database, count):  # J15
    crew.start("--async-concurrency", "8", DHARA_TEST_DATABASE='{"CONN_MAX_AGE": null}')
    tasks = [database.add("acount", "orm") for _ in range(count)]
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    before, most = database.value(sessions), 0

    def ends():
        nonlocal most
        most = max(most, database.value(sessions))
        return database.states() == {"COMPLETED"}

    until(ends, 100)
    assert most - before <= 8 + 2
    until(lambda: database.value(sessions) <= before)
    assert database.effects("orm") == len(tasks)


@pytest.mark.slow
def test_one_slow_query_does_not_hold_up_other_coroutines(crew, database):  # J16
    crew.start()
    tasks = [database.add("asleep_in_database", 1.0) for _ in range(10)]
    until(lambda: database.effects("query") == 10)
    begun = time.monotonic()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 10)
    assert time.monotonic() - begun < 5


def test_a_canceled_coroutine_ends_at_once(crew, database):
    worker = crew.start()
    task = database.add("anap", "once", 60.0)
    until(lambda: database.effects("once") == 1)
    database.rows("UPDATE dhara_task SET cancel_requested_at = now()")
    database.rows(
        "INSERT INTO dhara_command (worker_id, verb, argument) SELECT worker_id, 'CANCEL',"
        " jsonb_build_object('task', id, 'lease', lease) FROM dhara_task"
    )
    until(lambda: database.states(task) == ["CANCELED"], 5)
    assert database.value("SELECT answer FROM dhara_command") == "told"
    assert worker.lives
