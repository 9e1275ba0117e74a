"""Workers meet what PostgreSQL, JSON or Python cannot hold: no worker stops, no work is done twice for it."""

import psycopg
import pytest

from django_dhara.compat import task_backends
from tests.app.awkward import _RETURNED, receive
from tests.workers.harness import DJANGOS_LOGGER, until


def add(database, name, *args, **columns):
    """A task of tests/app/awkward.py."""
    return database.add(name, *args, function=f"tests.app.awkward.{name}", **columns)


def result_of(database, task):
    return database.value("SELECT result::text FROM dhara_task WHERE id = %s", task)


def error_of(database, task):
    """Class and message of the newest failed run."""
    rows = database.rows("SELECT error_class, message FROM dhara_attempt WHERE task_id = %s ORDER BY id", task)
    return rows[-1]


def lives(*workers):
    return [worker.lives for worker in workers] == [True] * len(workers)


# ------------------------------------------------------------------------------------------------------- results

#: What is stored of each awkward result.
STORED = {
    "nul": '"a\ufffdb"',
    "nul inside": '{"k": ["\ufffd"]}',
    "nul in a key": '{"k\ufffd": 1}',
    "surrogate": '"\ufffd"',
    "nan": '{"x": null, "score": null}',
    "another nan": "[null, 2.5]",
    **dict.fromkeys(
        ("no float", "object", "generator", "queryset", "coroutine", "lazy", "exception", "forger"), "null"
    ),
}


@pytest.mark.fast
@pytest.mark.parametrize("function", ["give", "agive"])
def test_a_function_with_an_awkward_result_runs_once_and_is_completed(crew, database, function):  # E03, E05, E17
    assert set(STORED) == set(_RETURNED)
    tasks = {what: add(database, function, what) for what in STORED}
    worker = crew.start()
    until(lambda: database.states(*tasks.values()) == ["COMPLETED"] * len(tasks), 30)
    assert {what: result_of(database, task) for what, task in tasks.items()} == STORED
    assert {what: database.effects(what) for what in tasks} == dict.fromkeys(tasks, 1)
    assert database.value("SELECT max(lease) FROM dhara_task") == 1
    worker.says(*(f"The result of tests.app.awkward.{function} {task} was" for task in tasks.values()))
    assert "never awaited" not in worker.log
    assert lives(worker)


def test_a_result_above_the_limit_is_left_out_and_the_work_not_repeated(crew, database):  # E14
    task = add(database, "receive", "x" * 500)
    worker = crew.start(DHARA_MAX_RESULT_BYTES=400)
    until(lambda: database.states(task) == ["COMPLETED"])
    assert result_of(database, task) == "null"
    worker.says("was stored as null: result", "the limit is 400")
    assert database.task(task)["lease"] == 1


def test_progress_and_checkpoints_that_cannot_be_stored_are_refused_by_name(crew, database):  # E04
    tasks = {
        (verb, what): add(database, "say", verb, what, max_attempts=1)
        for verb in ("progress", "save_checkpoint")
        for what in ("nul", "nul in a key", "nan")
    }
    worker = crew.start()
    until(lambda: database.states(*tasks.values()) == ["DEAD"] * len(tasks))
    for (verb, what), task in tasks.items():
        kind, message = error_of(database, task)
        assert kind == "django_dhara.errors.PayloadError"
        assert message.startswith(verb.removeprefix("save_"))
        assert ("nan (float)" if what == "nan" else "a NUL character") in message
    assert lives(worker)


# ------------------------------------------------------------------------------------------------------- arguments

ARRIVE = {
    "tuple": (1, (2,)),
    "integer keys": {2: "a", None: "b", True: "c"},
    "large float": {"x": 1e16, "y": [1e23]},
    "minus zero": {"y": -0.0},
    "long number": 10**4000,
    "bytes": b"abc",
    "text": "é\u2028😀\x7f\x01",
    "depth": [[[[[[[[[[]]]]]]]]]],
    "empty": {},
}


def test_a_function_receives_in_a_worker_what_it_receives_in_a_test(crew, database, settings):  # E07, E08
    real = {name: receive.enqueue(value, inside=[value]) for name, value in ARRIVE.items()}
    crew.start()
    until(lambda: database.states() == {"COMPLETED"})
    settings.TASKS = {"default": {**settings.TASKS["default"], "BACKEND": "django_dhara.testing.InlineBackend"}}
    for name, value in ARRIVE.items():
        inline = receive.enqueue(value, inside=[value])
        assert database.task(real[name].id)["result"] == inline.return_value, name
        assert real[name].args == inline.args, name
    arrived = database.task(real["large float"].id)["result"]
    assert "int 10000000000000000" in str(arrived)
    assert "float 0.0" in str(database.task(real["minus zero"].id)["result"])


# ------------------------------------------------------------------------------------------------------- rows


