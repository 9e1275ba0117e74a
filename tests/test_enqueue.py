"""Promises 1 and 2: committed means queued, rolled back means never existed, and an enqueue poisons no transaction."""

import logging
import warnings
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from select import select
from threading import Barrier
from uuid import UUID, uuid4

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_dhara import enqueue as enqueue_module
from django_dhara import lifecycle, sql, wakeup
from django_dhara.compat import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from django_dhara.enqueue import AliasWarning, current_task
from django_dhara.errors import (
    ArgumentsError,
    IdempotencyConflict,
    IsolationError,
    PayloadError,
    PayloadTooLarge,
    PayloadTypeError,
)
from django_dhara.models import Task
from django_dhara.signals import task_committed
from django_dhara.states import State
from django_dhara.tasks import task
from tests.app.models import Note
from tests.app.tasks import add
from tests.rows import a_task, ago, an_attempt, fresh
from tests.sessions import wait
from tests.verbs import look_then_insert


@task
def greet(name="", *, loudly=False):
    return name


@task(takes_context=True)
def with_context(context, number):
    return number


@task
async def in_a_loop(number):
    return number


@pytest.fixture
def options(settings):
    """Sets OPTIONS of the default backend for one test."""

    def set_(**changes):
        default = settings.TASKS["default"]
        settings.TASKS = {**settings.TASKS, "default": {**default, "OPTIONS": {**default["OPTIONS"], **changes}}}

    return set_


@pytest.fixture
def quiet(options):
    """Without NOTIFY, so that only the statements of the enqueue itself are counted."""
    options(NOTIFY=False)


def enqueue_many(*calls):
    return task_backends["default"].enqueue_many(calls)


FUTURE = datetime(2090, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def keyed(key, of=add):
    return of.using(idempotency_key=key)


def notes():
    return sorted(Note.objects.values_list("text", flat=True))


def tasks():
    """The first argument of every task there is."""
    return sorted(row.payload["args"][0] for row in Task.objects.all())


def write(text):
    """A business row and a task that says the same."""
    Note.objects.create(text=text)
    return add.enqueue(text)


# ------------------------------------------------------------------------------------------------ with or not at all


@pytest.mark.fast
def test_a_task_commits_with_the_row_beside_it(commits):
    with transaction.atomic():
        write("a")
    assert tasks() == notes() == ["a"]


@pytest.mark.fast
def test_a_task_is_rolled_back_with_the_row_beside_it(commits):
    with suppress(RuntimeError), transaction.atomic():
        result = write("a")
        raise RuntimeError
    assert tasks() == notes() == []
    assert result.committed is False
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


@pytest.mark.parametrize("outer_fails", [False, True])
@pytest.mark.parametrize("inner_fails", [False, True])
@pytest.mark.parametrize("savepoint", [False, True])
def test_a_task_of_a_savepoint_fares_like_the_row_beside_it(commits, outer_fails, inner_fails, savepoint):
    with suppress(RuntimeError), transaction.atomic():
        outer = write("outer")
        with suppress(RuntimeError), transaction.atomic(savepoint=savepoint):
            inner = write("inner")
            if inner_fails:
                raise RuntimeError
        if outer_fails:
            raise RuntimeError
    assert tasks() == notes()
    assert outer.committed == ("outer" in notes())
    assert inner.committed == ("inner" in notes())


def test_nobody_sees_a_task_before_its_commit(commits, sessions):
    [other] = sessions(1)
    count = "SELECT count(*) FROM dhara_task"
    with transaction.atomic():
        add.enqueue(1)
        assert other.execute(count, {}) == [(0,)]
    assert other.execute(count, {}) == [(1,)]


@pytest.mark.fast
def test_a_task_enqueued_outside_a_transaction_is_committed_at_once(commits):
    result = add.enqueue(1)
    assert (result.committed, result.duplicate, result.status) == (True, False, TaskResultStatus.READY)


def _end_backend(other_session):
    pid = connection.connection.info.backend_pid
    with other_session.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_block_whose_session_died_inside_says_not_committed(other_session):  # F19 a
    with suppress(DatabaseError), transaction.atomic():
        result = write("a")
        with suppress(RuntimeError, DatabaseError), transaction.atomic():
            _end_backend(other_session)
            raise RuntimeError
    connection.close()
    assert tasks() == notes() == []
    assert result.committed is False


def test_a_block_whose_connection_was_closed_inside_says_not_committed(commits):  # F19 b
    with suppress(DatabaseError), transaction.atomic():
        result = write("a")
        connection.close()
    connection.close()
    assert tasks() == notes() == []
    assert result.committed is False


def test_a_block_with_a_swallowed_error_says_not_committed(commits):  # F19 c
    with transaction.atomic():
        result = write("a")
        with suppress(RuntimeError), transaction.atomic(savepoint=False):
            raise RuntimeError
    assert tasks() == notes() == []
    assert result.committed is False


def test_a_block_that_was_told_to_roll_back_says_not_committed(commits):  # F19 d
    with transaction.atomic():
        result = write("a")
        transaction.set_rollback(True)
    assert tasks() == notes() == []
    assert result.committed is False


def test_what_was_not_committed_is_not_committed_by_a_later_block(other_session):
    with suppress(DatabaseError), transaction.atomic():
        lost = write("a")
        _end_backend(other_session)
        connection.close()
    with transaction.atomic():
        kept = write("b")
    assert (lost.committed, kept.committed, tasks()) == (False, True, ["b"])


def test_a_failing_insert_rolls_the_business_row_back(commits, sessions):  # F03
    [other] = sessions(1)
    other.begin()
    other.connection.execute("LOCK TABLE dhara_task")
    with pytest.raises(OperationalError), transaction.atomic():
        Note.objects.create(text="a")
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '10ms'")
        add.enqueue(1)
    other.end()
    assert notes() == tasks() == []


def test_an_enqueue_in_an_aborted_transaction_raises_djangos_usual_error(commits):  # F18
    with transaction.atomic():
        with suppress(DatabaseError), transaction.atomic(savepoint=False), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        with pytest.raises(transaction.TransactionManagementError):
            add.enqueue(1)


@pytest.mark.parametrize("ends_with", ["commit", "rollback"])
def test_who_commits_by_hand_can_enqueue(commits, ends_with):
    transaction.set_autocommit(False)
    try:
        one = write("a")
        many = enqueue_many(add.bind("b"), keyed("k").bind("c"))
        getattr(transaction, ends_with)()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert tasks() == (["a", "b", "c"] if ends_with == "commit" else [])
    # Nobody tells us when such a transaction commits, and what is not known is not said.
    assert not any(result.committed for result in [one, *many])


class InATestCase(TestCase):
    def test_a_test_sees_its_task_at_once(self):
        result = add.enqueue(1)
        assert tasks() == [1]
        assert (add.get_result(result.id).state, result.committed) == (State.PENDING, False)

    def test_a_test_can_run_what_happens_at_commit(self):
        with self.captureOnCommitCallbacks(execute=True):
            result = add.enqueue(1)
        assert result.committed is True


# ----------------------------------------------------------------------------------------------------- what is stored


@pytest.mark.fast
def test_a_call_becomes_a_row(db):
    chosen = add.using(
        priority=7, queue_name="mail", max_attempts=3, timeout=1.5, metadata={"a": [1]}, idempotency_key="k"
    )
    result = chosen.enqueue(1, b={"x": (1, 2)})
    row = Task.objects.get()
    assert (str(row.id), row.backend, row.function) == (result.id, "default", "tests.app.tasks.add")
    assert (row.queue, row.priority, row.max_attempts, row.timeout) == ("mail", 7, 3, 1.5)
    assert row.payload == {"args": [1], "kwargs": {"b": {"x": [1, 2]}}}
    assert (row.metadata, row.idempotency_key, row.state, row.lease) == ({"a": [1]}, "k", State.PENDING, 0)
    assert (result.args, result.kwargs) == (row.payload["args"], row.payload["kwargs"])
    assert (result.enqueued_at, result.task.priority) == (row.enqueued_at, 7)


def test_a_call_without_options_takes_those_of_the_backend(db, options):
    options(MAX_ATTEMPTS=9)
    add.enqueue(1)
    row = Task.objects.get()
    assert (row.max_attempts, row.timeout, row.metadata, row.payload_hash) == (9, None, None, None)


def test_the_time_is_the_insert_and_not_the_start_of_the_transaction(commits):  # F16
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.02)")
        add.enqueue(1)
        cursor.execute("SELECT enqueued_at - now() >= interval '20 ms' AND run_at = enqueued_at FROM dhara_task")
        assert cursor.fetchone() == (True,)


