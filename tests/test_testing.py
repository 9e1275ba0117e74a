"""`django_dhara.testing`: what it runs, that the test's transaction survives, and that it tells what a worker tells."""

import asyncio
import subprocess
import sys
import threading
import time
import unittest
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from io import StringIO
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import DatabaseError, close_old_connections, connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone, translation

from django_dhara import Discard, Snooze, cancel, enqueue_many, pause, signals, task
from django_dhara.compat import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_dhara.errors import ArgumentsError, DharaError, IdempotencyConflict, PayloadError
from django_dhara.lifecycle import Wanted
from django_dhara.models import Task as Row
from django_dhara.states import State
from django_dhara.testing import (
    InlineBackend,
    ManualBackend,
    arun_all,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
    plugin,
    run_all,
    run_one,
)
from django_dhara.testing.shield import TransactionGone
from django_dhara.worker import Worker
from tests.app.models import Note
from tests.rows import a_task

# Installed or not, pytest finds the plugin's fixtures here.
dhara_inline, dhara_manual, dhara_run_all = plugin.dhara_inline, plugin.dhara_manual, plugin.dhara_run_all

ROOT = Path(__file__).parent.parent
SEEN = []


@pytest.fixture(autouse=True)
def forget():
    SEEN.clear()


def notes():
    return sorted(Note.objects.values_list("text", flat=True))


@contextmanager
def heard_by(receiver, *signals):
    """Not until the collector finds the receiver: exceptions in log records keep it alive."""
    for signal in signals:
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal in signals:
            signal.disconnect(receiver)


def burst():
    backend = task_backends["default"]
    return Worker(backend, backend.settings, Wanted("default"), burst=True).run()


# ------------------------------------------------------------------------------------------------------- the functions


@task
def write(text):
    Note.objects.create(text=text)
    return text


@task
async def awrite(text):
    await Note.objects.acreate(text=text)
    SEEN.append(threading.current_thread())
    return await Note.objects.acount()


@task
def chain(length):
    if length:
        chain.enqueue(length - 1)


@task(max_attempts=3, backoff=lambda error, result: 60)
def fail():
    Note.objects.create(text="before")
    raise ValueError("it broke")


@task(max_attempts=1)
def break_transaction():
    Note.objects.create(text="before")
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1/0")


@task(max_attempts=1)
def break_transaction_quietly():
    Note.objects.create(text="before")
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1/0")
    except DatabaseError:
        return


@task
def leave_block():
    transaction.atomic().__enter__()
    Note.objects.create(text="inside")


@task
def close_everything():
    Note.objects.create(text="before")
    close_old_connections()
    connection.close()
    Note.objects.create(text="after")


@task
def use_durable_block():
    with transaction.atomic(durable=True):
        Note.objects.create(text="durable")


@task(atomic=True, max_attempts=1)
def all_or_nothing(how):
    Note.objects.create(text=how)
    if how == "raise":
        raise ValueError(how)
    if how == "snooze":
        raise Snooze(60)
    if how == "query":
        break_transaction_quietly.func()
    if how == "hook":
        transaction.on_commit(lambda: write.func("hook was called"))
    return how


@task(max_attempts=1)
def hook(how):
    def call():
        SEEN.append(how)
        if how.startswith("raise"):
            raise ValueError(how)

    if how.endswith("without block"):
        transaction.on_commit(call)
    else:
        with transaction.atomic(savepoint=not how.endswith("savepoint")):
            transaction.on_commit(call, robust=how.endswith("robust"))
            SEEN.append("not yet")
    SEEN.append("after")


@task
def enqueue_at_commit():
    with transaction.atomic():
        transaction.on_commit(lambda: write.enqueue("followed"))


@task
def look_around():
    before = [translation.get_language(), str(timezone.get_current_timezone())]
    translation.activate("fr")
    timezone.activate("Asia/Tokyo")
    return before


@task(takes_context=True)
def tell(context, say):
    if context.checkpoint is None:
        context.progress({"say": say})
        context.save_checkpoint([context.attempt, context.lease])
        raise Snooze(timedelta(minutes=1))
    return [context.checkpoint, context.attempt, context.metadata]


@task(timeout=0.05, max_attempts=1)
def overrun(text):
    time.sleep(0.3)
    Note.objects.create(text=text)


@task(timeout=0.05, max_attempts=1)
async def aoverrun():
    try:
        await asyncio.sleep(5)
    finally:
        SEEN.append("was stopped")


@task
def poll():
    SEEN.append("poll")
    raise Snooze(timedelta(minutes=10))


@task(takes_context=True)
def cancel_itself(context):
    SEEN.append(cancel(context.task_result.id))
    raise ValueError("ends early")


