"""The management commands as a person meets them: flags, environment, exit codes, words; and what a context tells."""

import os
import signal
import time
from datetime import UTC, datetime

import pytest

from django_dhara import cancel, pause, resume
from tests.workers.harness import for_as_long_as, until


def answer(database, worker_id, verb, argument=None):
    """Give a command to a worker and wait for what it says."""
    statement = "INSERT INTO dhara_command (worker_id, verb, argument) VALUES (%s, %s, %s::jsonb) RETURNING id"
    id_ = database.value(statement, worker_id, verb, argument)
    until(lambda: database.value("SELECT answered_at IS NOT NULL FROM dhara_command WHERE id = %s", id_))
    return database.value("SELECT answer FROM dhara_command WHERE id = %s", id_)


@pytest.mark.parametrize(
    ("flags", "env", "word"),
    [
        (["--concurrency", "0"], {}, "--concurrency"),
        pytest.param(["--concurrency", "many"], {}, "--concurrency", marks=pytest.mark.slow),
        pytest.param(["--poll-interval", "nan"], {}, "--poll-interval", marks=pytest.mark.slow),
        pytest.param(["--drain-timeout", "-1"], {}, "--drain-timeout", marks=pytest.mark.slow),
        (["--max-tasks", "0"], {}, "--max-tasks"),
        pytest.param(["--queues", "a,,b"], {}, "--queues", marks=pytest.mark.slow),
        (["--queues", "a", "--exclude-queues", "b"], {}, "contradict"),
        pytest.param(["--backend", "nobody"], {}, "TASKS has no such alias; it has 'default'", marks=pytest.mark.slow),
        pytest.param(["--name", "x" * 300], {}, "--name", marks=pytest.mark.slow),
        (["--name", "\udcff"], {}, "--name"),
        pytest.param(["--queues", "\udcff"], {}, "--queues", marks=pytest.mark.slow),
        (["--speed", "9"], {}, "--speed"),
        pytest.param([], {"DHARA_CONCURRENCY": "many"}, "DHARA_CONCURRENCY", marks=pytest.mark.slow),
        ([], {"DHARA_LEASE_SECONDS": "0"}, "DHARA_LEASE_SECONDS"),
        ([], {"DHARA_BURST": "perhaps"}, "DHARA_BURST"),
        pytest.param([], {"DHARA_MAX_TASKS": "1.5"}, "DHARA_MAX_TASKS", marks=pytest.mark.slow),
        pytest.param([], {"DHARA_NOTIFY": "loud"}, "DHARA_NOTIFY", marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value)[:40].encode("ascii", "replace").decode() if isinstance(value, list) else None,
)
def test_a_bad_value_is_one_line_and_an_exit_code(crew, database, flags, env, word):
    command = crew.run("dhara_worker", *flags, **env)
    assert command.ends() in (1, 2)
    lines = [line for line in command.log.splitlines() if line.strip() and "W006" not in line and "HINT" not in line]
    lines = [line for line in lines if "System check identified" not in line and line not in ("WARNINGS:", "ERRORS:")]
    assert len(lines) == 1, command.log
    assert word in lines[0]
    assert database.value("SELECT count(*) FROM dhara_worker") == 0


@pytest.mark.fast
def test_what_a_worker_was_told_stands_in_its_row(crew, database):
    env = {"DHARA_CONCURRENCY": 7, "DHARA_QUEUES": "a, b", "DHARA_LEASE_SECONDS": 3}
    worker = crew.start("--name", "the first", "--concurrency", "3", **env)
    row = database.rows("SELECT name, queues, concurrency, lease_seconds, backend, pid FROM dhara_worker")
    assert row == [("the first", ["a", "b"], 3, 3.0, "default", worker.pid)]  # a flag wins over the environment
    worker.says("Worker the first serves queues a, b of 'default': 3 threads")
    assert worker.stop() == 0
    worker.says("Worker the first stopped.")


@pytest.mark.slow
def test_a_worker_serves_its_queues_and_no_others(crew, database):
    named = [database.add("count", queue, queue=queue) for queue in ("mail", "slow", "other")]
    first = crew.run("dhara_worker", "--burst", "--queues", "mail")
    assert first.ends(20) == 0
    assert database.states(*named) == ["COMPLETED", "PENDING", "PENDING"]
    second = crew.run("dhara_worker", "--burst", DHARA_EXCLUDE_QUEUES="slow")
    assert second.ends(20) == 0
    assert database.states(*named) == ["COMPLETED", "PENDING", "COMPLETED"]


def test_a_burst_of_an_empty_queue_ends_at_once(crew, database):
    command = crew.run("dhara_worker", "--burst")
    assert command.ends(10) == 0


def test_a_worker_waits_for_migrations_and_says_so(crew, database):
    database.rows("ALTER TABLE django_migrations RENAME TO django_migrations_later")
    try:
        worker = crew.run("dhara_worker")
        worker.says("Waiting for migrations of dhara: 0001_initial", "manage.py migrate")
        for_as_long_as(1.0, lambda: worker.lives and not crew.id_of(worker))
    finally:
        database.rows("ALTER TABLE django_migrations_later RENAME TO django_migrations")
    until(lambda: crew.id_of(worker))
    assert worker.log.count("Waiting for migrations") == 1
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_burst_does_not_wait_for_a_database_that_is_away(crew):
    """Nobody watches a burst, so it fails, and its caller sees the exit code."""
    burst = crew.run("dhara_worker", "--burst", DATABASE_URL="postgresql://postgres@127.0.0.1:1/nowhere")
    assert burst.ends(40) == 1
    burst.says("a burst does not wait for it")


@pytest.mark.slow
def test_a_change_of_code_drains_and_starts_anew(crew, database, tmp_path):
    module = tmp_path / "watched.py"
    module.write_text("from tests.settings import *\n")
    where = f"{tmp_path}{os.pathsep}{__file__.rpartition('/tests/')[0]}"
    env = {"DJANGO_SETTINGS_MODULE": "watched", "PYTHONPATH": where, "DHARA_TEST_DEBUG": 1}
    worker = crew.start("--name", "reloading", **env)
    task = database.add("nap", "once", 2.0)
    until(lambda: database.effects("once") == 1)
    later = time.time() + 10
    os.utime(module, (later, later))
    worker.says("changed, restarting", seconds=20)
    assert database.states(task) == ["COMPLETED"]
    until(lambda: database.value("SELECT count(*) FROM dhara_worker") == 2)
    assert database.value("SELECT count(DISTINCT pid) FROM dhara_worker") == 1
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])
    assert worker.stop() == 0