def test_a_task_knows_the_task_whose_run_enqueued_it(db):
    parent = uuid4()
    token = current_task.set(parent)
    try:
        add.enqueue(1)
        enqueue_many(add.bind(2), add.bind(3))
    finally:
        current_task.reset(token)
    add.enqueue(4)
    assert [row.parent_id for row in Task.objects.order_by("payload__args__0")] == [parent, parent, parent, None]


def test_ids_are_of_version_seven_and_ascend_in_a_bulk(db):
    ids = [UUID(result.id) for result in enqueue_many(*(add.bind(n) for n in range(1500)))]
    assert {id_.version for id_ in ids} == {7}
    assert ids == sorted(set(ids))


def test_a_function_decorated_with_djangos_own_task_is_enqueued_as_well(db):
    if django.VERSION < (6, 0):
        from django_tasks import task as djangos
    else:
        from django.tasks import task as djangos

    plain = djangos(_plain)
    result = plain.using(priority=3, queue_name="mail").enqueue(1, name="x")
    row = Task.objects.get()
    assert (str(row.id), row.function, row.priority, row.queue) == (result.id, "tests.test_enqueue._plain", 3, "mail")


def _plain(number, name):
    return number


def test_async_code_enqueues_as_well(commits):
    from asgiref.sync import async_to_sync

    result = async_to_sync(in_a_loop.aenqueue)(7)
    assert result.committed is True
    assert tasks() == [7]


# ----------------------------------------------------------------------------------------------- what can be refused


