"""What a run does right now: its worker tells, without its control loop waiting for anything."""

import json
import re
from time import monotonic

import pytest

from django_dhara.models import Command
from tests.test_admin import a_client, shown
from tests.workers.harness import for_as_long_as, until
from tests.workers.test_commands import answer

PROCESSES = ("--processes", "1")


def ask(database, task, lease=None):
    """What the worker of this task answers."""
    row = database.task(task)
    argument = json.dumps({"task": str(task), "lease": row["lease"] if lease is None else lease})
    return answer(database, row["worker_id"], "STACKS", argument)


def begun(database, name, function, *arguments):
    """A task whose function has left its mark."""
    task = database.add(function, name, *arguments)
    until(lambda: database.effects(name) == 1)
    return task


HUNG = [
    ((), "nap", "thread", "time.sleep(seconds)"),
    ((), "anap", "event loop", "await asyncio.sleep(seconds)"),
    ((), "ablock", "event loop", "time.sleep(seconds)  # noqa"),
    (PROCESSES, "nap", "child process", "time.sleep(seconds)"),
    (PROCESSES, "spin", "child process", "in spin"),
    (PROCESSES, "wait_in_c", "child process", "usleep("),
]


@pytest.mark.parametrize(("flags", "function", "where", "line"), HUNG)
def test_a_run_is_shown_by_itself_within_a_second(crew, database, flags, function, where, line):
    crew.start(*flags)
    task = begun(database, "here", function, 4.0)
    other = begun(database, "other", function, 4.0) if not flags and function == "nap" else None
    asked = monotonic()
    told = ask(database, task)
    assert monotonic() - asked < 5.0  # a second on an idle machine
    assert told["where"].startswith(where)
    assert line in told["stack"]
    assert "tests/app/tasks.py" in told["stack"]
    if other:
        assert "time.sleep(seconds)" in ask(database, other)["stack"]


@pytest.mark.parametrize(("flags", "function", "where", "line"), HUNG)
def test_the_traceback_of_an_overdue_run_ends_where_it_hung(crew, database, flags, function, where, line):
    crew.start(*flags)
    task = database.add(function, "here", 4.0, timeout=1.0, max_attempts=1)
    until(lambda: database.history(task) == ["TIMED_OUT"])
    [[traceback]] = database.rows("SELECT traceback FROM dhara_attempt WHERE task_id = %s", task)
    first, *frames, last = traceback.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "django_dhara.errors.TaskTimeout: no end after 1 s")
    assert "django_dhara/execution.py" in frames[0]
    assert line in "\n".join(frames)
    assert "tests/app/tasks.py" in "\n".join(frames)


def test_without_a_word_of_its_child_a_timeout_is_one_all_the_same(crew, database):
    crew.start(*PROCESSES)
    task = database.add("hold_interpreter", "held", 30.0, timeout=1.0, max_attempts=1)
    until(lambda: database.history(task) == ["TIMED_OUT"])
    told = database.value("SELECT traceback FROM dhara_attempt WHERE task_id = %s", task)
    assert told == "django_dhara.errors.TaskTimeout: no end after 1 s\n"


def test_a_function_that_is_still_imported_is_shown(crew, database):
    crew.start(*PROCESSES)
    task = database.add("late", "x", function="tests.app.slow.late")
    until(lambda: database.effects("import of slow") == 1)
    assert "time.sleep(4)" in ask(database, task)["stack"]


@pytest.mark.parametrize("flags", [(), PROCESSES], ids=["thread", "process"])
def test_of_a_run_that_is_over_or_another_workers_it_says_so(crew, database, flags):
    crew.start(*flags)
    task = begun(database, "here", "nap", 1.5)
    assert ask(database, task, lease=99) == {"problem": "not running here"}
    worker = database.task(task)["worker_id"]
    until(lambda: database.states(task) == ["COMPLETED"])
    argument = json.dumps({"task": str(task), "lease": 1})
    assert answer(database, worker, "STACKS", argument) == {"problem": "not running here"}


def test_a_child_that_cannot_answer_is_told_of_and_holds_up_nobody(crew, database):
    crew.start("--processes", "2")
    held = begun(database, "held", "hold_interpreter", 4.0)
    assert ask(database, held) == {"problem": "silent"}
    assert database.states(held) == ["RUNNING"]  # that was the fault: it could not answer while it ran
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 5)
    until(lambda: database.states(held) == ["COMPLETED"], 20)
    # The late answer was nobody's: the same child goes on with another one's.
    again = begun(database, "again", "nap", 2.0)
    assert "time.sleep(seconds)" in ask(database, again)["stack"]


def test_many_questions_at_once_are_all_answered(crew, database):
    crew.start()
    task = begun(database, "here", "nap", 4.0)
    row = database.task(task)
    argument = json.dumps({"task": str(task), "lease": row["lease"]})
    database.rows(
        "INSERT INTO dhara_command (worker_id, verb, argument)"
        " SELECT %s, 'STACKS', %s::jsonb FROM generate_series(1, 200)",
        row["worker_id"], argument,
    )  # fmt: skip
    until(lambda: database.value("SELECT count(*) FROM dhara_command WHERE answer ? 'stack'") == 200)
    for_as_long_as(0.5, lambda: database.states(task) == ["RUNNING"])


def test_an_operator_sees_what_a_task_does(crew, database):
    """From the button to the page, with a real worker: asked by one process, answered by another."""
    client = a_client("view_task", "view_stacks")
    crew.start()
    task = begun(database, "here", "nap", 4.0)
    response = client.post(f"/admin/dhara/task/{task}/stack/")
    asked, command = monotonic(), Command.objects.get().pk
    until(lambda: "time.sleep(seconds)" in shown(client.get(f"/admin/dhara/task/{task}/stack/{command}/")))
    assert monotonic() - asked < 5.0  # a second on an idle machine
    page = client.get(response["Location"]).content.decode()
    assert re.search(r'<pre class="dhara-own">[^<]*tests/app/tasks.py[^<]*time.sleep\(seconds\)', page)
    assert re.search("frames? of django_dhara", page)
