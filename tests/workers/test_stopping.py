"""Signals, deploys and burst runs: nothing is stranded, no attempt is spent, and the exit code is the truth."""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from example_project.localdb.place import PROJECT
from tests.workers.harness import for_as_long_as, until

SLOW = pytest.mark.slow


def unharmed(row):
    """No attempt was spent."""
    return (row["failures"], row["lost"]) == (0, 0)


@pytest.mark.parametrize("trials", [3, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_sigterm_in_the_middle_of_claims_strands_nothing(crew, database, trials):  # C01
    for trial in range(trials):
        database.rows(
            "INSERT INTO dhara_task (id, backend, queue, function, payload) SELECT gen_random_uuid(), 'default',"
            " 'default', 'tests.app.tasks.add', '{\"args\": [1], \"kwargs\": {}}' FROM generate_series(1, 2000)"
        )
        worker = crew.start("--concurrency", "4", "--drain-timeout", "5")
        pause = random.uniform(0, 0.3)
        ends = time.monotonic() + pause
        until(lambda ends=ends: time.monotonic() > ends)
        assert worker.stop(20) == 0, f"trial {trial}, after {pause:.3f} s"
        assert database.value("SELECT count(*) FROM dhara_task WHERE state = 'RUNNING'") == 0
        assert database.value("SELECT count(*) FROM dhara_task WHERE failures + lost + interrupted > 0") == 0
        database.rows("DELETE FROM dhara_task WHERE state <> 'COMPLETED' OR random() < 0.9")


@pytest.mark.fast
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW)])
@pytest.mark.parametrize("notify", ["true", pytest.param("false", marks=SLOW)])
def test_an_idle_worker_stops_at_once(crew, database, number, notify):  # C02
    worker = crew.start("--poll-interval", "30", DHARA_NOTIFY=notify)
    begun = time.monotonic()
    worker.signal(number)
    assert worker.ends(5) == 0
    assert time.monotonic() - begun < 2
    stopped = "SELECT draining_at <= stopped_at FROM dhara_worker WHERE pid = %s"
    assert database.value(stopped, worker.pid)


def test_a_worker_that_waits_for_the_database_stops_at_once(server_crew, server):  # C02
    worker = server_crew.start()
    until(lambda: server.database.sessions("dhara listen%"))
    server.stop()
    worker.says("has lost the database")
    for_as_long_as(1.5, lambda: worker.lives)  # pauses between its tries grow
    begun = time.monotonic()
    assert worker.stop(5) == 0
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("signals", [2, pytest.param(1, marks=SLOW)])
def test_what_outlives_the_drain_is_handed_back_and_starts_elsewhere(crew, database, signals, tmp_path):  # C03
    worker = crew.start("--drain-timeout", "1" if signals == 1 else "60")
    other = crew.start("--queues", "idle")
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    old = database.task(task)
    third = crew.start()
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    if signals == 2:
        worker.says("drains: 1 functions are running")
        worker.signal(signal.SIGTERM)
    until(lambda: database.effects("held") == 2, 1 + 5 * 2)
    assert worker.ends() == 0
    assert time.monotonic() - begun < 1 + 5
    row = database.task(task)
    assert (row["lease"], row["interrupted"], row["worker_id"]) == (old["lease"] + 1, 1, crew.id_of(third))
    assert unharmed(row)
    assert row["run_at"] == old["run_at"]
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert other.lives


def test_functions_get_the_drain_time_and_nothing_new_starts(crew, database):  # C03
    worker = crew.start("--concurrency", "1")
    first = database.add("nap", "first", 1.5)
    until(lambda: database.effects("first") == 1)
    second = database.add("count", "second")
    assert worker.stop() == 0
    assert database.states(first, second) == ["COMPLETED", "PENDING"]
    assert (database.effects("second"), database.task(second)["lease"]) == (0, 0)