@pytest.mark.fast
@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (add.enqueue, r"tests\.app\.tasks\.add\(a, b=2\).*'a'"),
        (lambda: add.enqueue(1, 2, 3), r"tests\.app\.tasks\.add.*too many positional arguments"),
        (lambda: add.enqueue(1, c=3), r"'c'"),
        (lambda: add.enqueue(1, a=3), r"'a'"),
        (lambda: greet.enqueue("x", True), r"too many positional"),
        (with_context.enqueue, r"with_context\((?!context).*'number'"),
        (lambda: with_context.enqueue(1, context=2), r"'context'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name_and_harm_no_transaction(db, refused, message):
    Note.objects.create(text="before")
    with CaptureQueriesContext(connection) as queries, pytest.raises(ArgumentsError, match=message):
        refused()
    assert len(queries) == 0
    Note.objects.create(text="after")
    assert notes() == ["after", "before"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("value", "error", "path"),
    [
        ({"x": ["a\0b"]}, PayloadError, r"args\[0\]\.x\[0\]"),
        ({"k\0": 1}, PayloadError, r"args\[0\]"),
        (float("nan"), PayloadError, r"args\[0\]"),
        ([float("inf")], PayloadError, r"args\[0\]\[0\]"),
        ("\ud800", PayloadError, r"args\[0\]"),
        ({1, 2}, PayloadTypeError, r"args\[0\]"),
        (object(), PayloadTypeError, r"args\[0\]"),
        ({1: "a", "1": "b"}, PayloadError, r"args\[0\]"),
        ("x" * 1_100_000, PayloadTooLarge, r"1,?000,?000"),
    ],
    ids=["nul", "nul in a key", "nan", "infinity", "surrogate", "set", "object", "colliding keys", "too large"],
)
def test_arguments_that_cannot_be_stored_are_refused_by_path_and_harm_no_transaction(db, value, error, path):
    Note.objects.create(text="before")
    with CaptureQueriesContext(connection) as queries, pytest.raises(error, match=path) as caught:
        add.enqueue(value)
    assert len(queries) == 0
    assert "tests.app.tasks.add" in caught.value.__notes__[0]
    with pytest.raises(error), CaptureQueriesContext(connection) as queries:
        enqueue_many(add.bind(1), add.bind(value))
    Note.objects.create(text="after")
    assert (notes(), tasks()) == (["after", "before"], [])


@pytest.mark.parametrize(
    "options",
    [
        {"queue_name": "a\0b"},
        {"queue_name": ""},
        {"queue_name": "x" * 256},
        {"idempotency_key": "a\0b"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
        {"idempotency_key": "\ud800"},
        {"idempotency_key": 7},
        {"metadata": [1]},
        {"max_attempts": 0},
        {"timeout": float("nan")},
        {"priority": 101},
        {"run_after": datetime(2026, 1, 1)},
        {"run_after": datetime.max.replace(tzinfo=UTC)},
        {"run_after": datetime.min.replace(tzinfo=UTC)},
        {"run_after": timedelta(seconds=-1)},
        {"run_after": timedelta.max},
        {"run_after": "tomorrow"},
        {"run_after": 60},
    ],
    ids=str,
)
def test_options_that_cannot_be_stored_are_refused_by_name(db, options):
    [name] = options
    with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidTask, match=name):
        add.using(**options).enqueue(1)
    assert len(queries) == 0


def test_metadata_that_cannot_be_stored_is_refused_by_path(db):
    with pytest.raises(PayloadError, match="metadata"):
        add.using(metadata={"a": "\0"}).enqueue(1)
    assert tasks() == []


@pytest.mark.parametrize("size", [7_900, 8_100, 900_000])
def test_large_arguments_are_stored(commits, size):  # E13
    add.enqueue("x" * size)
    assert len(Task.objects.get().payload["args"][0]) == size


# -------------------------------------------------------------------------------------------------------------- when


@pytest.mark.fast
def test_a_delay_counts_from_the_insert_by_the_clock_of_the_database(db):
    result = add.using(run_after=timedelta(hours=2, microseconds=3)).enqueue(1)
    row = Task.objects.get()
    assert row.run_at - row.enqueued_at == timedelta(hours=2, microseconds=3)
    assert result.task.run_after == row.run_at


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1990, 1, 1, tzinfo=UTC),
        datetime.now(UTC) + timedelta(days=36_000),
        datetime(2030, 10, 27, 2, 30, tzinfo=datetime.now().astimezone().tzinfo),
    ],
    ids=["the past", "the far future", "another zone"],
)
def test_a_task_is_due_at_the_given_moment(db, moment):
    result = add.using(run_after=moment).enqueue(1)
    assert Task.objects.get().run_at == moment
    assert result.task.run_after == moment


def test_the_longest_delay_can_be_read_back(db):
    result = add.using(run_after=timedelta(days=36_500)).enqueue(1)
    assert add.get_result(result.id).task.run_after.year > 2100


def test_a_delay_and_a_moment_replace_each_other(db):
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    add.using(run_after=timedelta(days=1)).using(run_after=moment).enqueue(1)
    assert Task.objects.get().run_at == moment
    add.using(run_after=moment).using(run_after=timedelta(0)).enqueue(2)
    assert Task.objects.filter(run_at=moment).count() == 1


# ------------------------------------------------------------------------------------------------------- idempotency


@pytest.mark.fast
def test_a_replay_returns_the_task_that_is_there_and_harms_no_transaction(db):  # F06
    first = keyed("k").enqueue(1)
    Note.objects.create(text="before")
    again = keyed("k").enqueue(1)
    Note.objects.create(text="after")
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert (notes(), tasks()) == (["after", "before"], [1])


