"""One worker with one slot starts the tasks of a queue by priority, then by age, then by id."""

import random
from datetime import UTC, datetime, timedelta

from tests.workers.harness import until


def add_in_any_order(database, count):
    """Tasks of few priorities and few ages, so that each rule decides for some; all are committed at once."""
    ago = [datetime.now(UTC) - timedelta(seconds=seconds) for seconds in (1000, 2000, 3000)]
    with database.connection.transaction():
        for n in range(count):
            database.add("count", f"{n}", priority=random.choice((-5, 0, 0, 7)), run_at=random.choice(ago))


def due_order(database):
    order = "ORDER BY priority DESC, run_at, id"
    return [name for [name] in database.rows(f"SELECT payload->'args'->>0 FROM dhara_task {order}")]


def started_order(database):
    return [name for [name] in database.rows("SELECT task FROM app_effect WHERE task !~ 'ended' ORDER BY id")]


def test_one_slot_starts_tasks_in_their_order(crew, database):
    add_in_any_order(database, 200)
    crew.start("--concurrency", "1")
    until(lambda: database.states() == {"COMPLETED"})
    assert started_order(database) == due_order(database)


def test_one_slot_starts_what_came_in_while_it_was_busy_in_its_order(crew, database, tmp_path):
    crew.start("--concurrency", "1")
    database.add("hold", "first", str(tmp_path / "go"), priority=9)
    until(lambda: database.effects("first") == 1)
    add_in_any_order(database, 100)
    (tmp_path / "go").touch()
    until(lambda: database.states() == {"COMPLETED"})
    assert started_order(database) == due_order(database)


def test_tasks_that_a_worker_hands_back_keep_their_place(crew, database):
    add_in_any_order(database, 400)
    stopped = crew.start("--concurrency", "1")
    until(lambda: database.effects() > 0)
    assert stopped.stop() == 0
    assert "PENDING" in database.states()
    crew.start("--concurrency", "1")
    until(lambda: database.states() == {"COMPLETED"})
    assert started_order(database) == due_order(database)