@task
def end_session():
    other = psycopg.connect(**connection.get_connection_params(), autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        other.execute("SELECT pg_terminate_backend(%s)", cursor.fetchone())
    other.close()
    Note.objects.count()


@task
def end_transaction(how):
    with connection.cursor() as cursor:
        cursor.execute(how)


@task(max_attempts=1)
def end_by(kind):
    raise {"keyboard": KeyboardInterrupt(), "exit": SystemExit(3), "discard": Discard("never")}[kind]


@task(max_attempts=1)
def fail_in_pytest():
    pytest.fail("the test failed in a task")


@task(takes_context=True)
def tell_types(context, value):
    return [value, repr(value)]


# ------------------------------------------------------------------------------------------------------- run_all


@pytest.mark.fast
def test_every_ready_task_runs_and_its_result_is_told(db):
    first, second = write.enqueue("a"), write.using(priority=5).enqueue("b")
    later = write.using(run_after=timedelta(hours=1)).enqueue("later")
    results = run_all()
    assert [(result.id, result.return_value) for result in results] == [(second.id, "b"), (first.id, "a")]
    assert notes() == ["a", "b"]
    later.refresh()
    assert later.state == State.PENDING
    assert run_all() == []


@pytest.mark.fast
def test_what_a_task_enqueues_runs_too(db):
    chain.enqueue(3)
    assert [result.args for result in run_all()] == [[3], [2], [1], [0]]


def test_a_task_that_becomes_ready_again_has_one_result(db):
    fail.enqueue()
    [result] = run_all(include_scheduled=True)
    assert (result.state, result.attempts, len(result.errors)) == (State.DEAD, 3, 3)
    assert notes() == ["before"] * 3


def test_only_the_wanted_queues_are_served(db):
    for queue in ("a", "b", "c"):
        write.using(queue_name=queue).enqueue(queue)
    run_all(queues=["a", "c"])
    assert notes() == ["a", "c"]
    assert run_all(queues=[]) == []
    with pytest.raises(TypeError, match="list of names"):
        run_all(queues="b")


def test_a_paused_queue_is_not_served(db):
    write.enqueue("a")
    write.using(run_after=timedelta(hours=1)).enqueue("b")
    pause("default")
    assert run_all(include_scheduled=True) == []


def test_one_task_at_a_time_can_be_run(db):
    write.enqueue("a")
    write.enqueue("b")
    assert run_one().return_value == "a"
    assert notes() == ["a"]
    assert run_one().return_value == "b"
    assert run_one() is None


def test_a_task_that_enqueues_itself_for_ever_is_told(db):
    chain.enqueue(100)
    with pytest.raises(RuntimeError, match=r"After 10 runs .*test_testing\.chain \(10\)"):
        run_all(max_runs=10)
    assert len(run_all(max_runs=91)) == 91


def test_no_thread_and_no_connection_is_opened(db, monkeypatch):
    monkeypatch.setattr(psycopg.Connection, "connect", None)
    monkeypatch.setattr(threading.Thread, "start", None)
    write.enqueue("a")
    fail.enqueue()
    assert len(run_all()) == 2


@pytest.mark.fast
def test_async_functions_run_on_the_connection_of_the_test(db, monkeypatch):
    monkeypatch.setattr(psycopg.Connection, "connect", None)
    Note.objects.create(text="mine")
    awrite.enqueue("its")
    [result] = run_all()
    assert result.return_value == 2


def test_an_async_test_awaits_it(db):
    async def test():
        await awrite.aenqueue("a")
        await write.aenqueue("b")
        return await arun_all()

    results = async_to_sync(test)()
    assert [result.return_value for result in results] == [1, "b"]


def test_a_run_sees_the_language_and_time_zone_of_a_worker_and_leaves_those_of_the_test(db):
    look_around.enqueue()
    with translation.override("de"), timezone.override("Europe/Berlin"):
        [result] = run_all()
        assert (translation.get_language(), str(timezone.get_current_timezone())) == ("de", "Europe/Berlin")
    assert result.return_value == ["en-us", "UTC"]


def test_progress_checkpoints_and_metadata_work(db):
    result = tell.using(metadata={"by": "me"}).enqueue("half")
    run_all()
    result.refresh()
    assert (result.progress, result.state) == ({"say": "half"}, State.PENDING)
    run_all(include_scheduled=True)
    result.refresh()
    assert result.return_value == [[1, 1], 1, {"by": "me"}]


def test_a_task_can_cancel_itself(db):
    result = cancel_itself.enqueue()
    run_all()
    result.refresh()
    assert (SEEN, result.state) == (["requested"], State.CANCELED)


def test_an_unknown_function_waits_for_a_worker_that_has_it(db, caplog):
    row = a_task(function="shop.tasks.gone")
    write.enqueue("a")
    results = run_all(include_scheduled=True)
    assert {result.status for result in results} == {TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL}
    row.refresh_from_db()
    assert (row.state, row.failures) == (State.PENDING, 0)
    assert "shop" in caplog.text


# ------------------------------------------------------------------------------------------------------- time


def test_time_passes_for_rows_until_the_time_that_is_wanted(db):
    hour, day = (write.using(run_after=timedelta(hours=hours)).enqueue(f"{hours} h") for hours in (1, 24))
    due_before = Row.objects.get(id=day.id).run_at
    assert [result.id for result in run_all(at=timezone.now() + timedelta(hours=2))] == [hour.id]
    assert Row.objects.get(id=day.id).run_at == due_before
    assert [result.id for result in run_all(at=timedelta(hours=25))] == [day.id]


def test_tasks_run_in_the_order_of_their_times(db):
    for minutes in (30, 10, 20):
        write.using(run_after=timedelta(minutes=minutes)).enqueue(str(minutes))
    poll.enqueue()
    run_all(at=timedelta(minutes=25))
    assert notes() == ["10", "20"]
    assert SEEN == ["poll"] * 3  # after 0, 10 and 20 minutes
    [waiting] = Row.objects.filter(function__endswith="poll")
    assert timedelta(minutes=29) < waiting.run_at - timezone.now() <= timedelta(minutes=30)


def test_a_task_that_snoozes_for_ever_is_told(db):
    poll.enqueue()
    with pytest.raises(RuntimeError, match="snooze for ever"):
        run_all(include_scheduled=True, max_runs=5)
    assert Row.objects.get().state == State.PENDING


# ------------------------------------------------------------------------------------------------------- transactions


@pytest.mark.fast
def test_a_failing_query_breaks_neither_the_test_nor_the_next_task(db):
    Note.objects.create(text="mine")
    broken, after = break_transaction.enqueue(), write.enqueue("after")
    run_all()
    broken.refresh()
    after.refresh()
    assert (broken.state, after.state) == (State.DEAD, State.COMPLETED)
    assert broken.errors[0].exception_class_path == "django.db.utils.DataError"
    assert notes() == ["after", "mine"]


def test_a_failing_query_that_is_hidden_breaks_nothing_either(db):
    break_transaction_quietly.enqueue()
    [result] = run_all()
    assert (result.state, notes()) == (State.COMPLETED, [])


@pytest.mark.fast
def test_what_a_failing_function_wrote_stays_as_in_a_worker(db):
    fail.enqueue()
    run_all()
    assert notes() == ["before"]


def test_a_block_that_was_left_open_is_rolled_back(db, caplog):
    Note.objects.create(text="mine")
    leave_block.enqueue()
    run_all()
    assert notes() == ["mine"]
    assert "left an open atomic block" in caplog.text
    with transaction.atomic():
        Note.objects.create(text="more")
    assert notes() == ["mine", "more"]


def test_a_function_cannot_close_the_connection_of_the_test(db):
    Note.objects.create(text="mine")
    close_everything.enqueue()
    [result] = run_all()
    assert (result.state, notes()) == (State.COMPLETED, ["after", "before", "mine"])
    assert not {"close", "on_commit", "savepoint_commit"} & set(vars(connections["default"]))


def test_a_function_may_open_a_durable_block(db):
    use_durable_block.enqueue()
    [result] = run_all()
    assert result.state == State.COMPLETED


@pytest.mark.fast
@pytest.mark.parametrize(
    ("how", "state", "written"),
    [
        ("return", State.COMPLETED, ["return"]),
        ("hook", State.COMPLETED, ["hook", "hook was called"]),
        ("raise", State.DEAD, []),
        ("snooze", State.PENDING, []),
        ("query", State.DEAD, []),
    ],
)
@pytest.mark.parametrize("where", ["db", "transactional_db", "memory"])
def test_an_atomic_function_counts_as_a_whole_or_not_at_all(request, where, how, state, written):
    request.getfixturevalue("db" if where == "memory" else where)
    if where == "memory":
        request.getfixturevalue("dhara_manual")
    all_or_nothing.enqueue(how)
    [result] = run_all()
    assert (result.state, notes()) == (state, written)


@pytest.mark.parametrize(
    ("how", "state", "seen"),
    [
        ("block", State.COMPLETED, ["not yet", "block", "after"]),
        ("without block", State.COMPLETED, ["without block", "after"]),
        ("raise", State.DEAD, ["not yet", "raise"]),
        ("raise robust", State.COMPLETED, ["not yet", "raise robust", "after"]),
        ("raise without block", State.DEAD, ["raise without block"]),
    ],
)
@pytest.mark.parametrize("where", ["db", "transactional_db"])
def test_on_commit_callbacks_are_called_when_a_worker_calls_them(request, where, how, state, seen):
    request.getfixturevalue(where)
    hook.enqueue(how)
    [result] = run_all()
    assert (result.state, SEEN) == (state, seen)


def test_the_callbacks_of_a_block_without_savepoint_are_called_at_the_end(db):
    hook.enqueue("without savepoint")
    hook.enqueue("raise without savepoint")
    [first, second] = run_all()
    assert (first.state, second.state) == (State.COMPLETED, State.DEAD)
    assert SEEN == ["not yet", "after", "without savepoint", "not yet", "after", "raise without savepoint"]


def test_the_callbacks_of_the_test_itself_wait(db, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks() as callbacks:
        transaction.on_commit(lambda: SEEN.append("mine"))
        enqueue_at_commit.enqueue()
        assert [result.args for result in run_all()] == [[], ["followed"]]
    assert SEEN == []
    assert len(callbacks) == 2  # mine, and that of the enqueue


def test_a_receiver_that_breaks_the_transaction_breaks_nothing_else(db):
    def receiver(**kwargs):
        break_transaction_quietly.func()
        raise ValueError("receiver")

    with heard_by(receiver, task_finished):
        write.enqueue("a")
        write.enqueue("b")
        assert [result.state for result in run_all()] == [State.COMPLETED] * 2


# ------------------------------------------------------------------------------------------------------- bad ends


@pytest.mark.fast
def test_an_overdue_function_is_recorded_as_timed_out(db):
    overrun.enqueue("late")
    aoverrun.enqueue()
    results = run_all()
    assert [result.state for result in results] == [State.DEAD] * 2
    assert {error.exception_class_path for result in results for error in result.errors} == {
        "django_dhara.errors.TaskTimeout"
    }
    assert (notes(), SEEN) == (["late"], ["was stopped"])


def test_ctrl_c_and_what_pytest_raises_end_the_test_after_they_are_recorded(db):
    interrupted = end_by.enqueue("keyboard")
    with pytest.raises(KeyboardInterrupt):
        run_all()
    failed = fail_in_pytest.enqueue()
    with pytest.raises(pytest.fail.Exception, match="failed in a task"):
        run_all()
    for result in (interrupted, failed):
        result.refresh()
        assert result.state == State.DEAD
    end_by.enqueue("exit")
    end_by.enqueue("discard")
    assert [result.state for result in run_all()] == [State.DEAD] * 2


def run_test_case(test, base=TestCase):
    """Runs `test(self)` as the only test of a TestCase, with all that Django does before and after it."""
    result = unittest.TestResult()
    unittest.TestSuite([type("Case", (base,), {"runTest": test})()]).run(result)
    assert [text for _, text in result.errors + result.failures] == []


def run_and_expect_gone(case):
    case.assertEqual(Note.objects.count(), 0)
    Note.objects.create(text="mine")
    with pytest.raises(TransactionGone, match="ended the transaction of this test on default"):
        run_all()


def test_when_its_connection_dies_the_test_is_told_and_ends_in_peace(transactional_db):
    def test(case):
        end_session.enqueue()
        run_and_expect_gone(case)

    run_test_case(test)
    run_test_case(lambda case: case.assertEqual((Note.objects.count(), Row.objects.count()), (0, 0)))


def test_when_a_function_rolls_the_test_back_it_is_told(transactional_db):
    def test(case):
        end_transaction.enqueue("ROLLBACK")
        run_and_expect_gone(case)

    run_test_case(test)
    run_test_case(lambda case: case.assertEqual((Note.objects.count(), Row.objects.count()), (0, 0)))


def test_nothing_is_left_behind(transactional_db):
    def test(case):
        for each in (write.bind("a"), awrite.bind("b"), fail.bind(), break_transaction.bind(), overrun.bind("c")):
            each.task.enqueue(*each.args)
        all_or_nothing.enqueue("return")
        leave_block.enqueue()
        close_everything.enqueue()
        case.assertEqual(len(run_all(include_scheduled=True)), 8)

    run_test_case(test)
    run_test_case(lambda case: case.assertEqual((Note.objects.count(), Row.objects.count()), (0, 0)))


def test_in_a_transaction_test_case_everything_is_committed(transactional_db, other_session):
    write.enqueue("a")
    leave_block.enqueue()
    run_all()
    with other_session.cursor() as cursor:
        cursor.execute("SELECT text FROM app_note")
        assert cursor.fetchall() == [("a",)]


def test_in_a_test_case_the_row_is_there_at_once(db):
    result = write.enqueue("a")
    assert Row.objects.filter(id=result.id).exists()
    assert not result.committed


class TestWorkerCommand(TestCase):
    def test_it_says_that_it_cannot_run_here(self):
        write.enqueue("a")
        threads = threading.active_count()
        with pytest.raises(CommandError, match=r"inside a transaction.*run_all\(\)"):
            call_command("dhara_worker", "--burst", stdout=StringIO())
        self.assertEqual(threading.active_count(), threads)
        self.assertEqual(len(run_all()), 1)


class TestWorkerCommandWithRealTransactions(TransactionTestCase):
    def test_it_runs_in_a_transaction_test_case(self):
        write.enqueue("a")
        with pytest.raises(SystemExit):
            call_command("dhara_worker", "--burst", "--no-reload", stdout=StringIO())
        self.assertEqual(notes(), ["a"])


# ------------------------------------------------------------------------------------------------------- like a worker


SIGNALS = {
    "started": task_started,
    "finished": task_finished,
    "failed": signals.attempt_failed,
    "retried": signals.task_retried,
    "canceled": signals.task_canceled,
}


@pytest.fixture
def announced():
    """Collects (function, signal, state, attempts, sender) of every signal that a run sends."""
    told, receivers = [], []
    for name, signal in SIGNALS.items():

        def receiver(sender, task_result, name=name, **kwargs):
            attempts = task_result.attempts
            told.append((task_result.task.name, name, str(task_result.state), attempts, sender.__name__))

        signal.connect(receiver)
        receivers.append((signal, receiver))
    yield told
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def test_it_tells_what_a_worker_tells(transactional_db, announced):
    calls = [write.bind("a"), awrite.bind("b"), fail.bind(), break_transaction.bind(), end_by.bind("discard")]
    calls += [poll.bind(), overrun.bind("c"), aoverrun.bind(), all_or_nothing.bind("raise"), cancel_itself.bind()]
    by_worker = enqueue_many(calls)
    assert burst() == 0
    from_worker, announced[:] = sorted(announced), []
    by_us = enqueue_many(calls)
    run_all()
    assert sorted(announced) == from_worker
    for theirs, ours in zip(by_worker, by_us, strict=True):
        theirs.refresh()
        ours.refresh()
        assert (theirs.state, theirs.attempts, len(theirs.errors)) == (ours.state, ours.attempts, len(ours.errors))
        assert [e.exception_class_path for e in theirs.errors] == [e.exception_class_path for e in ours.errors]


def sessions():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        [count] = cursor.fetchone()
    return count


def test_a_worker_in_a_thread_of_the_test_leaves_no_session_behind(transactional_db):
    enqueue_many([write.bind("a"), awrite.bind("b"), fail.bind(), all_or_nothing.bind("return")])
    thread = threading.Thread(target=burst)
    thread.start()
    thread.join()
    # DROP DATABASE waits five seconds for sessions that are about to end.
    ends = time.monotonic() + 4
    while sessions() > 1 and time.monotonic() < ends:
        time.sleep(0.01)
    assert sessions() == 1
    assert notes() == ["a", "b", "before", "return"]


class Colour(Enum):
    RED = "red"


AWKWARD = {
    "tuple": (1, 2),
    "nested tuple": {"a": [(1, (2,))]},
    "integer keys": {1: "a"},
    "merging keys": {1: "a", "1": "b"},
    "large float": 1e16,
    "minus zero": -0.0,
    "long number": 2**70,
    "nul": "a\0b",
    "surrogate": "\ud800",
    "nan": float("nan"),
    "infinity": [float("inf")],
    "bytes": b"abc",
    "bad bytes": b"\xff",
    "set": {1, 2},
    "decimal": Decimal("1.10"),
    "datetime": timezone.now(),
    "uuid": UUID(int=7),
    "enum": Colour.RED,
    "lazy": translation.gettext_lazy("Yes"),
    "model": Note(text="a"),
    "object": object(),
    "text": "é\u2028😀",
    "empty": {},
    "none": None,
}


def answer_of(value):
    """What comes of enqueueing the value, alone and nested: the refusal, or what the function got and gave."""
    answers = []
    for awkward in (value, {"inside": [value]}):
        try:
            result = tell_types.enqueue(awkward)
        except DharaError as error:
            answers.append((type(error), str(error)))
        else:
            sent = result.args
            if result.state == State.PENDING:
                [result] = run_all()
            got = result.task.get_backend().get_result(result.id)
            assert got == result
            answers.append((sent, got.args, result.return_value))
    return answers


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_value_has_the_same_answer_in_every_mode(db, request, name):
    real = answer_of(AWKWARD[name])
    request.getfixturevalue("dhara_inline")
    assert str(answer_of(AWKWARD[name])) == str(real)
    request.getfixturevalue("dhara_manual")
    assert str(answer_of(AWKWARD[name])) == str(real)


def test_values_of_types_that_json_lacks_are_refused_with_their_path(db):
    for name in ("set", "decimal", "datetime", "uuid", "object", "model", "merging keys", "nul", "nan"):
        [alone, nested] = answer_of(AWKWARD[name])
        assert issubclass(alone[0], PayloadError)
        assert alone[1].startswith("args[0]")
        assert nested[1].startswith("args[0].inside[0]")
    assert Row.objects.count() == 0


# ------------------------------------------------------------------------------------------------------- in memory


@pytest.mark.fast
def test_inline_runs_at_the_enqueue_and_needs_no_database(dhara_inline):
    assert isinstance(dhara_inline, InlineBackend)
    result = tell_types.enqueue((1, 2))
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, [[1, 2], "[1, 2]"])
    assert result.attempts == len(result.worker_ids) == 1
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    assert dhara_inline.calls == [result]
    assert tell_types.get_result(result.id) == result
    result.refresh()


def test_inline_waits_for_nothing(dhara_inline):
    result = tell_types.using(run_after=timedelta(days=1)).enqueue(1)
    assert result.is_finished
    told = tell.using(metadata={"by": "me"}).enqueue("x")
    assert told.return_value == [[1, 1], 1, {"by": "me"}]
    assert told.progress == {"say": "x"}


def test_inline_attempts_until_they_are_spent(db, dhara_inline, announced):
    result = fail.enqueue()
    assert (result.state, result.attempts, len(result.errors)) == (State.DEAD, 3, 3)
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert [(name, state, attempts) for _, name, state, attempts, _ in announced] == [
        ("started", "RUNNING", 1),
        ("failed", "PENDING", 1),
        ("retried", "PENDING", 1),
        ("started", "RUNNING", 2),
        ("failed", "PENDING", 2),
        ("retried", "PENDING", 2),
        ("started", "RUNNING", 3),
        ("failed", "DEAD", 3),
        ("finished", "DEAD", 3),
    ]
    assert {sender for *_, sender in announced} == {"InlineBackend"}


def test_inline_does_not_snooze_for_ever(dhara_inline):
    with pytest.raises(RuntimeError, match="snooze for ever"):
        poll.enqueue()


def test_inline_keeps_the_transaction_of_the_caller(db, dhara_inline):
    with transaction.atomic():
        Note.objects.create(text="mine")
        result = break_transaction.enqueue()
        Note.objects.create(text="more")
    assert (result.state, notes()) == (State.DEAD, ["mine", "more"])


def test_inline_calls_may_be_nested(db, dhara_inline):
    chain.enqueue(3)
    enqueue_at_commit.enqueue()
    assert [call.args for call in dhara_inline.calls] == [[3], [2], [1], [0], [], ["followed"]]
    assert notes() == ["followed"]


def test_inline_runs_async_functions_from_both_worlds(db, dhara_inline):
    assert awrite.enqueue("a").return_value == 1
    assert async_to_sync(awrite.aenqueue)("b").return_value == 2
    assert async_to_sync(write.aenqueue)("c").return_value == "c"


@pytest.mark.fast
def test_manual_keeps_calls_until_they_are_asked_for(dhara_manual):
    assert isinstance(dhara_manual, ManualBackend)
    first, second = tell_types.enqueue(1), tell_types.using(priority=1).enqueue(2)
    tell_types.using(run_after=timedelta(hours=1)).enqueue(3)
    assert [call.args for call in dhara_manual.calls] == [[1], [2], [3]]
    assert not any(call.is_finished for call in dhara_manual.calls)
    assert [result.id for result in dhara_manual.run_all()] == [second.id, first.id]
    assert dhara_manual.run_one() is None
    assert dhara_manual.run_one(include_scheduled=True).return_value == [3, "3"]
    assert all(call.is_finished for call in dhara_manual.calls)
    dhara_manual.clear()
    assert dhara_manual.calls == []
    with pytest.raises(TaskResultDoesNotExist):
        tell_types.get_result(first.id)


def test_manual_retries_when_time_passes(db, dhara_manual):
    result = fail.enqueue()
    run_all()
    result.refresh()
    assert (result.state, result.attempts, len(result.errors)) == (State.PENDING, 1, 1)
    run_all(at=timedelta(seconds=90))
    result.refresh()
    assert result.attempts == 2
    assert len(dhara_manual.run_all(include_scheduled=True)) == 1
    result.refresh()
    assert result.state == State.DEAD


def test_manual_shares_its_calls_between_threads(dhara_manual):
    thread = threading.Thread(target=tell_types.enqueue, args=[1])
    thread.start()
    thread.join()
    async_to_sync(tell_types.aenqueue)(2)
    assert [call.args for call in dhara_manual.calls] == [[1], [2]]


@pytest.mark.parametrize("fixture", ["dhara_inline", "dhara_manual"])
def test_memory_refuses_what_the_real_backend_refuses(request, fixture):
    backend = request.getfixturevalue(fixture)
    with pytest.raises(ArgumentsError, match="missing a required argument"):
        tell_types.enqueue()
    with pytest.raises(PayloadError, match=r"args\[0\]"):
        tell_types.enqueue(object())
    with pytest.raises(InvalidTask):
        tell_types.using(queue_name="")
    with pytest.raises(ArgumentsError):
        enqueue_many([tell_types.bind(1), tell_types.bind()])
    assert backend.calls == []


@pytest.mark.parametrize("fixture", ["dhara_inline", "dhara_manual"])
def test_memory_knows_idempotency_keys(request, fixture):
    backend = request.getfixturevalue(fixture)
    keyed = tell_types.using(idempotency_key="k")
    first, second = keyed.enqueue(1), keyed.enqueue(1)
    assert (first.id, first.duplicate, second.duplicate) == (second.id, False, True)
    with pytest.raises(IdempotencyConflict):
        enqueue_many([tell_types.bind(5), keyed.bind(2)])
    assert len(backend.calls) == 1


@pytest.mark.parametrize("fixture", ["dhara_inline", "dhara_manual"])
def test_memory_takes_bulk_enqueues_and_sends_the_signals_of_an_enqueue(request, fixture):
    request.getfixturevalue(fixture)
    told = []

    def receiver(sender, task_result, **kwargs):
        told.append((sender.__name__, task_result.args))

    with heard_by(receiver, task_enqueued, signals.task_committed):
        results = enqueue_many([tell_types.bind(1), tell_types.bind(2)])
    assert [result.args for result in results] == [[1], [2]]
    kind = fixture.replace("dhara_", "").title() + "Backend"
    assert told == [(kind, [1]), (kind, [1]), (kind, [2]), (kind, [2])]


def test_memory_has_no_rows_to_cancel(dhara_manual):
    result = tell_types.enqueue(1)
    with pytest.raises(TypeError, match="ManualBackend"):
        cancel(result.id)
    with pytest.raises(CommandError, match="ManualBackend"):
        call_command("dhara_worker", "--burst")


def test_memory_takes_the_options_of_the_real_backend():
    params = {"BACKEND": "django_dhara.testing.InlineBackend", "QUEUES": ["a"], "OPTIONS": {"MAX_ATTEMPTS": 2}}
    with override_settings(TASKS={"default": params}):
        assert task_backends["default"].settings.max_attempts == 2
        with pytest.raises(InvalidTask):
            tell_types.using(queue_name="b")
        result = task_backends["default"].enqueue(tell_types.using(queue_name="a"), [1], {})
        assert result.return_value == [1, "1"]


def test_other_backends_are_told_apart():
    dummy = BaseTaskBackend.__module__.replace(".base", ".dummy") + ".DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": dummy}}):
        with pytest.raises(TypeError, match="DummyBackend"):
            run_all()
        with pytest.raises(TypeError, match="DummyBackend"):
            enqueued()


