"""Clocks: a worker's own decides nothing, the database's may step, and nothing starts before its time."""

import tempfile
from pathlib import Path

import pytest

from tests.workers.conftest import an_own_server
from tests.workers.harness import Crew, for_as_long_as, until

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
needs_faketime = pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime (apt-get install faketime)")
FAKED = {"LD_PRELOAD": str(LIBRARY), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

#: It waits by select(): libfaketime does not know the clock of time.sleep().
WATCH = """
import select
from datetime import UTC, datetime
from django_dhara import task
from tests.app.tasks import mark

@task
def now():
    return datetime.now(UTC).timestamp()

@task
def wait(name, seconds):
    mark(name)
    select.select([], [], [], seconds)
"""


@needs_faketime
@pytest.mark.parametrize("step", ["+3h", pytest.param("-3h", marks=pytest.mark.slow)])
def test_a_worker_whose_clock_is_wrong_behaves_like_any_other(crew, database, tmp_path, step):  # H11
    (tmp_path / "watch.py").write_text(WATCH)
    path = f"{tmp_path}:{Path.cwd()}"
    right = crew.start("--queues", "right")
    long = database.add("doze", "long", 5.0, queue="right")
    until(lambda: database.effects("long") == 1)
    wrong = crew.start("--queues", "wrong", PYTHONPATH=path, FAKETIME=step, **FAKED)
    time = database.add("x", function="watch.now", queue="wrong")
    until(lambda: database.states(time) == ["COMPLETED"])
    [[off]] = database.rows(
        "SELECT abs(%s - extract(epoch FROM clock_timestamp())) > 10000", database.task(time)["result"]
    )
    assert off, "its clock is right"
    tomorrow = database.add("count", "too early", queue="wrong", run_at="tomorrow")
    own = database.add("own", "own", 3.0, function="watch.wait", queue="wrong")
    until(lambda: database.states(long, own) == ["COMPLETED"] * 2)
    assert [database.effects(name) for name in ("long", "own", "too early")] == [1, 1, 0]
    assert database.states(tomorrow) == ["PENDING"]
    lost = database.add("doze", "lost", 60.0, queue="right", max_attempts=1)
    until(lambda: database.effects("lost") == 1)
    right.kill()
    until(lambda: database.states(lost) == ["DEAD"])  # found by the one whose clock is wrong
    assert database.history(lost) == ["LOST"]
    assert wrong.stop() == 0


@pytest.fixture
def moved_clock(tmp_path, monkeypatch):
    """A server whose clock a test can move, with a crew."""
    clock = Path(tempfile.mkstemp(prefix="dhara-clock-")[1])
    clock.write_text("+0\n")
    clock.chmod(0o644)  # the server has an account of its own
    for name, value in FAKED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    with an_own_server(before_migrate=monkeypatch.undo) as server:
        crew = Crew(tmp_path, server.connect(), **server.env)
        yield crew, server.database, lambda to: clock.write_text(f"{to}\n")
        crew.end()
        server.database.close()
    clock.unlink()


@needs_faketime
@pytest.mark.slow
def test_a_step_of_the_databases_clock_costs_one_more_run_at_most(moved_clock):  # H12
    crew, database, move_clock = moved_clock
    workers = [crew.start() for _ in range(2)]
    hours = "SELECT extract(epoch FROM clock_timestamp()) / 3600"
    before = database.value(hours)
    tasks = [database.add("doze", f"forward {n}", 4.0) for n in range(6)]
    until(lambda: all(database.effects(f"forward {n}") for n in range(6)))
    move_clock("+1h")
    assert 0.9 < database.value(hours) - before < 1.1, "the clock did not step"
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 6, 30)
    assert max(database.effects(f"forward {n}") for n in range(6)) <= 2
    assert max(database.task(task)["lost"] for task in tasks) <= 1
    tasks = [database.add("doze", f"backward {n}", 4.0) for n in range(6)]
    until(lambda: all(database.effects(f"backward {n}") for n in range(6)))
    move_clock("+0")
    after = database.add("count", "after")
    until(lambda: database.states(after, *tasks) == ["COMPLETED"] * 7, 30)
    assert [database.effects(f"backward {n}") for n in range(6)] == [1] * 6
    assert [worker.stop() for worker in workers] == [0, 0]


def test_a_task_that_waits_longer_than_a_lease_runs_once_and_not_too_early(crew, database):  # H13
    task = database.value(
        "INSERT INTO dhara_task (id, backend, queue, function, payload, run_at) SELECT gen_random_uuid(), 'default',"
        " 'default', 'tests.app.tasks.count', '{\"args\": [\"once\"], \"kwargs\": {}}', now() + interval '4 seconds'"
        " RETURNING id"
    )
    for _ in range(3):
        crew.start(DHARA_LEASE_SECONDS=1)
    until(lambda: database.states(task) == ["COMPLETED"])
    row = database.task(task)
    assert row["started_at"] >= row["run_at"]
    for_as_long_as(1.5, lambda: database.effects("once") == 1)


def test_a_short_delay_does_not_wait_for_the_next_poll(crew, database):  # H16
    crew.start("--poll-interval", "20")
    ready = database.add("count", "ready")
    until(lambda: database.states(ready) == ["COMPLETED"])
    task = database.value(
        "INSERT INTO dhara_task (id, backend, queue, function, payload, run_at) SELECT gen_random_uuid(), 'default',"
        " 'default', 'tests.app.tasks.count', '{\"args\": [\"soon\"], \"kwargs\": {}}', now() + interval '0.6 seconds'"
        " RETURNING id"
    )
    database.rows("SELECT pg_notify('dhara_default', 'default')")
    until(lambda: database.states(task) == ["COMPLETED"], 8)
    late = "SELECT extract(epoch FROM started_at - run_at) FROM dhara_task WHERE id = %s"
    assert 0 <= database.value(late, task) < 1.0