UNREADABLE = {
    "a number of 5,001 digits": ("('[1' || repeat('0', 5000) || ']')", "not an object but a list|digits"),
    "such a number as an argument": (
        """('{"args": [1' || repeat('0', 5000) || '], "kwargs": {}}')""",
        "digits",
    ),
    "3,000 levels": ("""('{"args": ' || repeat('[', 3000) || repeat(']', 3000) || ', "kwargs": {}}')""", "nested"),
    "a text": ("'\"text\"'", "not an object but a string"),
    "a list": ("'[1]'", "not an object but a list"),
    "null": ("'null'", "not an object but null"),
    "no arguments": ("'{}'", "args is not a list but null or missing"),
    "arguments as text": ("""'{"args": "x", "kwargs": {}}'""", "args is not a list but a string"),
    "arguments as object": ("""'{"args": {}, "kwargs": {}}'""", "args is not a list but an object"),
    "no named arguments": ("""'{"args": [], "kwargs": null}'""", "kwargs is not an object but null"),
    "named arguments as list": ("""'{"args": [], "kwargs": []}'""", "kwargs is not an object but a list"),
}


def test_a_row_that_cannot_be_read_is_dead_with_its_reason_and_harms_nobody(crew, database):  # E09, E10, E12
    rows = {name: add(database, "receive", run_at="2000-01-01") for name in UNREADABLE}
    for name, (payload, _) in UNREADABLE.items():
        database.rows(f"UPDATE dhara_task SET payload = {payload}::jsonb WHERE id = %s", rows[name])
    workers = [crew.start("--concurrency", "1") for _ in range(2)]
    healthy = [database.add("count", f"healthy {n}") for n in range(10)]
    until(lambda: database.states(*healthy) == ["COMPLETED"] * 10)
    until(lambda: database.states(*rows.values()) == ["DEAD"] * len(rows))
    for name, (_, reason) in UNREADABLE.items():
        kind, message = error_of(database, rows[name])
        assert kind == "django_dhara.errors.PayloadError", name
        assert any(part in message for part in reason.split("|")), (name, message)
        assert database.value("SELECT lease FROM dhara_task WHERE id = %s", rows[name]) == 1
        assert database.history(rows[name]) == ["FAILED"]
    assert lives(*workers)
    assert [worker.stop() for worker in workers] == [0, 0]


def test_a_row_whose_arguments_do_not_fit_fails_as_a_call_would(crew, database):  # E12
    payloads = ['{"args": [1, 2, 3], "kwargs": {}}', '{"args": [1], "kwargs": {"no such name": 1}}']
    tasks = [database.add("add", max_attempts=1) for _ in payloads]
    for task, payload in zip(tasks, payloads, strict=True):
        database.rows("UPDATE dhara_task SET payload = %s::jsonb WHERE id = %s", payload, task)
    worker = crew.start()
    until(lambda: database.states(*tasks) == ["DEAD"] * 2)
    assert [error_of(database, task)[0] for task in tasks] == ["builtins.TypeError"] * 2
    assert lives(worker)


PATHS = ["no.such", "add", "os.system", "tests.app.tasks", "tests.app.models.Effect", "..", "a..b", "a" * 10_000]
PATHS += ["tests.app.tasks.add.func", "tests.app.tasks.\nERROR forged", "\x1b[31m", "é.ü"]


def test_a_row_whose_path_leads_nowhere_waits_and_harms_nobody(crew, database):  # E12, C12
    rows = [database.add("", function=path, run_at="2000-01-01") for path in PATHS]
    worker = crew.start("--concurrency", "1")
    healthy = database.add("count", "healthy")
    until(lambda: database.states(healthy) == ["COMPLETED"])
    unknown = "SELECT count(*) FROM dhara_task WHERE state = 'PENDING' AND lease > 0 AND run_at > now()"
    until(lambda: database.value(unknown) == len(rows))
    assert database.value("SELECT sum(failures + lost) FROM dhara_task") == 0
    assert lives(worker)
    assert "\x1b" not in worker.log
    assert "\nERROR forged" not in worker.log


NO_ROWS = {
    "run_at": ["'-infinity'", "'infinity'", "'4000-01-01 BC'", "'20000-01-01'"],
    "enqueued_at": ["'-infinity'", "'infinity'"],
    "started_at": ["'infinity'"],
    "attempted_at": ["'-infinity'"],
    "cancel_requested_at": ["'infinity'"],
    "lease": ["9223372036854775807", "-1"],
    "failures": ["2147483647", "-1"],
    "lost": ["2147483647", "-1"],
    "interrupted": ["2147483647"],
    "max_attempts": ["2147483647", "0"],
    "state": ["'HALF'", "'RUNNING'", "'DEAD'"],
    "function": ["''"],
    "queue": ["''"],
    "priority": ["101", "-101"],
}