@pytest.mark.parametrize("state", State)
def test_a_replay_tells_the_state_of_the_task(db, state):
    first = keyed("k").enqueue(1)
    row = a_task(state)
    columns = {f.attname: getattr(fresh(row), f.attname) for f in Task._meta.fields}
    row.delete()
    for name in ("id", "function", "queue", "payload", "payload_hash", "idempotency_key", "run_at", "enqueued_at"):
        del columns[name]
    Task.objects.update(**columns)
    an_attempt(Task(pk=first.id), traceback="the first one broke")
    again = keyed("k").enqueue(1)
    assert (again.id, again.state, again.duplicate) == (first.id, state, True)
    assert again.errors[0].traceback == "the first one broke"
    assert again.worker_ids[0] == str(UUID(int=1))


def test_a_replay_is_the_same_call_however_it_is_written(db):
    first = keyed("k").enqueue({"a": 1, "b": (1, 2)}, b=3)
    assert keyed("k").enqueue({"b": [1, 2], "a": 1}, b=3).id == first.id


@pytest.mark.fast
def test_one_key_with_other_arguments_is_an_error_that_names_both_and_harms_no_transaction(db):  # F15
    first = keyed("k").enqueue("old")
    Note.objects.create(text="before")
    with pytest.raises(IdempotencyConflict) as caught:
        keyed("k").enqueue("new")
    for part in ("'k'", "tests.app.tasks.add", first.id, '"old"', '"new"'):
        assert part in str(caught.value)
    Note.objects.create(text="after")
    assert (notes(), tasks()) == (["after", "before"], ["old"])


def test_a_conflict_of_large_arguments_has_a_short_message(db):
    keyed("k").enqueue("x" * 100_000)
    with pytest.raises(IdempotencyConflict) as caught:
        keyed("k").enqueue("y" * 100_000)
    assert len(str(caught.value)) < 1000


def test_a_key_belongs_to_its_function(db):
    assert keyed("k").enqueue("x").id != keyed("k", greet).enqueue("x").id
    assert len(tasks()) == 2


def test_a_key_is_free_again_once_its_task_is_pruned(db):
    first = keyed("k").enqueue(1)
    lifecycle.cancel(sql.on("default"), UUID(first.id))
    assert keyed("k").enqueue(1).id == first.id
    Task.objects.update(finished_at=ago(100))
    lifecycle.prune(sql.on("default"), "default", "default", State.CANCELED, older_than=1, keyed_older_than=1)
    again = keyed("k").enqueue(1)
    assert (again.id == first.id, again.duplicate) == (False, False)


def test_a_task_that_is_pruned_while_it_is_looked_up_is_made_anew(db, monkeypatch):
    first = keyed("k").enqueue(1)
    look = enqueue_module._read_taken

    def too_late(connection, rows):
        Task.objects.all().delete()
        monkeypatch.setattr(enqueue_module, "_read_taken", look)
        look(connection, rows)

    monkeypatch.setattr(enqueue_module, "_read_taken", too_late)
    again = keyed("k").enqueue(1)
    assert (again.id == first.id, again.duplicate, len(tasks())) == (False, False, 1)


def test_a_replay_in_the_transaction_of_the_first_finds_it(commits):
    with transaction.atomic():
        first = keyed("k").enqueue(1)
        again = keyed("k").enqueue(1)
        assert (again.id, again.duplicate, again.committed) == (first.id, True, False)
    assert (first.committed, again.committed) == (True, True)


def test_a_key_of_a_rolled_back_savepoint_is_free(db):
    with suppress(RuntimeError), transaction.atomic():
        first = keyed("k").enqueue(1)
        raise RuntimeError
    again = keyed("k").enqueue(2)
    assert (again.id == first.id, again.duplicate) == (False, False)


# ---------------------------------------------------------------------------------------------------- racing for a key


def test_fifty_racers_for_one_key_make_one_task_and_all_get_its_id(callers):  # F09
    barrier = Barrier(50)

    def race(key, bulk):
        barrier.wait(20)
        if bulk:
            calls = [keyed(key).bind(1), add.bind(0), keyed(key).bind(1)]
            one, _, two = task_backends["default"].enqueue_many(calls)
            assert (one.id, two.duplicate) == (two.id, True)
            return one
        return keyed(key).enqueue(1)

    racers = callers(50)
    for round_ in range(6):
        futures = [racer.start(race, f"k{round_}", bulk=n % 5 == 0) for n, racer in enumerate(racers)]
        results = [future.result(30) for future in futures]
        assert len({result.id for result in results}) == 1
        assert sum(not result.duplicate for result in results) == 1
        assert all(result.committed for result in results)
    assert Task.objects.exclude(idempotency_key=None).count() == 6


def race_in_transactions(racers, key):
    """Fifty callers write a note, enqueue, enqueue again, write another note; every third rolls back a first try."""
    barrier = Barrier(len(racers))

    def write(name):
        Note.objects.create(text=f"{name} before")
        result, replay = keyed(key).enqueue(1), keyed(key).enqueue(1)
        Note.objects.create(text=f"{name} after")
        return result, replay

    def race(number):
        barrier.wait(20)
        if number % 3 == 0:
            with suppress(RuntimeError), transaction.atomic():
                write(f"rolled back {number}")
                raise RuntimeError
        with transaction.atomic():
            return write(number)

    futures = [racer.start(race, number) for number, racer in enumerate(racers)]
    return [future.result(30) for future in futures]