# ------------------------------------------------------------------------------------------------------- asserts


@task
def mail(to, subject="Hello", *, urgent=False):
    return f"{to} {subject} {urgent}"


@pytest.fixture(params=["real", "manual", "inline"])
def backend(request):
    """Each backend in turn."""
    request.getfixturevalue("db" if request.param == "real" else f"dhara_{request.param}")


@pytest.mark.fast
def test_what_was_enqueued_can_be_asserted(backend):
    mail.using(queue_name="mail").enqueue("a@x", urgent=True)
    mail.enqueue(to="b@x", subject="Hi")
    tell_types.enqueue((1, 2))
    assert [result.kwargs for result in enqueued(mail)] == [{"urgent": True}, {"to": "b@x", "subject": "Hi"}]
    assert len(enqueued()) == 3
    assert enqueued("tests.test_testing.mail") == enqueued(mail)
    assert_enqueued(mail)
    assert_enqueued(mail, times=2)
    assert_enqueued("tests.test_testing.mail", "b@x", "Hi", times=1)
    [result] = assert_enqueued(mail, to="a@x", urgent=True, queue="mail")
    assert result.task.queue_name == "mail"
    assert_enqueued(tell_types, [1, 2])
    assert_not_enqueued(mail, "c@x")
    assert_not_enqueued(mail, "b@x", "Hi", queue="mail")
    assert_not_enqueued(write)
    assert_not_enqueued(queue="other")