@pytest.mark.slow
def test_tasks_that_wait_in_the_worker_go_back_at_once(crew, database):  # C03
    worker = crew.start("--concurrency", "2")
    for n in range(1000):
        database.add("count", f"short {n}") if n < 300 else None
    until(lambda: database.effects() > 100)
    long = [database.add("nap", f"long {n}", 1.0, priority=9) for n in range(2)]
    until(lambda: database.effects("long 0") + database.effects("long 1") == 2)
    assert worker.stop() == 0
    assert database.states(*long) == ["COMPLETED"] * 2
    assert database.value("SELECT count(*) FROM dhara_task WHERE state = 'RUNNING'") == 0
    assert database.value("SELECT sum(failures + lost + interrupted) FROM dhara_task") == 0


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=SLOW)])
@pytest.mark.slow
def test_a_command_to_drain_is_no_second_signal(crew, database, times):  # C03
    worker = crew.start()
    task = database.add("nap", "once", 2.0)
    until(lambda: database.effects("once") == 1)
    for _ in range(times):
        database.rows("INSERT INTO dhara_command (worker_id, verb) VALUES (%s, 'DRAIN')", crew.id_of(worker))
    worker.says("drains: 1 functions are running")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert (database.states(task), database.task(task)["interrupted"]) == (["COMPLETED"], 0)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_it_stops_as_process_1_of_a_container_too(crew, database):  # C05
    outer = crew.run("dhara_worker", "--name", "one", prefix=("unshare", "--pid", "--fork", "--kill-child"))
    task = database.add("leave_zombie", "zombie")
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.rows("SELECT pid FROM dhara_worker WHERE name = 'one'") == [(1,)]
    [inner] = subprocess.run(["pgrep", "-P", str(outer.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(inner), signal.SIGTERM)
    assert outer.ends(10) == 0


@pytest.mark.slow
def test_an_interrupted_coroutine_is_handed_back_at_once(crew, database):  # C06
    worker = crew.start("--drain-timeout", "0.5")
    task = database.add("anap", "once", 60.0)
    until(lambda: database.effects("once") == 1)
    assert worker.stop() == 0
    row = database.task(task)
    assert (row["state"], row["interrupted"], row["worker_id"]) == ("PENDING", 1, None)
    assert unharmed(row)
    crew.start("--concurrency", "1")
    until(lambda: database.effects("once") == 2, 5)


@pytest.mark.slow
def test_deploys_cost_no_attempts(crew, database):  # C07
    task = database.add("nap", "once", 1.5, max_attempts=3)
    for number in range(1, 6):
        worker = crew.start("--drain-timeout", "0")
        until(lambda number=number: database.effects("once") == number)
        assert worker.stop() == 0
        assert database.task(task)["interrupted"] == number
    crew.start()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert unharmed(database.task(task))
    assert database.history(task) == []


@pytest.mark.slow
def test_a_task_that_never_fits_into_a_deploy_is_dead_in_the_end(crew, database):  # C08
    task = database.add("nap", "once", 60.0)
    for number in range(1, 4):
        worker = crew.start("--drain-timeout", "0", DHARA_MAX_INTERRUPTED=3)
        until(lambda number=number: database.effects("once") == number)
        assert worker.stop() == 0
    row = database.task(task)
    assert (row["state"], row["interrupted"], row["error_class"].rpartition(".")[2]) == ("DEAD", 3, "TaskInterrupted")
    assert database.history(task) == ["INTERRUPTED"]


def test_an_old_worker_leaves_unknown_functions_to_a_new_one(crew, database):  # C11
    tasks = [database.add("x", "one", function="app_of_tomorrow.tasks.new") for _ in range(100)]
    old = crew.start()
    until(lambda: "PENDING" in database.states() and database.value("SELECT max(lease) FROM dhara_task") >= 1)
    healthy = database.add("count", "healthy")
    until(lambda: database.states(healthy) == ["COMPLETED"])
    old.says("app_of_tomorrow.tasks.new", "It is left to other workers")
    assert old.log.count("It is left to other workers") == 1
    assert set(database.states(*tasks)) <= {"PENDING"}
    assert database.value("SELECT sum(lease) FROM dhara_task") < 120
    database.rows("UPDATE dhara_task SET run_at = now() WHERE state = 'PENDING'")
    (crew._folder / "app_of_tomorrow").mkdir()
    (crew._folder / "app_of_tomorrow" / "tasks.py").write_text(
        "from django_dhara import task\n@task\ndef new(name):\n    return name\n"
    )
    crew.start(PYTHONPATH=f"{crew._folder}{os.pathsep}{PROJECT}")
    until(lambda: set(database.states(*tasks)) == {"COMPLETED"})
    assert database.value("SELECT sum(failures + lost + interrupted) FROM dhara_task") == 0


def test_a_path_that_leads_nowhere_waits_and_harms_nobody(crew, database):  # C12
    worker = crew.start("--concurrency", "1")
    gone = [
        database.add("x", function="tests.app.tasks.renamed"),
        database.add("x", function="tests.app.gone.f"),
        database.add("x", function="os.getcwd"),
        database.add("x", function="nonsense"),
    ]
    healthy = database.add("count", "healthy")
    until(lambda: database.states(healthy) == ["COMPLETED"])
    until(lambda: database.states(*gone) == ["PENDING"] * 4)
    worker.says("tests.app.tasks.renamed", "tests.app.gone", "os.getcwd", "nonsense")
    assert worker.lives


def test_a_module_that_exits_or_imports_itself_fails_the_run(crew, database):  # C13
    worker = crew.start("--concurrency", "1")
    exits = database.add("x", function="tests.app.exits.f", max_attempts=1)
    circle = database.add("x", function="tests.app.circular.f", max_attempts=1)
    healthy = database.add("count", "healthy")
    until(lambda: database.states(exits, circle, healthy) == ["DEAD", "DEAD", "COMPLETED"])
    errors = dict(database.rows("SELECT task_id, error_class || traceback FROM dhara_attempt"))
    assert "SystemExit" in errors[exits]
    assert "ImportError" in errors[circle]
    assert worker.log.count("tests.app.exits is imported") == 1
    assert worker.stop() == 0


def test_a_function_whose_module_is_slow_does_not_start_after_it_was_handed_back(crew, database):  # C13
    worker = crew.start("--concurrency", "1", "--drain-timeout", "0")
    slow = database.add("late", "body", function="tests.app.slow.late")
    until(lambda: database.effects("import of slow") == 1)
    assert worker.stop() == 0
    row = database.task(slow)
    assert (row["state"], row["interrupted"], row["lost"]) == ("PENDING", 0, 0)
    assert database.effects("body") == 0


@pytest.mark.slow
def test_an_import_that_does_not_end_counts_as_overdue(crew, database):  # C13
    crew.start("--concurrency", "1")
    slow = database.add("late", "body", function="tests.app.slow.late", timeout=0.5, max_attempts=1)
    until(lambda: database.effects("import of slow") == 1)
    healthy = database.add("count", "healthy")
    until(lambda: database.states(slow, healthy) == ["DEAD", "COMPLETED"], 3)
    assert database.history(slow) == ["TIMED_OUT"]
    for_as_long_as(4.0, lambda: database.effects("body") == 0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("asleep_in_database", (30.0,)),
        pytest.param("leave_thread", ("stays", 30.0), marks=SLOW),
        pytest.param("wait_in_c", ("stays", 30.0), marks=SLOW),
        pytest.param("wait_for_socket", ("stays",), marks=SLOW),
    ],
)
def test_what_functions_leave_running_does_not_keep_the_process(crew, database, name, arguments):
    worker = crew.start("--drain-timeout", "0.5")
    database.add(name, *arguments)
    until(lambda: database.effects() == 1)
    begun = time.monotonic()
    assert worker.stop(20) == 0
    assert time.monotonic() - begun < 0.5 + 5


def test_signals_at_the_very_end_do_not_change_the_exit_code(crew, database):
    worker = crew.start()
    worker.signal(signal.SIGTERM)
    while worker.lives:
        worker.signal(signal.SIGTERM)
    assert worker.popen.returncode == 0


@pytest.mark.fast
def test_burst_ends_when_nothing_is_ready(crew, database):
    later = database.add("count", "later", run_at="2999-01-01")
    tasks = [database.add("nap", f"nap {n}", 0.6) for n in range(5)]
    worker = crew.run("dhara_worker", "--burst", "--concurrency", "2")
    assert worker.ends(20) == 0
    assert database.states(later, *tasks) == ["PENDING"] + ["COMPLETED"] * 5


def test_a_worker_with_all_slots_full_takes_the_next_task_at_once(crew, database):
    tasks = [database.add("nap", f"nap {n}", 0.3) for n in range(8)]
    crew.start("--concurrency", "1", "--poll-interval", "5", DHARA_NOTIFY="false")
    until(lambda: database.effects("nap 0") == 1, 10)
    begun = time.monotonic()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 8, 60)
    assert time.monotonic() - begun < 5.5  # 2.4 s of work; a poll missed would be 5 s more


@pytest.mark.slow
def test_a_worker_that_stops_after_so_many_tasks_drains_and_strands_nothing(crew, database):  # D13
    tasks = [database.add("nap", f"nap {n}", 0.5) for n in range(20)]
    for number in (10, 20):
        worker = crew.run("dhara_worker", "--max-tasks", "10", "--concurrency", "4")
        assert worker.ends(30) == 0
        assert database.states(*tasks).count("COMPLETED") == number
    assert database.value("SELECT sum(failures + lost + interrupted) FROM dhara_task") == 0
    assert database.value("SELECT max(lease) FROM dhara_task") == 1