def test_racers_whose_transactions_roll_back_or_replay_make_one_task_and_keep_their_other_writes(callers):
    racers = callers(50)
    for round_ in range(4):
        pairs = race_in_transactions(racers, f"k{round_}")
        [row] = Task.objects.filter(idempotency_key=f"k{round_}")
        assert {result.id for pair in pairs for result in pair} == {str(row.id)}
        assert sum(not result.duplicate for result, _ in pairs) == 1
        assert all(replay.duplicate for _, replay in pairs)
        assert notes() == sorted(f"{number} {when}" for number in range(50) for when in ("before", "after"))
        Note.objects.all().delete()


def test_racers_notice_a_key_that_is_looked_up_and_then_inserted(callers, monkeypatch):
    look_then_insert(monkeypatch)
    with pytest.raises(IntegrityError):
        race_in_transactions(callers(50), "k")


@pytest.mark.fast
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_the_second_of_two_racers_waits_for_the_transaction_of_the_first(callers, sessions, how):  # F07
    [second], [watcher] = callers(1), sessions(1)
    with suppress(RuntimeError), transaction.atomic():
        first = keyed("k").enqueue(1)
        future = second.start(keyed("k").enqueue, 1)
        assert not wait(future, second, watcher)
        if how == "ROLLBACK":
            raise RuntimeError
    result = future.result(20)
    assert (result.id == first.id, result.duplicate) == ((True, True) if how == "COMMIT" else (False, False))
    assert [row.id for row in Task.objects.all()] == [UUID(result.id)]


def test_a_racer_learns_the_state_that_was_committed_while_it_waited(callers, sessions):
    [second], [watcher] = callers(1), sessions(1)
    with transaction.atomic():
        first = keyed("k").enqueue(1)
        future = second.start(keyed("k").enqueue, 1)
        assert not wait(future, second, watcher)
        assert lifecycle.cancel(sql.on("default"), UUID(first.id)) == "canceled"
    assert (future.result(20).id, future.result().state) == (first.id, State.CANCELED)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_above_read_committed_a_race_for_a_key_is_a_typed_error(callers, level):
    [other] = callers(1)
    with pytest.raises(IsolationError) as caught, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert notes() == []
        other.start(keyed("k").enqueue, 1).result(20)
        keyed("k").enqueue(1)
    assert caught.value.__cause__.__cause__.sqlstate == "40001"


def test_above_read_committed_what_is_seen_is_found(commits):
    first = keyed("k").enqueue(1)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert keyed("k").enqueue(1).id == first.id
        add.enqueue(2)


def on_a_connection_of_its_own(monkeypatch, other):
    insert = enqueue_module._insert
    monkeypatch.setattr(enqueue_module, "_insert", lambda connection, backend, rows: insert(other, backend, rows))


def before_the_commit(monkeypatch, other):
    real = enqueue_module._announce

    def _announce(connection, backend, rows):
        real(connection, backend, rows)
        enqueue_module._committed(backend, rows)

    monkeypatch.setattr(enqueue_module, "_announce", _announce)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (on_a_connection_of_its_own, test_a_task_is_rolled_back_with_the_row_beside_it),
        (before_the_commit, test_a_block_that_was_told_to_roll_back_says_not_committed),
    ],
    ids=["it is enqueued on another connection than the caller's", "it is acknowledged before the commit"],
)
def test_a_planted_bug_is_noticed(commits, other_session, monkeypatch, plant, test):
    plant(monkeypatch, other_session)
    with pytest.raises(AssertionError):
        test(commits)


# -------------------------------------------------------------------------------------------------------------- bulks


@pytest.mark.fast
def test_results_of_a_bulk_come_in_the_order_of_its_calls(db):
    keyed("c").enqueue(2)
    calls = [add.bind(0), keyed("z").bind(1), keyed("c").bind(2), keyed("z").bind(1), greet.bind("g"), add.bind(5)]
    results = enqueue_many(*calls)
    assert [result.args for result in results] == [list(call.args) for call in calls]
    assert [result.duplicate for result in results] == [False, False, True, True, False, False]
    assert results[1].id == results[3].id
    assert Task.objects.count() == 5


def test_what_no_key_decides_answers_with_one_row_and_results_are_made_when_looked_at(db, quiet):
    later = add.using(run_after=timedelta(minutes=5))
    results = enqueue_many(add.bind(1), later.bind(2), add.using(run_after=FUTURE).bind(3))
    assert not any(row.result for row in results._rows)
    rows = {str(row.id): row for row in Task.objects.all()}
    assert results[0].enqueued_at == rows[results[0].id].enqueued_at == rows[results[0].id].run_at
    assert results[1].task.run_after == rows[results[1].id].run_at == results[1].enqueued_at + timedelta(minutes=5)
    assert results[2].task.run_after == rows[results[2].id].run_at == FUTURE
    assert results[0] is results[0]
    assert [each.id for each in results[:2]] == [results[0].id, results[1].id]


def test_a_result_that_is_looked_at_after_the_commit_knows_of_it(commits, quiet):
    with transaction.atomic():
        results = enqueue_many(add.bind(1), add.bind(2))
        assert results[0].committed is False
    assert [result.committed for result in results] == [True, True]


