"""Functions and rows that kill, hang, exit or flood: they harm themselves, and nobody else."""

import resource
import signal
from pathlib import Path

import pytest

from tests.app.tasks import _RAISED
from tests.workers.harness import until
from tests.workers.test_children import children_of

SLOW = pytest.mark.slow


def supervise(crew, database, task, *flags, most=12, **env):
    """Start a worker whenever the last one is dead, until the task is; returns how many died."""
    for deaths in range(most):
        worker = crew.start(*flags, **env)
        until(lambda worker=worker: not worker.lives or database.states(task) == ["DEAD"], 30)
        if worker.lives:
            return deaths
        assert worker.popen.returncode in (-signal.SIGKILL, -signal.SIGSEGV, 3), worker.log
    raise AssertionError("it was started again and again")


@pytest.mark.parametrize("name", ["die", *(pytest.param(name, marks=SLOW) for name in ("crash", "exit_at_once"))])
def test_a_function_that_kills_its_process_is_dead_after_its_budget(crew, database, name):  # D01, D07
    neighbours = [database.add("nap", f"neighbour {n}", 0.7) for n in range(6)]
    killer = database.add(name, *([] if name == "crash" else [name]))
    env = {"DHARA_LEASE_SECONDS": 1, "DHARA_MAX_LOST": 2}
    assert supervise(crew, database, killer, **env) == 2
    row = database.task(killer)
    assert (row["lost"], row["lease"], row["error_class"]) == (2, 2, "django_dhara.errors.WorkerLost")
    assert database.effects(name) == 2
    assert database.history(killer) == ["LOST"] * 2
    until(lambda: database.states(*neighbours) == ["COMPLETED"] * 6, 30)
    assert max(database.task(task)["lost"] for task in neighbours) <= 1
    assert all(database.effects(f"neighbour {n}") <= 2 for n in range(6))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kill_parent", "kill_group"])
def test_a_function_in_a_child_that_kills_more_than_itself_is_dead_after_its_budget(crew, database, name):  # D01
    neighbours = [database.add("nap", f"neighbour {n}", 0.7) for n in range(4)]
    killer = database.add("", name, function=f"tests.app.faults.{name}", max_attempts=2)
    deaths = supervise(crew, database, killer, "--processes", "3", DHARA_LEASE_SECONDS=1, DHARA_MAX_LOST=2)
    assert deaths == {"kill_parent": 2, "kill_group": 0}[name]
    row = database.task(killer)
    assert (row["lost"], row["failures"]) == {"kill_parent": (2, 0), "kill_group": (0, 2)}[name]
    assert row["error_class"].rpartition(".")[2] == {"kill_parent": "WorkerLost", "kill_group": "ChildDied"}[name]
    assert database.effects(name) == 2
    until(lambda: database.states(*neighbours) == ["COMPLETED"] * 4, 30)
    most = {"kill_parent": 1, "kill_group": 0}[name]
    assert max(database.task(task)["lost"] for task in neighbours) <= most


@pytest.mark.parametrize("flags", [(), pytest.param(("--processes", "2"), marks=SLOW)], ids=["threads", "processes"])
def test_a_function_that_takes_all_memory_ends_and_its_neighbours_do_not(crew, database, flags):  # D01
    """Here it gets a MemoryError. Where the kernel kills instead, what dies is what `die` kills."""
    worker = crew.start(*flags)
    neighbour = database.add("nap", "neighbour", 3.0)
    until(lambda: database.effects("neighbour") == 1, 20)
    for pid in [worker.pid, *children_of(worker)]:
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used + 400_000_000,) * 2)
    hoarder = database.add("", "hoards", function="tests.app.faults.hoard", max_attempts=2)
    until(lambda: database.states(hoarder) == ["DEAD"], 30)
    assert database.task(hoarder)["error_class"] == "builtins.MemoryError"
    assert database.effects("hoards") == 2
    until(lambda: database.states(neighbour) == ["COMPLETED"])
    assert database.task(neighbour)["lease"] == 1
    assert worker.stop() == 0


