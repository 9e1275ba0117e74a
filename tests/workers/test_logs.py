"""What real workers write: one line for each record, in JSON too, and few lines however much goes wrong."""

import json

import pytest

from tests.workers.harness import until

#: The log as a project without LOGGING has it: ours in the terminal.
SILENT = {"DHARA_TEST_LOGGING": "none"}


def told(worker):
    """What a worker that logs in JSON has written, each line an object."""
    return [json.loads(line) for line in worker.log.splitlines()]


def events_of(worker):
    return [each.get("event") for each in told(worker)]


@pytest.mark.fast
@pytest.mark.parametrize("env", [{}, SILENT], ids=["LOGGING of the project", "no LOGGING"])
def test_in_json_every_line_is_an_object(crew, database, env):
    worker = crew.start("--log-format", "json", **env)
    dead = database.add("fail", max_attempts=1, queue="a\nb")
    until(lambda: database.states(dead) == ["DEAD"])
    assert worker.stop() == 0
    lines = {each.get("event"): each for each in told(worker)}
    assert lines["worker.started"]["message"].startswith(
        f"Worker {lines['worker.started']['worker']} serves all queues"
    )
    assert lines["run.failed"]["task_id"] == str(dead)
    assert lines["run.failed"]["queue"] == "a\\nb"
    assert lines["worker.stopped"]["exit_code"] == 0


def test_child_processes_write_json_too(crew, database):
    worker = crew.start("--processes", "1", "--log-format", "json", **SILENT)
    done = database.add("warn_in_log")
    until(lambda: database.states(done) == ["COMPLETED"])
    assert worker.stop() == 0
    [line] = [each for each in told(worker) if each["logger"] == "shop"]
    assert (line["level"], line["message"], line["task_id"]) == ("WARNING", "from a\nfunction", str(done))


@pytest.mark.fast
def test_every_run_is_a_line_at_debug_and_none_above(crew, database):
    worker = crew.start("--log-format", "json", DHARA_TEST_LOG_LEVEL="DEBUG")
    done = database.add("add", 1)
    until(lambda: database.states(done) == ["COMPLETED"])
    worker.stop()
    [line] = [each for each in told(worker) if each.get("event") == "run.ended"]
    assert line["level"] == "DEBUG"
    assert (line["task_id"], line["function"], line["queue"]) == (str(done), "tests.app.tasks.add", "default")
    assert (line["attempt"], line["outcome"], line["state"]) == (1, "complete", "COMPLETED")
    assert line["worker_id"] == str(crew.id_of(worker))
    assert 0 <= line["duration"] < 5


def test_a_thousand_tasks_that_die_alike_are_a_thousand_short_lines(crew, database):
    for _ in range(10):
        database.rows(
            "INSERT INTO dhara_task (id, backend, queue, function, payload, max_attempts) "
            "SELECT gen_random_uuid(), 'default', 'default', 'tests.app.tasks.fail', "
            """'{"args": [], "kwargs": {}}', 1 FROM generate_series(1, 100)"""
        )
    worker = crew.start("--log-format", "json")
    until(lambda: database.value("SELECT count(*) FROM dhara_task WHERE state = 'DEAD'") == 1000, 60)
    assert worker.stop() == 0
    lines = told(worker)
    dead = [each for each in lines if each.get("event") == "task.dead"]
    assert len(dead) == 1000
    assert {each["level"] for each in dead} == {"ERROR"}
    assert sum("exception" in each for each in lines) == 1
    failed = [each for each in lines if each.get("event") == "run.failed"]
    repeated = [each for each in lines if each.get("event") == "run.failed.repeated"]
    assert len(failed) + sum(each["count"] for each in repeated) == 1000
    assert len(failed) + len(repeated) <= 4


def test_a_database_that_is_away_does_not_flood_the_log(crew, database, proxy):
    worker = crew.start("--log-format", "json", **proxy.env)
    proxy.refuses = True
    assert proxy.cut()
    until(lambda: proxy.refused >= 8, 60)
    proxy.refuses = False
    until(lambda: "database.back" in events_of(worker))
    lines = told(worker)
    assert [each["event"] for each in lines if each.get("event", "").startswith("database")] in (
        ["database.lost", "database.back"],
        ["database.lost", "database.lost", "database.back"],
    )
    assert len(lines) < 12


def test_a_database_that_comes_and_goes_does_not_flood_the_log(crew, database, proxy):
    worker = crew.start("--log-format", "json", **proxy.env)
    for _ in range(20):
        until(proxy.cut)
        until(lambda: database.sessions("dhara worker%"))
    until(lambda: "database.back" in events_of(worker))
    away = events_of(worker).count("database.lost")
    assert away == events_of(worker).count("database.back") <= 2
    assert len(told(worker)) < 15


def test_a_table_that_is_missing_does_not_flood_the_log(crew, database):
    worker = crew.start("--log-format", "json")
    database.rows("ALTER TABLE dhara_command RENAME TO gone")
    try:
        until(lambda: "statement.failed" in events_of(worker))
        before = database.value("SELECT now()")
        until(lambda: database.value("SELECT now() - %s > interval '5 s'", before))
    finally:
        database.rows("ALTER TABLE gone RENAME TO dhara_command")
    assert events_of(worker).count("statement.failed") <= 3
    done = database.add("add", 1)
    until(lambda: database.states(done) == ["COMPLETED"])