def test_a_bulk_of_nothing_does_nothing(db, quiet):
    with CaptureQueriesContext(connection) as queries:
        assert list(enqueue_many()) == []
    assert len(queries) == 0


@pytest.mark.parametrize("keyed_ones", [0, 3])
def test_a_large_bulk_goes_in_by_the_thousand_and_all_at_once(commits, quiet, keyed_ones):
    calls = [(keyed(f"k{n}") if n < keyed_ones else add).bind(n) for n in range(2500)]
    with CaptureQueriesContext(connection) as queries:
        results = enqueue_many(*calls)
    words = [query["sql"].split()[0] for query in queries]
    assert [words[0], *words[-1:]] == ["BEGIN", "COMMIT"]
    assert sorted(words[1:-1]) == (["INSERT", "WITH", "WITH"] if keyed_ones else ["WITH", "WITH", "WITH"])
    assert [result.args for result in results] == [[n] for n in range(2500)]
    assert all(result.committed for result in results)
    assert len({result.id for result in results}) == Task.objects.count() == 2500


@pytest.mark.fast
@pytest.mark.parametrize("size", [3, 1500])
@pytest.mark.parametrize("in_atomic", [False, True])
def test_a_conflict_in_a_bulk_enqueues_nothing_of_it_and_harms_no_transaction(commits, size, in_atomic):
    keyed("taken").enqueue("old")
    calls = [keyed(f"k{n:04}").bind("new") for n in range(size)]
    calls[size // 2] = keyed("taken").bind("other")
    heard = []
    task_enqueued.connect(listener := lambda **named: heard.append(named), weak=False)
    try:
        if not in_atomic:
            with pytest.raises(IdempotencyConflict):
                enqueue_many(*calls)
        else:
            with transaction.atomic():
                Note.objects.create(text="before")
                with pytest.raises(IdempotencyConflict):
                    enqueue_many(*calls)
                write("after")
    finally:
        task_enqueued.disconnect(listener)
    assert (tasks(), notes()) == ((["after", "old"], ["after", "before"]) if in_atomic else (["old"], []))
    assert len(heard) == len(notes()) // 2


def test_a_conflict_between_two_calls_of_one_bulk_enqueues_neither(db):
    with pytest.raises(IdempotencyConflict, match="is in this bulk twice, with other arguments") as caught:
        enqueue_many(keyed("j").bind(0), keyed("k").bind(1), keyed("k").bind(1), keyed("k").bind(2))
    assert '"args":[1]' in str(caught.value)
    assert '"args":[2]' in str(caught.value)
    assert (caught.value.task_id, caught.value.position, caught.value.key) == (None, 1, "k")
    assert tasks() == []


def test_arguments_by_position_and_by_name_are_not_the_same_and_the_error_says_so(db):
    keyed("k").enqueue(1)
    with pytest.raises(IdempotencyConflict, match="by position and by name are not the same arguments") as caught:
        keyed("k").enqueue(a=1)
    assert caught.value.position is None


def crossed_bulks(callers, rounds):
    """Two bulks at once whose keys come in opposite orders."""
    barrier = Barrier(2)

    def bulk(numbers, round_):
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '5ms'")
        barrier.wait(20)
        return task_backends["default"].enqueue_many([keyed(f"{round_}-{n:03}").bind(n) for n in numbers])

    up, down = range(300), range(299, -1, -1)
    pair = callers(2)
    for round_ in range(rounds):
        futures = [caller.start(bulk, numbers, round_) for caller, numbers in zip(pair, (up, down), strict=True)]
        first, second = [future.result(30) for future in futures]
        assert [result.id for result in first] == [result.id for result in reversed(second)]
        assert [result.args for result in second] == [[n] for n in down]


def test_two_bulks_with_crossed_keys_share_their_tasks_and_do_not_deadlock(callers):
    crossed_bulks(callers, rounds=8)
    assert Task.objects.count() == 8 * 300


def test_bulks_that_are_not_sorted_would_deadlock(callers, monkeypatch):
    """Shows that the test above can fail: the order of the keys is what it tests."""
    monkeypatch.setattr(enqueue_module, "sorted", lambda rows, key: list(rows), raising=False)
    with pytest.raises(OperationalError, match="deadlock"):
        crossed_bulks(callers, rounds=50)


# --------------------------------------------------------------------------------------------- statements, connections


@pytest.mark.fast
def test_a_new_task_is_one_statement_and_a_replay_two(commits, quiet):
    for enqueue, statements in ((add.enqueue, 1), (keyed("k").enqueue, 1), (keyed("k").enqueue, 2)):
        with CaptureQueriesContext(connection) as queries:
            enqueue(1)
        assert [query["sql"].split()[0] for query in queries] == ["INSERT", "SELECT"][:statements]


def test_a_result_with_its_attempts_is_read_by_one_statement(db):
    result = add.enqueue(1)
    for number in (1, 2, 3):
        an_attempt(Task(pk=result.id), number=number, traceback=f"the {number}.", worker_id=UUID(int=number))
    with CaptureQueriesContext(connection) as queries:
        read = add.get_result(result.id)
    assert len(queries) == 1
    assert [error.traceback for error in read.errors] == ["the 1.", "the 2.", "the 3."]
    assert read.worker_ids == [str(UUID(int=number)) for number in (1, 2, 3)]


def test_a_replay_finds_its_key_by_the_index(db):
    keyed("k").enqueue(1)
    with CaptureQueriesContext(connection) as queries:
        keyed("k").enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {queries[-1]['sql']}")
        plan = "\n".join(line for [line] in cursor.fetchall())
    assert "dhara_task_key" in plan


@pytest.mark.parametrize(
    "options",
    [{"server_side_binding": True}, {"prepare_threshold": 0}, {"server_side_binding": True, "prepare_threshold": 0}],
    ids=str,
)
def test_every_way_of_binding_parameters_works(database, settings, options):
    other = database("bound", **options)
    settings.TASKS = {
        **settings.TASKS,
        "bound": {**settings.TASKS["default"], "OPTIONS": {"DATABASE": "bound", "NOTIFY": True}},
    }
    chosen = add.using(backend="bound", timeout=2, metadata={"a": "ä"}, priority=-3)
    with transaction.atomic(using="bound"):
        first = chosen.using(idempotency_key="k", run_after=timedelta(seconds=5)).enqueue("100 %", b="%s")
        again = chosen.using(idempotency_key="k").enqueue("100 %", b="%s")
        many = task_backends["bound"].enqueue_many([chosen.bind(n) for n in range(20)])
        with pytest.raises(IdempotencyConflict):
            chosen.using(idempotency_key="k").enqueue(2)
    assert other.connection is not None
    assert (again.id, again.duplicate) == (first.id, True)
    assert all(result.committed for result in [first, again, *many])
    assert Task.objects.using("bound").filter(backend="bound").count() == 21
    claims = lifecycle.claim(
        *(sql.on("bound"), "bound", lifecycle.Wanted("bound"), UUID(int=5)),
        limit=50,
        suspects=1,
        lease_seconds=30,
    ).claims
    endings = [lifecycle.Ending(claimed.id, claimed.lease, _done(), 0.1) for claimed in claims]
    settled = lifecycle.settle(sql.on("bound"), UUID(int=5), endings, max_interrupted=5)
    assert [answer.state for answer in settled] == [State.COMPLETED] * 20


def _done():
    from django_dhara.states import Completed

    return Completed("null")


# ------------------------------------------------------------------------------------------------------ other aliases


@pytest.mark.fast
def test_an_open_transaction_on_another_alias_only_is_warned_about_where_the_enqueue_stands(database):  # F05
    database("other")
    for call in (lambda: add.enqueue(1), lambda: enqueue_many(add.bind(2))):
        with transaction.atomic(using="other"), pytest.warns(AliasWarning, match="'other'.*'default'") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


def test_a_transaction_on_the_right_alias_is_not_warned_about(database):
    database("other")
    with warnings.catch_warnings(), transaction.atomic(using="other"), transaction.atomic():
        warnings.simplefilter("error")
        add.enqueue(1)


def test_a_task_goes_to_the_alias_of_its_backend(database, settings):
    database("other")
    settings.TASKS = {**settings.TASKS, "other": {**settings.TASKS["default"], "OPTIONS": {"DATABASE": "other"}}}
    with suppress(RuntimeError), transaction.atomic(using="other"):
        Note.objects.create(text="on default")
        result = add.using(backend="other").enqueue(1)
        raise RuntimeError
    assert (notes(), tasks(), result.committed) == (["on default"], [], False)


def test_a_task_of_another_backend_cannot_be_in_our_bulk(settings):
    from django_dhara.tasks import backend_of

    package = BaseTaskBackend.__module__.partition(".backends")[0]
    settings.TASKS = {**settings.TASKS, "now": {"BACKEND": f"{package}.backends.immediate.ImmediateBackend"}}
    with pytest.raises(ImproperlyConfigured, match="ImmediateBackend: use"):
        backend_of(add.using(backend="now"))


# ------------------------------------------------------------------------------------------------------------ signals


@pytest.fixture
def heard():
    """What was announced, in order."""
    told = []

    def enqueued(task_result, **named):
        told.append(("enqueued", task_result.args[0], task_result.committed))

    def committed(task_result, **named):
        told.append(("committed", task_result.args[0], task_result.committed))

    task_enqueued.connect(enqueued)
    task_committed.connect(committed)
    yield told
    task_enqueued.disconnect(enqueued)
    task_committed.disconnect(committed)


@pytest.mark.fast
def test_enqueued_is_announced_at_once_and_committed_only_at_the_commit(commits, heard):
    with transaction.atomic():
        add.enqueue(1)
        assert heard == [("enqueued", 1, False)]
    assert heard == [("enqueued", 1, False), ("committed", 1, True)]


def test_what_is_rolled_back_is_never_announced_as_committed(commits, heard):
    with suppress(RuntimeError), transaction.atomic():
        add.enqueue(1)
        raise RuntimeError
    assert heard == [("enqueued", 1, False)]


def test_a_duplicate_is_not_announced(commits, heard):
    keyed("k").enqueue(1)
    heard.clear()
    keyed("k").enqueue(1)
    assert heard == []


def test_a_receiver_that_raises_is_logged_and_changes_nothing(commits, caplog):  # F17
    def broken(**named):
        raise RuntimeError("a receiver broke")

    for signal in (task_enqueued, task_committed):
        signal.connect(broken)
    try:
        with transaction.atomic():
            result = write("a")
            transaction.on_commit(lambda: 1 / 0, robust=True)
    finally:
        for signal in (task_enqueued, task_committed):
            signal.disconnect(broken)
    assert (tasks(), notes(), result.committed) == (["a"], ["a"], True)
    told = [record for record in caplog.records if record.name == "django.dispatch"]
    assert [record.levelno for record in told] == [logging.ERROR] * 2
    assert all("a receiver broke" in str(record.exc_info[1]) for record in told)


# ------------------------------------------------------------------------------------------------------------- wake-ups


class Ear:
    """A session that listens to the channel of the default backend."""

    def __init__(self, session, channel):
        self.connection, self.channel = session.connection, channel
        self.connection.execute(f'LISTEN "{channel}"')

    def heard(self):
        """Everything that was sent so far: an own notification comes last."""
        self.connection.execute("SELECT pg_notify(%s, '')", [self.channel])
        came = []
        for notification in self.connection.notifies(timeout=20):
            if notification.payload == "":
                return came
            came.append(notification.payload)
        raise AssertionError("the own notification did not come back")


@pytest.fixture
def ear(sessions, monkeypatch):
    monkeypatch.setattr(wakeup, "_sent", {})
    [session] = sessions(1)
    return Ear(session, wakeup.channel("default"))


@pytest.fixture
def clock(monkeypatch):
    """The clock of wakeup.py, moved by hand."""
    times = [100.0]
    monkeypatch.setattr(wakeup, "monotonic", lambda: times[0])
    return times


@pytest.mark.fast
@pytest.mark.parametrize("size", [1, 8_100, 900_000])
def test_a_commit_wakes_the_workers_by_the_name_of_the_queue_alone(ear, size):  # E13
    with transaction.atomic():
        add.using(queue_name="mail").enqueue("x" * size)
        assert ear.heard() == []
    assert ear.heard() == ["mail"]


@pytest.mark.parametrize("name", ["ä" * 200, "日本" * 100, "😀" * 200, "a'b\"c%s"])
def test_a_queue_may_have_any_name(ear, name):
    add.using(queue_name=name).enqueue(1)
    assert (ear.heard(), Task.objects.get().queue) == ([name], name)


def test_a_rollback_wakes_nobody(ear):
    with suppress(RuntimeError), transaction.atomic():
        add.enqueue(1)
        raise RuntimeError
    assert ear.heard() == []


def test_a_savepoint_that_is_rolled_back_wakes_nobody_and_the_rest_does(ear):  # F04
    with transaction.atomic():
        add.using(queue_name="outer").enqueue(1)
        with suppress(RuntimeError), transaction.atomic():
            add.using(queue_name="inner").enqueue(1)
            raise RuntimeError
    assert ear.heard() == ["outer"]


def test_a_queue_is_announced_once_in_ten_milliseconds(ear, clock):
    for _ in range(20):
        add.using(queue_name="a").enqueue(1)
        add.using(queue_name="b").enqueue(1)
    assert ear.heard() == ["a", "b"]
    clock[0] += 0.009
    add.using(queue_name="a").enqueue(1)
    assert ear.heard() == []
    clock[0] += 0.0011
    add.using(queue_name="a").enqueue(1)
    assert ear.heard() == ["a"]


def test_a_bulk_announces_each_of_its_queues_once(ear):
    enqueue_many(*(add.using(queue_name=f"q{n % 3}").bind(n) for n in range(30)))
    assert sorted(ear.heard()) == ["q0", "q1", "q2"]


def test_a_duplicate_wakes_nobody(ear, clock):
    keyed("k").enqueue(1)
    clock[0] += 1
    keyed("k").enqueue(1)
    assert ear.heard() == ["default"]


def test_without_notify_nothing_is_sent(ear, quiet):
    add.enqueue(1)
    assert ear.heard() == []


def test_a_notification_that_fails_harms_neither_the_task_nor_the_caller(commits, monkeypatch, caplog):
    monkeypatch.setattr(wakeup, "_sent", {})
    monkeypatch.setattr(wakeup, "_NOTIFY", "SELECT no_such_function(%s, %s)")
    result = add.enqueue(1)
    with transaction.atomic():
        add.enqueue(2)
    assert (result.committed, tasks()) == (True, [1, 2])
    assert "no_such_function" in caplog.text


@pytest.mark.parametrize("alias", ["default", "x" * 100, 'quo"ted', "ä" * 40])
def test_the_channel_of_any_alias_is_heard(sessions, alias):
    [one, other] = sessions(2)
    listener = wakeup.Listener(one.connection, alias)
    other.connection.execute("SELECT pg_notify(%s, %s)", [wakeup.channel(alias), "mail"])
    assert select([one.connection], [], [], 20)[0]
    assert listener.heard() == ["mail"]


@pytest.mark.parametrize("hours", [-23.75, 15.5, 22.75])
def test_any_offset_of_run_after_is_stored(db, hours):
    when = datetime(2050, 1, 1, tzinfo=timezone(timedelta(hours=hours)))
    result = add.using(run_after=when).enqueue(1)
    assert Task.objects.get(id=result.id).run_at == when