@pytest.mark.slow
def test_five_killers_among_twenty_cost_each_neighbour_one_run(crew, database):  # D01
    neighbours = [database.add("nap", f"neighbour {n}", 0.5) for n in range(15)]
    killers = [database.add("die", f"killer {n}") for n in range(5)]
    for killer in killers:
        supervise(crew, database, killer, most=30, DHARA_LEASE_SECONDS=1, DHARA_MAX_LOST=2)
    until(lambda: database.states(*neighbours) == ["COMPLETED"] * 15, 30)
    # Some were lost with another killer, before they began.
    assert {database.effects(f"killer {n}") for n in range(5)} <= {1, 2}
    assert max(database.task(task)["lost"] for task in neighbours) <= 1


def test_a_worker_holds_one_suspect_at_a_time(crew, database):  # D01
    suspects = [database.add("nap", f"suspect {n}", 0.4, lost=1) for n in range(4)]
    crew.start()
    together = "SELECT count(*) FROM dhara_task WHERE state = 'RUNNING'"
    seen = set()

    def ends():
        seen.add(database.value(together))
        return database.states(*suspects) == ["COMPLETED"] * 4

    until(ends, 20)
    assert seen <= {0, 1}


@pytest.mark.fast
def test_an_overdue_function_with_one_attempt_is_started_once(crew, database):  # D03
    crew.start("--concurrency", "1")
    task = database.add("nap", "once", 20.0, timeout=0.5, max_attempts=1)
    until(lambda: database.states(task) == ["DEAD"], 5)
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"], 5)
    assert (database.effects("once"), database.task(task)["lease"]) == (1, 1)
    assert database.history(task) == ["TIMED_OUT"]
    message = "SELECT error_class || ': ' || message FROM dhara_attempt"
    assert database.value(message) == "django_dhara.errors.TaskTimeout: no end after 0.5 s"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("wait_for_socket", ()),
        ("anap", (60.0,)),
        *(pytest.param(name, (4.0,), marks=SLOW) for name in ("spin", "wait_in_c", "astubborn")),
    ],
)
def test_the_time_limit_holds_wherever_a_function_hangs(crew, database, name, arguments):  # D05
    worker = crew.start("--concurrency", "1")
    task = database.add(name, "hangs", *arguments, timeout=0.5, max_attempts=1)
    after = database.add("count", "after")
    until(lambda: database.states(task, after) == ["DEAD", "COMPLETED"], 8)
    assert database.history(task) == ["TIMED_OUT"]
    assert worker.lives


@pytest.mark.slow
def test_a_timed_out_function_is_told_and_its_own_backoff_is_asked(crew, database):  # D05
    crew.start()
    told = database.add("until_told", "cooperates", "canceled", timeout=0.5, max_attempts=1)
    own = database.add("overdue_with_backoff", "own", 2.0, max_attempts=2)
    until(lambda: database.states(told, own) == ["DEAD", "DEAD"], 10)
    until(lambda: database.effects("cooperates was told") == 1)
    assert database.effects("own") == 2
    assert database.history(own) == ["TIMED_OUT", "TIMED_OUT"]


def test_a_worker_with_too_many_hung_functions_asks_for_a_new_process(crew, database):  # D05
    worker = crew.start("--concurrency", "2", DHARA_MAX_ABANDONED=2)
    tasks = [database.add("wait_for_socket", f"hangs {n}", timeout=0.3, max_attempts=1) for n in range(3)]
    assert worker.ends(20) == 1
    worker.says("3 overdue functions could not be stopped")
    assert database.states(*tasks) == ["DEAD"] * 3


