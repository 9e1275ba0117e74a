"""A cancel reaches a running function at once, wherever it runs, and the table of what becomes of its task holds."""

import signal

import pytest

from django_dhara import cancel
from tests.app.stops import HOWS
from tests.workers.harness import for_as_long_as, until
from tests.workers.test_children import lives, where

SLOW = pytest.mark.slow
#: How functions run: the flags of the worker, and the function that obeys there.
WAYS = {"threads": ([], "obey"), "event loop": ([], "aobey"), "processes": (["--processes", "6"], "obey")}
from_stops = "tests.app.stops.{}".format


def add(database, name, *args, **columns):
    return database.add(name, *args, function=from_stops(name), **columns)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("notify", ["true", pytest.param("false", marks=SLOW)])
def test_a_running_function_hears_of_its_cancel_within_a_second(crew, database, way, notify):  # G06
    flags, name = WAYS[way]
    crew.start(*flags, "--poll-interval", "8", DHARA_NOTIFY=notify, DHARA_LEASE_SECONDS=60)
    before = add(database, name, "return")
    until(lambda: database.effects("return") == 1, 40)
    assert cancel(before) == "requested"
    until(lambda: database.effects("return heard") == 1, 4)  # a second on an idle machine
    until(lambda: database.states(before) == ["COMPLETED"], 5)


@pytest.mark.parametrize("way", WAYS)
def test_after_a_cancel_a_success_is_completed_and_anything_else_canceled(crew, database, way):  # G01, G02
    flags, name = WAYS[way]
    worker = crew.start(*flags)
    tasks = {how: add(database, name, how) for how in HOWS}
    until(lambda: all(database.effects(how) == 1 for how in HOWS), 30)
    leases = {how: database.task(task)["lease"] for how, task in tasks.items()}
    assert {cancel(task) for task in tasks.values()} == {"requested"}
    until(lambda: not {"PENDING", "RUNNING"} & database.states(), 30)
    for how, task in tasks.items():
        assert database.states(task) == ["COMPLETED" if how == "return" else "CANCELED"], how
        assert (database.effects(how), database.effects(f"{how} heard")) == (1, 1), how
        assert database.task(task)["lease"] == leases[how], how
        assert cancel(task) == "finished"
    assert worker.stop() == 0
    counted = database.rows("SELECT sum(completed), sum(failed), sum(canceled) FROM dhara_minute")
    assert counted == [(1, 0, len(HOWS) - 1)], "a cancel is no failure of the function"
    worker.says("runs, 0 failed")


@pytest.mark.parametrize("flags", [(), ("--processes", "1")], ids=["threads", "processes"])
@pytest.mark.parametrize("how", ["timeout", "stop", "rescue"])
def test_a_canceled_run_that_is_taken_away_is_canceled_too(crew, database, flags, how):  # G02
    env = {"DHARA_CANCEL_SECONDS": 60}
    worker = crew.start(*flags, "--drain-timeout", "0", **env)
    task = add(database, "be_deaf", "deaf", **({"timeout": 2.0} if how == "timeout" else {}))
    until(lambda: database.effects("deaf") == 1)
    lease = database.task(task)["lease"]
    assert cancel(task) == "requested"
    if how == "stop":
        worker.signal(signal.SIGTERM)
    elif how == "rescue":
        worker.kill()
        crew.start(*flags, **env)
    until(lambda: database.states(task) == ["CANCELED"])
    for_as_long_as(0.5, lambda: database.effects("deaf") == 1)
    assert database.task(task)["lease"] == lease
    assert database.history(task) == {"timeout": ["TIMED_OUT"], "stop": [], "rescue": ["LOST"]}[how]


def test_a_child_whose_function_ignores_the_cancel_is_killed_after_its_grace(crew, database):
    crew.start("--processes", "1", DHARA_CANCEL_SECONDS=1.5)
    task = add(database, "be_deaf", "deaf")
    child, lease = where(database, "deaf"), database.task(task)["lease"]
    began = database.value("SELECT extract(epoch FROM clock_timestamp())")
    assert cancel(task) == "requested"
    until(lambda: database.states(task) == ["CANCELED"])
    assert database.value("SELECT extract(epoch FROM finished_at) - %s FROM dhara_task", began) >= 1.5
    until(lambda: not lives(child))
    row = database.task(task)
    assert (row["lease"], row["lost"], row["interrupted"]) == (lease, 0, 0)
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])


def test_a_canceled_function_in_a_child_has_its_grace_to_clean_up(crew, database):
    crew.start("--processes", "1", DHARA_CANCEL_SECONDS=30)
    task = add(database, "clean_up", "sleeps", 1.0)
    child = where(database, "sleeps")
    assert cancel(task) == "requested"
    until(lambda: database.states(task) == ["CANCELED"])
    assert database.effects("sleeps cleaned") == 1
    assert lives(child)
