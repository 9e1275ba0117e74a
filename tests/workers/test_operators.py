"""Operators cancel and retry while real workers run: every answer is true, and stays true."""

import random
from collections import Counter
from contextlib import suppress
from time import monotonic

import pytest
from django.db import transaction

from django_dhara import cancel, revive
from django_dhara.models import Task
from django_dhara.states import State
from tests.workers.harness import for_as_long_as, until

STARTED = "SELECT count(*) FROM dhara_task WHERE lease > 0 OR state = 'CANCELED'"
UNFINISHED = "SELECT count(*) FROM dhara_task WHERE state IN ('PENDING', 'RUNNING')"
COMMANDS = "SELECT count(*) FROM dhara_command WHERE verb = 'CANCEL'"


def brief(database, name, obedient):
    return database.add("brief", name, obedient, function="tests.app.awkward.brief", max_attempts=3)


def cancel_at_random_moments(database, tasks):
    """Each is canceled when about as many others have started as stand before it, a few more or fewer."""
    answers = {}
    for place in sorted(range(len(tasks)), key=lambda place: place + random.uniform(-60, 60)):
        until(lambda place=place: database.value(STARTED) >= min(place - 20, len(tasks) - 40), 60)
        answers[tasks[place]] = cancel(tasks[place])
    return answers


def runs_of(database):
    return dict(database.rows("SELECT task, count(*) FROM app_effect GROUP BY task"))


@pytest.mark.parametrize("many", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_answer_to_a_cancel_is_true_in_the_end(crew, database, many):  # G01
    for _ in range(2):
        crew.start("--concurrency", "5")
    with database.connection.transaction():  # nobody has begun before the first cancel comes
        tasks = [brief(database, f"task {n}", bool(n % 2)) for n in range(many)]
    answers = cancel_at_random_moments(database, tasks)
    until(lambda: database.value(UNFINISHED) == 0, 60)
    told, runs = Counter(answers.values()), runs_of(database)
    assert min(told[answer] for answer in ("canceled", "requested", "finished")) >= many / 50, told
    assert sum(told.values()) == many
    ends = {"canceled": {"CANCELED"}, "requested": {"CANCELED", "COMPLETED"}, "finished": {"COMPLETED"}}
    for n, task in enumerate(tasks):
        row = database.task(task)
        assert row["state"] in ends[answers[task]], answers[task]
        assert runs.get(f"task {n}", 0) <= 1, "it ran twice"
        assert answers[task] != "canceled" or f"task {n}" not in runs, "it ran although it was canceled"
    canceled = sum(state == "CANCELED" for state in database.states(*tasks))
    assert told["canceled"] < canceled <= told["canceled"] + told["requested"]
    assert database.value(COMMANDS) == told["requested"]
    assert cancel(tasks[0]) == "finished"


def test_a_canceled_run_that_then_fails_is_canceled_and_not_retried(crew, database, tmp_path):  # G02
    task = database.add("hold_and_fail", "held", str(tmp_path / "go"), function="tests.app.awkward.hold_and_fail")
    worker = crew.start()
    until(lambda: database.effects("held") == 1)
    assert cancel(task) == "requested"
    until(lambda: database.value("SELECT answer FROM dhara_command") == "told")
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["CANCELED"])
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])
    for_as_long_as(1.0, lambda: database.effects("held") == 1)
    assert database.history(task) == ["FAILED"]
    assert worker.lives


def test_a_row_that_is_canceled_under_its_run_stays_so_and_the_worker_lives(crew, database, tmp_path):  # G05
    task = database.add("hold", "held", str(tmp_path / "go"))
    worker = crew.start()
    until(lambda: database.effects("held") == 1)
    database.rows("UPDATE dhara_task SET state = 'CANCELED', finished_at = now() WHERE id = %s", task)
    before = database.task(task)
    (tmp_path / "go").touch()
    until(lambda: database.effects("held ended") == 1)
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])
    assert database.task(task) == before
    assert worker.stop() == 0
    assert database.task(task) == before


def test_a_worker_that_is_full_and_only_polls_learns_of_a_cancel_in_time(crew, database):  # G06
    worker = crew.start("--concurrency", "1", DHARA_NOTIFY="false", DHARA_POLL_SECONDS=1)
    task = database.add("until_told", "told", "canceled")
    waiting = database.add("count", "waiting")
    until(lambda: database.effects("told") == 1)
    assert database.states(task, waiting) == ["RUNNING", "PENDING"], "there was a free slot"
    assert not database.sessions("dhara listen%"), "it listens"
    asked = monotonic()
    assert cancel(task) == "requested"
    until(lambda: database.effects("told was told") == 1)
    assert monotonic() - asked < 5 * 1.0  # the poll interval, on a busy machine
    until(lambda: database.states(task, waiting) == ["CANCELED", "COMPLETED"])
    assert worker.lives


def test_a_running_task_is_not_revived(crew, database, tmp_path):  # G11
    task = database.add("hold", "held", str(tmp_path / "go"))
    crew.start()
    crew.start()
    until(lambda: database.effects("held") == 1)
    assert revive(task) is False
    assert cancel(task) == "requested"
    assert revive(task) is False
    for_as_long_as(1.0, lambda: (database.task(task)["lease"], database.states(task)) == (1, ["RUNNING"]))
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.effects("held") == 1


class Undone(Exception):
    pass


def test_a_cancel_that_is_rolled_back_reaches_nobody(crew, database, tmp_path):  # G13
    task = database.add("hold", "held", str(tmp_path / "go"))
    waiting = database.add("count", "waiting", run_at="2999-01-01")
    worker = crew.start()
    until(lambda: database.effects("held") == 1)
    with suppress(Undone), transaction.atomic():
        assert (cancel(task), cancel(waiting)) == ("requested", "canceled")
        other = database.add("count", "meanwhile")
        until(lambda: database.states(other) == ["COMPLETED"])  # the worker has claimed, and read its commands
        raise Undone
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.states(waiting) == ["PENDING"]
    assert database.value(COMMANDS) == 0
    assert [database.task(id_)["cancel_requested_at"] for id_ in (task, waiting)] == [None, None]
    assert worker.lives


def test_a_retry_that_is_rolled_back_starts_nothing(crew, database):  # G13
    task = database.add("count", "again", state="DEAD", finished_at="yesterday")
    crew.start()
    with suppress(Undone), transaction.atomic():
        assert revive(task) is True
        assert Task.objects.get(id=task).state == State.PENDING
        other = database.add("count", "meanwhile")
        until(lambda: database.states(other) == ["COMPLETED"])
        raise Undone
    for_as_long_as(1.0, lambda: database.states(task) == ["DEAD"])
    assert database.effects("again") == 0
    assert revive(task) is True
    until(lambda: database.states(task) == ["COMPLETED"])
