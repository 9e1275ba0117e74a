"""What functions and fate can do to child processes, and what the worker makes of it."""

import os
import resource
import signal
import time
from asyncio import CancelledError
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from django_dhara.worker.child import Child
from tests.workers.harness import for_as_long_as, until
from tests.workers.test_children import cancel, children_of, lives, where

SLOW = pytest.mark.slow


def add(database, name, *args, **columns):
    return database.add(name, *args, function=f"tests.app.faults.{name}", **columns)


@pytest.mark.parametrize(
    ("attribute", "size"), [("canceled", 900_000), ("stopping", 10), pytest.param("canceled", 10, marks=SLOW)]
)
def test_a_function_that_talks_all_the_time_hears_all_the_same(crew, database, attribute, size):
    worker = crew.start("--processes", "1")
    task = add(database, "chatter", "talks", attribute, size)
    until(lambda: database.effects("talks") == 1)
    if attribute == "canceled":
        cancel(database, task, crew.id_of(worker))
    else:
        worker.signal(signal.SIGTERM)
    until(lambda: database.effects("talks was told") == 1, 5)


@pytest.mark.fast
def test_a_function_is_not_stopped_in_the_middle_of_a_message():
    here, there = Pipe()
    child, run, heard = Child(there), SimpleNamespace(canceled=False), []
    child._current = run

    def listen():
        until(here.poll)  # it has begun to send, and 5 MB do not fit into the pipe
        child._hear(run, True, False, False)
        with suppress(EOFError):
            heard.append(here.recv())

    before = signal.signal(signal.SIGTERM, child._on_stop)
    parent = Thread(target=listen)
    parent.start()
    try:
        with pytest.raises(CancelledError):
            child.progress(run, "x" * 5_000_000)
    finally:
        signal.signal(signal.SIGTERM, before)
        there.close()
        parent.join()
        here.close()
    assert heard == [("progress", "x" * 5_000_000)]


def test_a_function_that_talks_and_does_not_stop_is_killed(crew, database):
    worker = crew.start("--processes", "1")
    task = add(database, "chatter_deaf", "talks")
    child = where(database, "talks")
    cancel(database, task, crew.id_of(worker))
    until(lambda: database.states(task) == ["CANCELED"], 15)
    until(lambda: not lives(child))


def test_many_that_are_overdue_at_once_do_not_cost_the_worker(crew, database):
    worker = crew.start("--processes", "3", DHARA_MAX_ABANDONED=1)
    tasks = [database.add("spin", f"busy {n}", 600, timeout=2.0, max_attempts=1) for n in range(3)]
    until(lambda: database.states(*tasks) == ["DEAD"] * 3)
    after = database.add("add", 1, 1)
    until(lambda: database.states(after) == ["COMPLETED"])
    assert worker.lives


@pytest.mark.slow
def test_idle_children_that_are_killed_again_and_again_are_replaced(crew, database):  # C16
    worker = crew.start("--processes", "2")
    until(lambda: len(children_of(worker)) == 2)
    for n in range(10):
        victim = min(children_of(worker))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        until(lambda victim=victim: not lives(victim))
        task = database.add("count", f"round {n}")
        until(lambda task=task: database.states(task) == ["COMPLETED"], 5)
        until(lambda: sum(map(lives, children_of(worker))) == 2, 10)
    assert database.value("SELECT sum(failures + lost + interrupted) FROM dhara_task") == 0


def test_a_child_that_cannot_be_started_now_is_started_later(crew, database):
    worker = crew.start("--processes", "1")
    child = where_after(database, "first")
    limits = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (4, limits[1]))  # no socket, no pipe, no process
    os.kill(child, signal.SIGKILL)
    until(lambda: not children_of(worker))
    for_as_long_as(0.6, lambda: not children_of(worker))
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, limits)
    task = database.add("count", "second")
    until(lambda: database.states(task) == ["COMPLETED"], 10)


def where_after(database, name):
    database.add("count", name)
    return where(database, name)


@pytest.mark.parametrize("how", ["garble_nicely", pytest.param("garble", marks=SLOW)])
def test_a_function_that_writes_into_the_pipe_harms_itself_alone(crew, database, how):
    worker = crew.start("--processes", "1")
    task = add(database, how, "garbles", max_attempts=1)
    until(lambda: database.effects("garbles") == 1)
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 10)
    until(lambda: database.states(task)[0] in ("DEAD", "COMPLETED"), 10)
    assert worker.stop() == 0


def test_an_import_that_does_not_end_costs_no_slot(crew, database):
    crew.start("--processes", "1")
    task = database.add("x", function="tests.app.hangs.x", timeout=1.0, max_attempts=1)
    until(lambda: database.states(task) == ["RUNNING"])
    until(lambda: database.states(task) == ["DEAD"])
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 10)