def test_what_has_run_still_counts_as_enqueued(db):
    mail.enqueue("a@x")
    run_all()
    [result] = assert_enqueued(mail, "a@x")
    assert result.is_finished


def test_a_failing_assert_tells_what_was_enqueued(backend):
    with pytest.raises(AssertionError, match="On backend 'default' nothing was enqueued"):
        assert_enqueued(mail)
    mail.using(queue_name="mail").enqueue("a@x", urgent=True)
    tell_types.enqueue(7)
    with pytest.raises(AssertionError) as failure:
        assert_enqueued(mail, "b@x", times=2)
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("tests.test_testing.mail('b@x') was to be enqueued 2 times, and was 0 times. On backend")
    assert lines[1].startswith("  tests.test_testing.mail('a@x', urgent=True) on queue 'mail': ")
    assert lines[2].startswith("  tests.test_testing.tell_types(7) on queue 'default': ")
    with pytest.raises(AssertionError, match=r"anything was not to be enqueued, and 2 were\."):
        assert_not_enqueued()
    with pytest.raises(AssertionError, match=r"mail\('a@x', urgent=True\) was not to be enqueued, and 1 were"):
        assert_not_enqueued(mail, "a@x", urgent=True)


def test_a_failing_assert_does_not_flood(dhara_manual):
    enqueue_many([tell_types.bind("x" * 10_000) for _ in range(100)])
    with pytest.raises(AssertionError) as failure:
        assert_not_enqueued()
    assert "... and 80 more" in str(failure.value)
    assert len(str(failure.value)) < 10_000


