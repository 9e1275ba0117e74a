"""A part of a worker dies: the process ends and says so, instead of living on without it."""

import pytest

from tests.workers.harness import until
from tests.workers.test_children import children_of, lives, where


@pytest.fixture
def breaks(tmp_path):
    """Settings of a worker whose parts can be broken: `breaks(part)`."""
    (tmp_path / "vandalised.py").write_text(
        "from tests.settings import *\n"
        "INSTALLED_APPS = [app if app != 'tests.app' else 'tests.app.vandal.Vandal' for app in INSTALLED_APPS]\n"
    )
    where = f"{tmp_path}:{__file__.rpartition('/tests/')[0]}"

    def breaks(part):
        (tmp_path / "new").write_text(part)
        (tmp_path / "new").rename(tmp_path / "broken")

    breaks.env = {"DJANGO_SETTINGS_MODULE": "vandalised", "PYTHONPATH": where, "BREAK": tmp_path / "broken"}
    return breaks


@pytest.mark.parametrize("part", ["control loop", "settling", "ears"])
def test_a_control_loop_that_dies_takes_the_process_with_it(crew, database, breaks, part):
    worker = crew.start(**breaks.env)
    waiting = database.add("leave_thread", "leaves", 60.0)  # a thread that the interpreter would wait for
    until(lambda: database.states(waiting) == ["COMPLETED"])
    running = database.add("anap", "running", 60.0)
    until(lambda: database.effects("running") == 1)
    breaks(part)
    database.add("count", "next")
    assert worker.ends(10) == 1
    worker.says("The control loop of worker", f"tests.app.vandal.Broken: {part}")
    crew.start()
    until(lambda: database.effects("running") == 2)  # it was handed back, or rescued
    assert database.states(running) == ["RUNNING"]


@pytest.mark.parametrize(
    ("part", "name", "args", "flags"),
    [
        ("herald", "count", ["next"], []),
        ("run thread", "count", ["next"], []),
        ("event loop", "acount", ["next"], []),
        ("child's thread", "count", ["next"], ["--processes", "1"]),
    ],
)
def test_a_thread_that_dies_takes_the_process_with_it(crew, database, breaks, part, name, args, flags):
    worker = crew.start(*flags, "--drain-timeout", "1", **breaks.env)
    before = [database.add("count", "before"), database.add("acount", "before")]
    until(lambda: database.states(*before) == ["COMPLETED"] * 2)
    breaks(part)
    task = database.add(name, *args)
    assert worker.ends(15) == 1
    worker.says("has died", f"tests.app.vandal.Broken: {part}", "stops: its thread")
    crew.start()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.value("SELECT sum(lost + failures) FROM dhara_task") == 0


def test_a_child_that_hears_nothing_any_more_ends_and_is_replaced(crew, database, breaks):
    worker = crew.start("--processes", "1", **breaks.env)
    database.add("count", "before")
    child = where(database, "before")
    breaks("child's ear")
    task = database.add("count", "next", max_attempts=1)
    until(lambda: not lives(child))
    breaks("nothing")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert where(database, "next") in children_of(worker)
    assert worker.stop() == 0


def test_a_function_that_closes_all_files_ends_the_process(crew, database):
    worker = crew.start("--drain-timeout", "1")
    database.add("close_everything", function="tests.app.faults.close_everything", max_attempts=1)
    assert worker.ends(15) != 0


BAD_LOG = """
import logging
import time
from tests.settings import *

class Handler(logging.Handler):
    def emit(self, record):
        {what}

LOGGING["handlers"]["bad"] = {{"()": Handler, "level": "WARNING"}}
LOGGING["root"]["handlers"] = ["stderr", "bad"]
"""


@pytest.mark.parametrize("what", ["time.sleep(6)", "raise RuntimeError('no log')", "raise SystemExit(3)"])
def test_a_handler_of_the_log_that_waits_or_fails_costs_no_lease(crew, database, tmp_path, what):
    (tmp_path / "bad_log.py").write_text(BAD_LOG.format(what=what))
    where = f"{tmp_path}:{__file__.rpartition('/tests/')[0]}"
    worker = crew.start("--drain-timeout", "1", DJANGO_SETTINGS_MODULE="bad_log", PYTHONPATH=where)
    crew.start("--queues", "idle")
    task = database.add("doze", "long", 8.0)
    until(lambda: database.effects("long") == 1)
    assert database.terminate("dhara worker%")  # each writes a warning
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 5)
    until(lambda: database.states(task) == ["COMPLETED"])
    assert (database.task(task)["lost"], database.effects("long")) == (0, 1)
    assert worker.stop() == 0
    assert "has lost the database" in worker.log