@pytest.mark.slow
def test_the_reaper_alone_rescues_and_stops(crew, database):
    worker = crew.start("--no-reap")
    task = database.add("nap", "once", 60.0)
    until(lambda: database.effects("once") == 1)
    worker.kill()
    reaper = crew.run("dhara_reaper")
    reaper.says(f"Rescued {task} tests.app.tasks.nap: PENDING")
    assert database.task(task)["lost"] == 1
    assert reaper.stop() == 0


def test_the_reaper_looks_once_when_asked_to(crew, database):
    dead = {"lease": 1, "lease_until": "yesterday", "worker_id": "0" * 31 + "1"}
    task = database.add("count", "x", state="RUNNING", **dead)
    reaper = crew.run("dhara_reaper", "--once")
    assert reaper.ends() == 0
    assert database.states(task) == ["PENDING"]
    assert str(task) in reaper.log


def test_prune_counts_or_deletes_what_is_old(crew, database):
    for days in (1, 20):
        for state in ("COMPLETED", "DEAD"):
            ended = datetime.fromtimestamp(time.time() - days * 86_400, UTC)
            database.add("count", "x", state=state, lease=1, finished_at=ended)
    count = crew.run("dhara_prune", "--dry-run")
    assert count.ends() == 0
    assert "COMPLETED: 1 would be deleted" in count.log
    assert database.value("SELECT count(*) FROM dhara_task") == 4
    prune = crew.run("dhara_prune", "--dead-days", "10")
    assert prune.ends() == 0
    assert database.rows("SELECT state FROM dhara_task ORDER BY state") == [("COMPLETED",), ("DEAD",)]


def test_a_worker_writes_down_what_its_threads_do(crew, database):
    worker = crew.start()
    database.add("nap", "sleeps here", 3.0)
    until(lambda: database.effects("sleeps here") == 1)
    stacks = answer(database, crew.id_of(worker), "STACKS")
    assert any("MainThread" in name for name in stacks)
    assert any("time.sleep(seconds)" in stack for stack in stacks.values())


@pytest.mark.slow
def test_a_worker_drains_when_told_to(crew, database):
    worker = crew.start()
    task = database.add("nap", "once", 1.0)
    until(lambda: database.effects("once") == 1)
    assert answer(database, crew.id_of(worker), "DRAIN") == "draining"
    assert worker.ends() == 0
    assert database.states(task) == ["COMPLETED"]