# ------------------------------------------------------------------------------------------------------- the plugin


def test_the_fixtures_switch_the_backend_for_one_test(dhara_manual, dhara_run_all):
    tell_types.enqueue(1)
    assert [result.return_value for result in dhara_run_all()] == [[1, "1"]]
    assert Row.objects.count() == 0


def test_without_a_backend_of_ours_the_fixtures_say_so(request):
    with override_settings(TASKS={}), pytest.raises(pytest.UsageError, match="no backend of django_dhara"):
        request.getfixturevalue("dhara_inline")


@pytest.fixture
def project(tmp_path):
    """A folder with our entry point as an installed package has it, and pytest in a process of its own."""
    info = tmp_path / "site" / "django_dhara-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: django-dhara\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[pytest11]\ndjango_dhara = django_dhara.testing.plugin\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(code, *flags):
        (tmp_path / "test_project.py").write_text(code)
        environment = {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.fast
def test_the_plugin_leaves_projects_without_django_settings_alone(project):
    code = (
        "import sys\n"
        "def test(request):\n"
        "    assert request.config.pluginmanager.hasplugin('django_dhara')\n"
        "    assert 'django_dhara.models' not in sys.modules\n"
        "    assert 'django_dhara.execution' not in sys.modules\n"
        "    from django.conf import settings\n"
        "    assert not settings.configured\n"
    )
    for flags in ((), ("-p", "no:django")):
        done = project(code, *flags)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_can_be_switched_off(project):
    done = project("def test(dhara_manual): pass\n", "-p", "no:django_dhara")
    assert "fixture 'dhara_manual' not found" in done.stdout
    done = project("def test(): pass\n", "-p", "no:django_dhara", "-p", "no:django")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_gives_its_fixtures(project):
    code = (
        "import django\n"
        "from django.conf import settings\n"
        "settings.configure(\n"
        "    INSTALLED_APPS=['django_dhara'],\n"
        "    TASKS={'default': {'BACKEND': 'django_dhara.backend.DharaBackend', 'QUEUES': []}},\n"
        "    DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'x'}},\n"
        ")\n"
        "django.setup()\n"
        "from django_dhara import task\n"
        "from django_dhara.testing import assert_enqueued\n"
        "@task(max_attempts=2)\n"
        "def double(n): return 2 * n\n"
        "def test_inline(dhara_inline): assert double.enqueue(2).return_value == 4\n"
        "def test_manual(dhara_manual):\n"
        "    double.enqueue(3)\n"
        "    assert_enqueued(double, 3)\n"
        "    assert dhara_manual.run_one().return_value == 6\n"
    )
    done = project(code, "-p", "no:randomly")
    assert done.returncode == 0, done.stdout + done.stderr