@pytest.mark.slow
def test_a_function_that_blocks_the_event_loop_for_good_asks_for_a_new_process(crew, database):  # D05
    worker = crew.start("--drain-timeout", "1")
    blocker = database.add("ablock", "blocks", 300.0, timeout=1.0, max_attempts=1)
    until(lambda: database.effects("blocks") == 1)
    waiting = database.add("anap", "waits", 0.1)
    until(lambda: database.states(waiting) == ["RUNNING"])
    assert worker.ends(20) == 1
    worker.says("an overdue function blocks the event loop")
    row = database.task(waiting)
    assert (row["state"], row["lost"], row["interrupted"]) == ("PENDING", 0, 0)
    assert database.history(blocker) == ["TIMED_OUT"]
    crew.start()
    until(lambda: database.states(waiting) == ["COMPLETED"])


_BAD = sorted(set(_RAISED) - {"discard", "snooze"} - {how for how in _RAISED if "for ever" in how or "snooze" in how})


def test_whatever_a_function_raises_is_its_own_failure(crew, database):  # D06
    worker = crew.start("--concurrency", "2")
    plain = {how: database.add("end_by", how, max_attempts=1) for how in _BAD}
    coroutines = {how: database.add("aend_by", how, max_attempts=1) for how in _BAD}
    tasks = [*plain.values(), *coroutines.values()]
    until(lambda: set(database.states(*tasks)) == {"DEAD"}, 30)
    errors = dict(database.rows("SELECT task_id, error_class FROM dhara_attempt"))
    for how, expected in [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt"), ("cancelled", "CancelledError")]:
        assert errors[plain[how]].endswith(expected)
        assert errors[coroutines[how]].endswith(expected)
    assert [database.effects(how) for how in _BAD] == [1] * len(_BAD)
    after = [database.add("count", "after"), database.add("acount", "after")]
    until(lambda: database.states(*after) == ["COMPLETED"] * 2)
    worker.signal(signal.SIGINT)
    assert worker.ends() == 0


def test_endless_recursion_is_a_failed_attempt(crew, database):  # D07
    worker = crew.start("--concurrency", "1")
    tasks = [database.add("recurse"), database.add("show_nested", 100_000, max_attempts=1)]
    for task in tasks:
        database.rows("UPDATE dhara_task SET max_attempts = 1 WHERE id = %s", task)
    until(lambda: database.states(*tasks) == ["DEAD"] * 2)
    assert {row[0] for row in database.rows("SELECT error_class FROM dhara_attempt")} == {"builtins.RecursionError"}
    assert worker.lives


@pytest.mark.parametrize("failures", [1025, *(pytest.param(n, marks=SLOW) for n in (47, 10**6))])
def test_a_task_that_has_failed_very_often_is_retried_within_the_cap(crew, database, failures):  # D09
    crew.start(DHARA_BACKOFF_BASE_SECONDS=5)
    task = database.add("fail_until", "fails", 99, failures=failures, max_attempts=2 * 10**6)
    until(lambda: database.task(task)["failures"] == failures + 1)
    row = database.task(task)
    assert row["state"] == "PENDING"
    assert database.value("SELECT run_at < now() + interval '301 seconds' FROM dhara_task")


@pytest.mark.parametrize(
    "answer", ["nan", *(pytest.param(w, marks=SLOW) for w in ("raises", "exits", "text", "-1", "1e12", "inf"))]
)
def test_a_backoff_that_answers_nonsense_does_not_lose_the_task(crew, database, answer):  # D10
    worker = crew.start()
    task = database.add("fail_with_backoff", answer, max_attempts=2)
    until(lambda: database.task(task)["failures"] == 1)
    worker.says("The backoff of tests.app.tasks.fail_with_backoff failed")
    row = database.task(task)
    assert row["state"] in ("PENDING", "RUNNING", "DEAD")
    assert database.value("SELECT run_at < now() + interval '32 days' FROM dhara_task")
    database.rows("UPDATE dhara_task SET run_at = now()")
    until(lambda: database.states(task) == ["DEAD"])
    assert database.effects(answer) == 2


def test_a_backoff_that_answers_none_ends_the_task(crew, database):  # D10
    crew.start()
    task = database.add("fail_with_backoff", "none", max_attempts=2)
    until(lambda: database.states(task) == ["DEAD"])
    assert database.effects("none") == 1


@pytest.mark.slow
def test_failures_with_huge_messages_stay_small(crew, database):  # D11
    crew.start(DHARA_BACKOFF_BASE_SECONDS=0.001, DHARA_BACKOFF_CAP_SECONDS=0.01)
    task = database.add("end_by", "huge", max_attempts=25)
    until(lambda: database.states(task) == ["DEAD"], 60)
    assert database.value("SELECT count(*) FROM dhara_attempt") == 25
    assert database.value("SELECT max(octet_length(traceback)) FROM dhara_attempt") <= 16_384
    assert database.value("SELECT max(octet_length(message)) FROM dhara_attempt") <= 16_384
    assert database.value("SELECT sum(pg_column_size(attempt.*)) FROM dhara_attempt AS attempt") < 1_000_000
    assert database.value("SELECT pg_column_size(task.*) FROM dhara_task AS task") < 10_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_where_it_is(crew, database):  # D12
    worker = crew.start("--concurrency", "4", DHARA_TEST_DEBUG=1, DHARA_RELOAD="false")

    def work(tasks):
        for _ in range(0, tasks, 500):
            database.rows(
                "INSERT INTO dhara_task (id, backend, queue, function, payload) SELECT gen_random_uuid(), 'default',"
                " 'default', 'tests.app.tasks.queries', '{\"args\": [5, 100000], \"kwargs\": {}}'"
                " FROM generate_series(1, 500)"
            )
            until(lambda: database.states() == {"COMPLETED"}, 120)
            database.rows("TRUNCATE dhara_task")
        return worker.megabytes

    warm = work(1500)
    assert work(6000) - warm < 20


def test_nothing_that_functions_start_in_the_event_loop_stops_it(crew, database):  # D06
    worker = crew.start("--concurrency", "1")
    for name in ("achild_exits", "astop_loop"):
        task = database.add(name, name)
        until(lambda task=task: database.states(task) == ["COMPLETED"])
        after = database.add("acount", f"after {name}")
        until(lambda after=after: database.states(after) == ["COMPLETED"], 5)
    worker.says("has stopped the event loop; it goes on")


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        ("CANCEL", "null"),
        pytest.param("CANCEL", '{"task": "x", "lease": 1}', marks=SLOW),
        pytest.param("CANCEL", "[]", marks=SLOW),
        pytest.param("STACKS", "7", marks=SLOW),
        pytest.param("DANCE", "null", marks=SLOW),
    ],
)
def test_a_command_that_makes_no_sense_is_answered_and_harms_nobody(crew, database, verb, argument):
    worker = crew.start()
    database.rows(
        "INSERT INTO dhara_command (worker_id, verb, argument) VALUES (%s, %s, %s::jsonb)",
        crew.id_of(worker), verb, argument,
    )  # fmt: skip
    until(lambda: database.value("SELECT answered_at IS NOT NULL FROM dhara_command"))
    after = database.add("count", "after")
    until(lambda: database.states(after) == ["COMPLETED"])


def test_a_signal_receiver_that_exits_harms_nobody(crew, database, tmp_path):
    (tmp_path / "nasty.py").write_text(
        "from tests.settings import *\nfrom django_dhara.compat import task_finished, task_started\n"
        "def exit(**kwargs):\n    raise SystemExit(9)\n"
        "task_finished.connect(exit)\ntask_started.connect(exit)\n"
    )
    where = f"{tmp_path}:{__file__.rpartition('/tests/')[0]}"
    worker = crew.start(DJANGO_SETTINGS_MODULE="nasty", PYTHONPATH=where)
    tasks = [database.add("count", f"task {n}") for n in range(3)] + [database.add("acount", "coroutine")]
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 4)
    assert database.value("SELECT sum(failures) FROM dhara_task") == 0
    assert worker.lives