def test_signals_and_alarms_that_a_function_leaves_do_not_reach_the_next(crew, database):
    worker = crew.start("--processes", "1")
    add(database, "leave_signals", "leaves")
    child = where(database, "leaves")
    task = database.add("nap", "next", 2.0, max_attempts=1)
    until(lambda: database.effects("next") == 1)
    os.kill(child, signal.SIGTERM)  # the supervisor tells all of its processes
    until(lambda: database.states(task)[0] in ("DEAD", "COMPLETED"))
    assert database.states(task) == ["COMPLETED"]
    assert worker.lives


def test_what_a_function_has_started_dies_with_it(crew, database, tmp_path):
    crew.start("--processes", "1")
    task = add(database, "with_helper", "helper", str(tmp_path / "pid"), timeout=1.5, max_attempts=1)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    helper = int((tmp_path / "pid").read_text())
    assert lives(helper)
    until(lambda: database.states(task) == ["DEAD"])
    until(lambda: not lives(helper), 5)


def test_a_child_that_dies_after_its_commit_has_done_its_work(crew, database):
    worker = crew.start("--processes", "1")
    task = add(database, "die_after_commit", "kept")
    after = database.add("count", "after")
    until(lambda: database.states(task, after) == ["COMPLETED"] * 2)
    row = database.task(task)
    assert (row["failures"], database.history(task)) == (0, [])
    assert database.rows("SELECT text FROM app_note") == [("kept",)]
    assert worker.stop() == 0
    assert "failed in attempt" not in worker.log
    assert database.rows("SELECT sum(completed), sum(failed + interrupted) FROM dhara_minute") == [(2, 0)]


@pytest.fixture
def asks_at_start(tmp_path):
    """Settings with an app that asks the database while it is set up."""
    app = tmp_path / "asker"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "apps.py").write_text(
        "import warnings\nfrom django.apps import AppConfig\n"
        "class Asker(AppConfig):\n    name = 'asker'\n    def ready(self):\n"
        "        from django.db import connection\n        warnings.simplefilter('ignore', RuntimeWarning)\n"
        "        connection.cursor().execute('SELECT 1')\n"
    )
    (tmp_path / "asking.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'asker.apps.Asker']\n"
        "DATABASES['default']['CONN_MAX_AGE'] = None\n"
    )
    return {"DJANGO_SETTINGS_MODULE": "asking", "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}


def test_a_connection_from_the_start_of_a_child_is_as_clean_as_any(crew, database, asks_at_start):  # J03, J12
    crew.start("--processes", "1", **asks_at_start)
    first = add(database, "change_schema")
    until(lambda: database.states(first) == ["COMPLETED"])
    second = add(database, "schema", "next")
    until(lambda: database.states(second) == ["COMPLETED"])
    assert database.task(second)["result"] == "public"


@pytest.mark.slow
def test_children_share_no_session(crew, database, asks_at_start):  # J03
    crew.start("--processes", "3", **asks_at_start)
    tasks = [database.add("queries", 5, 1000) for _ in range(60)]
    until(lambda: set(database.states(*tasks)) == {"COMPLETED"}, 30)


def test_a_function_that_is_gone_in_a_new_child_is_left_to_others(crew, database, tmp_path):
    module = tmp_path / "moving.py"
    module.write_text("from django_dhara import task\n@task\ndef here():\n    return 1\n")
    worker = crew.start("--processes", "1", PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    first = database.add("here", function="moving.here")
    until(lambda: database.states(first) == ["COMPLETED"])
    module.write_text("from django_dhara import task\n\n\n")
    [child] = children_of(worker)
    os.kill(child, signal.SIGKILL)
    until(lambda: not lives(child))
    second = database.add("here", function="moving.here")
    until(lambda: database.task(second)["lease"] >= 1)
    worker.says("It is left to other workers")
    assert "None It is left" not in worker.log


def test_an_idle_worker_with_children_stops_at_once(crew, database):
    worker = crew.start("--processes", "2")
    until(lambda: len(children_of(worker)) == 2)
    where_after(database, "ready")
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 2


def test_the_slot_is_back_soon(crew, database):
    crew.start("--processes", "1")
    where_after(database, "ready")
    task = database.add("spin", "busy", 600, timeout=1.0, max_attempts=1)
    until(lambda: database.states(task) == ["DEAD"])
    dead = time.monotonic()
    database.add("count", "after")
    until(lambda: database.effects("after") == 1)
    assert time.monotonic() - dead < 5  # a second on a quiet machine


def test_a_child_makes_room_for_a_new_one_after_its_tasks(crew, database):
    worker = crew.start("--processes", "1", "--max-tasks-per-child", "2")
    tasks = [database.add("count", "counted") for _ in range(5)]
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 5)
    ran = database.rows("SELECT worker, count(*) FROM app_effect GROUP BY worker ORDER BY min(id)")
    assert [number for _, number in ran] == [2, 2, 1]
    assert not lives(int(ran[0][0]))
    assert worker.stop() == 0


def test_code_that_was_replaced_under_a_worker_ends_it(crew, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'worker.child' in str(sys.orig_argv):\n"
        "    import django_dhara\n    django_dhara.__version__ = '99'\n"
    )
    worker = crew.run("dhara_worker", "--processes", "1", PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    worker.says("was the code replaced under this worker?", seconds=30)
    assert worker.ends() == 1
