"""Functions in child processes: what threads promise holds there too, and a function cannot outlive its timeout."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.workers.harness import for_as_long_as, until


@pytest.fixture
def worker(crew):
    return crew.start("--processes", "1")


def children_of(worker):
    """The processes that a worker has started."""
    return {int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()} | {
        int(pid)
        for thread in Path(f"/proc/{worker.pid}/task").iterdir()
        for pid in (thread / "children").read_text().split()
    }


def lives(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def where(database, name):
    """The process in which a function left its mark."""
    until(lambda: database.effects(name))
    return int(database.value("SELECT worker FROM app_effect WHERE task = %s ORDER BY id DESC LIMIT 1", name))


@pytest.mark.fast
def test_a_function_runs_in_a_child_with_its_arguments_and_result(worker, database):
    task, other = database.add("add", 2, 3), database.add("count", "here")
    until(lambda: database.states(task, other) == ["COMPLETED"] * 2)
    assert database.task(task)["result"] == 5
    assert where(database, "here") in children_of(worker)
    assert worker.stop() == 0


def test_async_functions_stay_in_the_parent(worker, database):
    until(lambda: children_of(worker))
    [child] = children_of(worker)
    os.kill(child, signal.SIGSTOP)
    task = database.add("acount", "async")
    until(lambda: database.states(task) == ["COMPLETED"])
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("spin", ["stuck", 600]),  # Python that never yields
        ("match", ["(a+)+$", "a" * 60 + "b"]),  # C that keeps the interpreter's lock
        ("wait_for_socket", ["stuck"]),  # the kernel
    ],
)
def test_a_function_that_never_ends_is_killed_at_its_deadline_and_its_slot_is_back(crew, database, name, args):  # C16
    worker = crew.start("--processes", "1")
    task = database.add(name, *args, timeout=1.0, max_attempts=1)
    until(lambda: database.states(task) == ["RUNNING"])
    [child] = children_of(worker)
    until(lambda: database.states(task) == ["DEAD"])
    killed = time.monotonic()
    until(lambda: not lives(child))
    after = database.add("add", 1, 1)
    until(lambda: database.states(after) == ["COMPLETED"])
    assert time.monotonic() - killed < 5  # a second on a quiet machine
    assert database.history(task) == ["TIMED_OUT"]
    assert worker.stop() == 0


def test_leases_are_renewed_while_a_child_keeps_its_interpreter(crew, database):
    crew.start("--processes", "1")
    other = crew.start("--processes", "1")
    task = database.add("match", "(a+)+$", "a" * 60 + "b", timeout=5.0, max_attempts=1)
    until(lambda: database.states(task) == ["RUNNING"])
    until(lambda: database.states(task) == ["DEAD"])
    row = database.task(task)
    assert (row["lease"], row["lost"], row["failures"]) == (1, 0, 1)  # a lease of 2 s, and nobody rescued it
    assert "Rescued" not in other.log


@pytest.mark.parametrize("how", ["die", "crash", "leave"])
def test_a_child_that_dies_costs_its_own_run_an_attempt_and_nothing_else(crew, database, how, tmp_path):  # J03
    worker = crew.start("--processes", "2")
    neighbour = database.add("hold", "neighbour", str(tmp_path / "go"))
    until(lambda: database.effects("neighbour") == 1)
    args = {"die": ["gone"], "crash": [], "leave": ["gone"]}[how]
    task = database.add({"leave": "exit_at_once"}.get(how, how), *args, max_attempts=1)
    until(lambda: database.states(task) == ["DEAD"])
    row = database.task(task)
    assert (row["failures"], row["lost"], row["error_class"]) == (1, 0, "django_dhara.errors.ChildDied")
    message = database.value("SELECT message FROM dhara_attempt WHERE task_id = %s", task)
    assert {"die": "SIGKILL", "crash": "SIGSEGV", "leave": "exit code 3"}[how] in message
    (tmp_path / "go").touch()
    until(lambda: database.states(neighbour) == ["COMPLETED"])
    assert database.task(neighbour)["lease"] == 1
    after = [database.add("add", 1, n) for n in range(4)]
    until(lambda: database.states(*after) == ["COMPLETED"] * 4)
    assert worker.stop() == 0


def test_a_child_that_died_while_it_was_idle_costs_nothing(worker, database):
    database.add("count", "first")
    child = where(database, "first")
    os.kill(child, signal.SIGKILL)
    until(lambda: not lives(child))
    task = database.add("count", "second")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert (database.task(task)["failures"], database.task(task)["lost"]) == (0, 0)
    assert where(database, "second") != child


@pytest.mark.slow
def test_a_hundred_idle_children_are_killed_and_each_is_replaced(crew, database):  # C16
    worker = crew.start("--processes", "2")
    for n in range(100):
        until(lambda: len(children_of(worker)) == 2)
        victim = sorted(children_of(worker))[n % 2]
        os.kill(victim, signal.SIGKILL)
        task = database.add("add", n, 0)
        until(lambda task=task: database.states(task) == ["COMPLETED"])
        until(lambda victim=victim: victim not in children_of(worker))
    assert database.value("SELECT sum(failures + lost) FROM dhara_task") == 0


def test_children_query_side_by_side_without_cross_talk(crew, database):  # J03
    crew.start("--processes", "4")
    tasks = [database.add("session_pid") for _ in range(200)]
    until(lambda: database.states() == {"COMPLETED"})
    assert len({database.task(task)["result"] for task in tasks[::5]} | {database.task(tasks[0])["result"]}) >= 2


@pytest.mark.parametrize("args", [["spin", "busy", 600], ["match", "(a+)+$", "a" * 60 + "b"]])
def test_no_child_outlives_a_killed_worker(worker, database, args):
    task = database.add(*args)
    until(lambda: database.states(task) == ["RUNNING"])
    [child] = children_of(worker)
    until(lambda: lives(child))
    os.kill(worker.pid, signal.SIGKILL)  # the worker alone, not its group
    until(lambda: not lives(child), 10)


@pytest.mark.fast
def test_a_drain_waits_for_the_function_and_children_end_with_the_worker(worker, database, tmp_path):
    task = database.add("hold", "held", str(tmp_path / "go"))
    child = where(database, "held")
    os.killpg(worker.pid, signal.SIGINT)  # Ctrl-C in a terminal
    worker.says("drains")
    os.kill(child, signal.SIGTERM)  # systemd tells all processes of a service
    for_as_long_as(0.5, lambda: database.states(task) == ["RUNNING"])
    (tmp_path / "go").touch()
    assert worker.ends() == 0
    assert database.states(task) == ["COMPLETED"]
    assert not lives(child)
    assert "Traceback" not in worker.log


def test_what_outlasts_the_drain_is_killed_and_released(crew, database, tmp_path):
    worker = crew.start("--processes", "1", "--drain-timeout", "0.5")
    task = database.add("spin", "busy", 600)
    child = where(database, "busy")
    assert worker.stop() == 0
    assert not lives(child)
    row = database.task(task)
    assert (row["state"], row["interrupted"], row["failures"]) == ("PENDING", 1, 0)


def test_a_canceled_function_is_stopped_where_it_stands(worker, database):
    task = database.add("nap", "asleep", 600)
    child = where(database, "asleep")
    worker_id = database.task(task)["worker_id"]
    cancel(database, task, worker_id)
    until(lambda: database.states(task) == ["CANCELED"], 4)
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])
    assert where(database, "after") == child  # it was not killed for that


def test_a_canceled_function_that_cannot_be_stopped_is_killed(worker, database):
    task = database.add("match", "(a+)+$", "a" * 60 + "b")
    until(lambda: database.states(task) == ["RUNNING"])
    [child] = children_of(worker)
    cancel(database, task, database.task(task)["worker_id"])
    until(lambda: database.states(task) == ["CANCELED"])
    until(lambda: not lives(child))


def cancel(database, task, worker_id):
    database.rows("UPDATE dhara_task SET cancel_requested_at = now() WHERE id = %s", task)
    argument = f'{{"task": "{task}", "lease": {database.task(task)["lease"]}}}'
    database.rows(
        "INSERT INTO dhara_command (worker_id, verb, argument) VALUES (%s, 'CANCEL', %s)", worker_id, argument
    )


def test_progress_and_checkpoints_come_through_and_are_kept_for_the_next_attempt(worker, database):
    task = database.add("tell", "told")
    until(lambda: database.states(task) == ["COMPLETED"])
    row = database.task(task)
    assert row["result"] == [{"attempt": 1}, 2, 2]
    assert row["checkpoint"] == {"attempt": 2}
    assert row["progress"] == {"before": {"attempt": 1}}


@pytest.mark.parametrize("attribute", ["stopping", "canceled"])
def test_the_context_hears_what_the_worker_knows(crew, database, attribute):
    worker = crew.start("--processes", "1")
    task = database.add("patient_until_told", "listening", attribute)
    until(lambda: database.effects("listening") == 1)
    if attribute == "canceled":
        cancel(database, task, crew.id_of(worker))
    else:
        worker.signal(signal.SIGTERM)
    until(lambda: database.effects("listening was told") == 1)


def test_an_atomic_function_commits_with_its_task_and_rolls_back_when_it_is_killed(worker, database):
    done, killed = database.add("atomic_note", "kept", 0), database.add("atomic_note", "lost", 600, timeout=1.0)
    until(lambda: database.states(done) == ["COMPLETED"])
    until(lambda: database.history(killed) == ["TIMED_OUT"])
    assert database.rows("SELECT text FROM app_note") == [("kept",)]


@pytest.mark.parametrize("how", ["value", "system_exit", "interrupt", "odd_str", "base"])
def test_whatever_a_function_raises_ends_its_run_and_not_the_child(worker, database, how):
    database.add("count", "before")
    child = where(database, "before")
    task = database.add("raise_oddly", how, max_attempts=1)
    until(lambda: database.states(task) == ["DEAD"])
    database.add("count", "after")
    assert where(database, "after") == child


def test_a_megabyte_goes_in_and_out(worker, database):
    task = database.add("echo_and_print", "é" * 400_000)
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.task(task)["result"] == "é" * 400_000
    worker.says("printed by a function")


@pytest.mark.parametrize("flags", [("--processes", "1"), ("--concurrency", "1")], ids=["processes", "threads"])
@pytest.mark.parametrize("name", ["fork_and_return", "fork_in_a_transaction"])
def test_a_fork_that_a_function_lets_run_on_settles_nothing(crew, database, flags, name):
    worker = crew.start(*flags, DHARA_TEST_DATABASE='{"CONN_MAX_AGE": null}')
    task = database.add(name, "forked", max_attempts=1)
    until(lambda: database.states(task) == ["COMPLETED"])
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])
    assert database.task(task)["result"] == "parent"
    assert database.value("SELECT count(*) FROM app_note") == (name == "fork_in_a_transaction")
    assert worker.stop() == 0
    until(lambda: not database.sessions("dhara %"))  # nobody is left who holds them open


def test_children_that_do_not_start_end_the_worker_with_a_reason(crew, database, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif 'worker.child' in str(sys.orig_argv): os._exit(9)\n")
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    worker = crew.run("dhara_worker", "--processes", "1", PYTHONPATH=path)
    worker.says("child processes do not start: exit code 9")
    assert worker.ends() == 1


def test_a_burst_waits_for_its_children(crew, database):
    tasks = [database.add("add", n, 0) for n in range(5)]
    worker = crew.run("dhara_worker", "--processes", "2", "--burst")
    assert worker.ends(30) == 0
    assert database.states(*tasks) == ["COMPLETED"] * 5


@pytest.mark.parametrize("value", ["-1", "1001", "two"])
def test_a_number_that_makes_no_sense_is_refused(crew, value):
    worker = crew.run("dhara_worker", "--processes", value)
    assert worker.ends() == 2
    assert "--processes" in worker.log