@pytest.mark.fast
def test_a_row_that_would_stop_every_claim_cannot_be_written(database):  # E12
    task = database.add("count", "x")
    for column, values in NO_ROWS.items():
        for value in values:
            with pytest.raises(psycopg.errors.CheckViolation, match="dhara_task_"):
                database.rows(f"UPDATE dhara_task SET {column} = {value} WHERE id = %s", task)
    for column in ("payload", "function", "queue", "backend", "state", "run_at", "max_attempts"):
        with pytest.raises(psycopg.errors.NotNullViolation):
            database.rows(f"UPDATE dhara_task SET {column} = NULL WHERE id = %s", task)


def test_odd_values_that_a_row_may_have_harm_nobody(crew, database):  # E12
    changes = [
        "timeout = 'NaN'",
        "timeout = 'infinity'",
        "metadata = '5'",
        "run_at = '0002-01-01'",
        f"lease = {10**18 - 1}",
    ]
    changes += [
        "enqueued_at = '9998-12-31'",
        f"failures = {10**9 - 1}",
        "metadata = ('[1' || repeat('0', 5000) || ']')::jsonb",
    ]
    tasks = [database.add("count", f"odd {n}", run_at="2000-01-01") for n in range(len(changes))]
    for task, change in zip(tasks, changes, strict=True):
        database.rows(f"UPDATE dhara_task SET {change} WHERE id = %s", task)
    worker = crew.start("--concurrency", "1")
    healthy = database.add("count", "healthy")
    until(lambda: database.states(healthy, *tasks) == ["COMPLETED"] * (1 + len(tasks)))
    assert [database.effects(f"odd {n}") for n in range(len(changes))] == [1] * len(changes)
    assert lives(worker)


@pytest.mark.parametrize("argument", ["'[1' || repeat('0', 5000) || ']'", "repeat('[', 3000) || repeat(']', 3000)"])
def test_a_command_that_cannot_be_read_is_answered_and_harms_nobody(crew, database, argument):  # E09, E10
    worker = crew.start()
    database.rows(
        f"INSERT INTO dhara_command (worker_id, verb, argument) VALUES (%s, 'CANCEL', ({argument})::jsonb)",
        crew.id_of(worker),
    )
    healthy = database.add("count", "healthy")
    until(lambda: database.states(healthy) == ["COMPLETED"])
    until(lambda: database.value("SELECT count(answer) FROM dhara_command") == 1)
    assert lives(worker)


def test_large_rows_leave_no_memory_behind(crew, database):  # E14
    worker, size, megabytes = crew.start("--concurrency", "1"), 10_000_000, []
    assert size > task_backends["default"].settings.max_payload_bytes, "an enqueue would take it"
    payload = "jsonb_build_object('args', jsonb_build_array(repeat('x', %s)), 'kwargs', '{}'::jsonb)"
    for n in range(12):
        task = add(database, "measure", run_at="2999-01-01")
        database.rows(f"UPDATE dhara_task SET payload = {payload}, run_at = now() WHERE id = %s", size + n, task)
        until(lambda task=task: database.states(task) == ["COMPLETED"], 30)
        assert result_of(database, task) == str(size + n)
        megabytes.append(worker.megabytes)
    assert megabytes[-1] - megabytes[3] < 3 * size / 1e6, megabytes  # eight more rows: one copy of each is 80 MB


# ------------------------------------------------------------------------------------------------------- exceptions

FAILURES = {
    "demanding": ("tests.app.awkward.Demanding", "with arguments (7)"),
    "local": ("tests.app.awkward._local.<locals>.Local", "of a function's own"),
    "with a file": ("builtins.ValueError", "holds a file"),
    "unspeakable": ("tests.app.awkward.Unspeakable", "<the message could not be read: RuntimeError>"),
}


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_awkward_exception_is_recorded_as_text_with_and_without_a_retry(crew, database, attempts):  # E15, E16
    tasks = {how: add(database, "fail_by", how, max_attempts=attempts) for how in FAILURES}
    worker = crew.start()
    until(lambda: database.states(*tasks.values()) == ["DEAD"] * len(tasks))
    assert {how: error_of(database, task) for how, task in tasks.items()} == FAILURES
    assert {how: database.effects(how) for how in tasks} == dict.fromkeys(tasks, attempts)
    assert lives(worker)


def test_names_and_messages_forge_no_line_of_the_log(crew, database):  # K11
    tasks = [add(database, "fail_by", "forger", max_attempts=2), add(database, "give", "forger")]
    database.rows("UPDATE dhara_task SET queue = %s", "q\nERROR forged: a queue\x1b[31m")
    worker = crew.start()
    until(lambda: database.states(*tasks) == ["DEAD", "COMPLETED"])
    worker.says("failed in attempt 1", "was stored as null", "state=FAILED")
    # What follows that last line is the traceback, as Python's logging writes it for Django.
    log = worker.log.partition(f"ERROR {DJANGOS_LOGGER}")[0]
    assert log.count("forged: a message") == log.count("forged: a class") == 1, "it was not logged at all"
    assert "\nERROR forged" not in log
    assert "\x1b" not in log