def test_a_canceled_task_is_told_and_does_not_run_again(crew, database):
    crew.start()
    told = database.add("until_told", "told", "canceled")
    success = database.add("nap", "success", 1.5)
    until(lambda: database.effects() == 2)
    assert [cancel(task) for task in (told, success)] == ["requested", "requested"]
    until(lambda: database.states(told, success) == ["CANCELED", "COMPLETED"])
    assert database.effects("told was told") == 1
    assert cancel(told) == "finished"


@pytest.mark.slow
def test_a_paused_queue_rests_over_restarts(crew, database):
    worker = crew.start()
    pause("default")
    until(lambda: database.value("SELECT paused_at IS NOT NULL FROM dhara_queue"))
    task, other = database.add("count", "paused"), database.add("count", "other", queue="other")
    until(lambda: database.states(other) == ["COMPLETED"])
    assert worker.stop() == 0
    second = crew.start()
    for_as_long_as(1.0, lambda: database.states(task) == ["PENDING"])
    resume("default")
    until(lambda: database.states(task) == ["COMPLETED"], 5)
    assert second.lives


def test_a_checkpoint_is_kept_for_the_next_attempt(crew, database):
    crew.start(DHARA_BACKOFF_BASE_SECONDS=0.01)
    task = database.add("tell", "told", max_attempts=3)
    until(lambda: database.states(task) == ["COMPLETED"])
    row = database.task(task)
    assert row["result"] == [{"attempt": 1}, 2, 2]
    assert (row["checkpoint"], row["progress"]) == ({"attempt": 2}, {"before": {"attempt": 1}})


def test_the_last_progress_of_a_short_function_is_kept(crew, database):
    crew.start()
    task = database.add("report_progress", 1.0)
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.task(task)["progress"] == 1.0


@pytest.mark.slow
def test_a_checkpoint_waits_for_somebody_who_holds_the_row(crew, database, tmp_path):
    crew.start(DHARA_LEASE_SECONDS=10)
    task = database.add("save", "run", str(tmp_path / "go"), "far")
    until(lambda: database.effects("run") == 1)
    with database.connection.transaction():
        database.rows("SELECT FROM dhara_task WHERE id = %s FOR UPDATE", task)
        other = type(database)(**database.parameters)
        (tmp_path / "go").touch()
        for_as_long_as(1.0, lambda: other.states(task) == ["RUNNING"])
        other.close()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert (database.task(task)["checkpoint"], database.task(task)["failures"]) == ("far", 0)


@pytest.mark.slow
def test_a_checkpoint_of_a_late_run_is_refused(crew, database, tmp_path):
    zombie = crew.start("--no-reap", "--drain-timeout", "1")
    task = database.add("save", "run", str(tmp_path / "go"), "far")
    until(lambda: database.effects("run") == 1)
    with zombie.frozen():
        reaper = crew.run("dhara_reaper")
        until(lambda: database.states(task) == ["PENDING"])
        pause("default")
        (tmp_path / "go").touch()
    zombie.says("Lease lost")
    assert zombie.stop() == 0
    assert (database.task(task)["checkpoint"], database.effects("run saved")) == (None, 0)
    assert reaper.lives


def test_a_function_is_told_that_the_worker_stops(crew, database):
    worker = crew.start("--drain-timeout", "10")
    task = database.add("until_told", "told", "stopping")
    until(lambda: database.effects("told") == 1)
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 5
    assert (database.states(task), database.effects("told was told")) == (["DEAD"], 1)


@pytest.mark.slow
def test_a_function_is_told_that_its_lease_is_at_risk(crew, database, proxy):
    worker = crew.start(**proxy.env)
    task = database.add("until_told_by_file", "told", "lease_at_risk")
    until(lambda: database.effects("told") == 1)
    proxy.freeze()
    worker.says("lease_at_risk was seen")
    proxy.thaw()
    until(lambda: database.states(task) == ["COMPLETED"])


@pytest.mark.slow
def test_interrupted_by_the_keyboard_it_drains(crew, database):
    worker = crew.start()
    task = database.add("nap", "once", 1.0)
    until(lambda: database.effects("once") == 1)
    worker.signal(signal.SIGINT)
    assert worker.ends() == 0
    assert database.states(task) == ["COMPLETED"]
