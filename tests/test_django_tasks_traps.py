"""The traps of Django's tasks API that other backends fell into, one test each: see django_tasks.md, section 2."""

import logging
import sys
from datetime import timedelta
from uuid import uuid4

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_dhara import cancel, lifecycle, revive, signals, sql, task
from django_dhara.backend import DharaBackend
from django_dhara.compat import TaskResultStatus, task_backends, task_enqueued, task_finished, task_started
from django_dhara.errors import PayloadError
from django_dhara.lifecycle import Wanted
from django_dhara.models import Attempt
from django_dhara.models import Task as Row
from django_dhara.states import Completed, State
from django_dhara.tasks import Task
from django_dhara.testing import run_all
from django_dhara.worker import Worker
from tests.rows import OTHER_WORKER, WORKER, a_task, ago, an_ending

PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
OURS = "django_dhara.backend.DharaBackend"


@pytest.fixture
def listen():
    """Connects receivers, and disconnects them at the end of the test."""
    connected = []

    def connect(signal, receiver, **options):
        signal.connect(receiver, **options)
        connected.append((signal, receiver, options.get("sender")))

    yield connect
    for signal, receiver, sender in connected:
        signal.disconnect(receiver, sender=sender)


def burst():
    backend = task_backends["default"]
    return Worker(backend, backend.settings, Wanted("default"), burst=True).run()


@task
def add(a, b=2):
    return a + b


@task
async def aadd(a, b=2):
    return a + b


@task(max_attempts=2, backoff=lambda error, result: 60)
def fail(message="it broke"):
    raise ValueError(message)


@task(max_attempts=1)
def die(what):
    raise {"exit": SystemExit(1), "keyboard": KeyboardInterrupt()}[what]


@task
def give(what):
    return {"nul": "a\0b", "nan": float("nan"), "set": {1, 2}, "fine": (1, 2)}[what]


@task(atomic=True, max_attempts=1)
def atomically():
    return Row.objects.count()


def not_a_task():
    raise AssertionError("a function that is no task must never be called")


@pytest.mark.fast
def test_1_task_finished_and_the_error_line_that_mails_admins_come_at_the_end_only(db, listen, caplog):
    told = []

    def receiver(task_result, **kwargs):
        told.append(task_result.state)

    def errors():
        return [record.name for record in caplog.records if record.levelno >= logging.ERROR]

    listen(task_finished, receiver)
    fail.enqueue()
    run_all()
    assert (told, errors()) == ([], [])
    run_all(include_scheduled=True)
    assert (told, errors()) == ([State.DEAD], [PACKAGE])
    cancel(add.enqueue(1).id)
    assert (told, errors()) == ([State.DEAD], [PACKAGE])


def test_2_signals_are_robust_and_their_sender_is_the_class(transactional_db, listen):
    told = []

    def raising(**kwargs):
        raise RuntimeError("from a receiver")

    def of_class(sender, task_result, **kwargs):
        told.append(sender)

    for signal in (task_enqueued, task_started, task_finished):
        listen(signal, raising)
        listen(signal, of_class, sender=DharaBackend)
    result = add.enqueue(1)
    assert burst() == 0
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert told == [DharaBackend] * 3


def test_3_texts_that_postgresql_refuses_end_a_run_like_any_other(transactional_db):
    failed, nul, nan = fail.enqueue("a"), give.enqueue("nul"), give.enqueue("nan")
    Row.objects.filter(id=failed.id).update(payload={"args": [], "kwargs": {"message": "x"}}, max_attempts=1)
    bad = [odd.enqueue(kind) for kind in ("nul", "surrogate")]
    assert burst() == 0
    for result in (failed, nul, nan, *bad):
        result.refresh()
    assert [failed.state, nul.state, nan.state] == [State.DEAD, State.COMPLETED, State.COMPLETED]
    assert (nul.return_value, nan.return_value) == ("a\ufffdb", None)
    assert [result.state for result in bad] == [State.DEAD] * 2
    for result in bad:
        assert "a\ufffdb" in result.errors[0].traceback
    for value in ("a\0b", float("nan"), "\ud800"):
        with pytest.raises(PayloadError):
            add.enqueue(value)


@task(max_attempts=1)
def odd(kind):
    raise ValueError({"nul": "a\0b", "surrogate": "a\ud800b"}[kind])


@pytest.mark.fast
def test_4_a_queue_or_an_alias_that_is_gone_harms_no_reader_and_no_worker(db):
    result = add.using(queue_name="old").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": OURS, "QUEUES": ["new"]}}):
        assert add.get_result(result.id).task.queue_name == "old"
        result.refresh()
        [done] = run_all()
        assert done.return_value == 3
    renamed = a_task(backend="renamed", function="tests.test_django_tasks_traps.add")
    assert task_backends["default"].get_result(str(renamed.id)).task.backend == "renamed"


def test_4_a_worker_runs_a_task_of_a_queue_that_is_gone(transactional_db):
    result = add.using(queue_name="old").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": OURS, "QUEUES": ["new"]}}):
        assert burst() == 0
        result.refresh()
    assert result.return_value == 3


@pytest.mark.fast
def test_5_a_function_that_is_gone_can_be_read_and_waits_for_a_worker_that_has_it(db):
    row = a_task(function="shop.gone.send", payload={"args": [1], "kwargs": {}})
    result = task_backends["default"].get_result(str(row.id))
    assert (result.task.module_path, result.task.name, result.args) == ("shop.gone.send", "send", [1])
    with pytest.raises(LookupError, match="does not exist in this process"):
        result.task.call()
    run_all()
    result.refresh()
    assert (result.state, result.attempts) == (State.PENDING, 0)


def test_5_a_module_that_cannot_be_imported_is_a_failed_attempt(db, monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, *args):
            if name == "broken_module":
                raise RuntimeError("at import")

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    row = a_task(function="broken_module.send", max_attempts=1)
    run_all()
    result = task_backends["default"].get_result(str(row.id))
    assert (result.state, result.errors[0].exception_class) == (State.DEAD, RuntimeError)


@pytest.mark.fast
@pytest.mark.parametrize("path", ["not_a_task", "sys", "Row"])
def test_5_what_is_no_task_is_never_called(db, path):
    row = a_task(function=f"{__name__}.{path}")
    run_all()
    row.refresh_from_db()
    assert (row.state, row.failures) == (State.PENDING, 0)


def test_6_an_awkward_return_value_is_no_crash(transactional_db):
    """Finished work is done, and what of its answer cannot be stored is left out: promise 11, not a failed attempt."""
    results = [give.enqueue("set"), give.enqueue("fine")]
    assert burst() == 0
    for result in results:
        result.refresh()
    assert [(result.state, result.return_value) for result in results] == [
        (State.COMPLETED, None),
        (State.COMPLETED, [1, 2]),
    ]


def test_7_exits_and_interrupts_are_failed_attempts(transactional_db):
    """See also test_contract.py, test_exits_and_interrupts_are_failed_attempts_and_the_worker_goes_on."""
    results = [die.enqueue("exit"), die.enqueue("keyboard")]
    assert burst() == 0
    for result in results:
        result.refresh()
        assert (result.state, result.attempts) == (State.DEAD, 1)


@pytest.mark.fast
@pytest.mark.parametrize("use_tz", [True, False])
def test_8_run_after_takes_a_timedelta(db, settings, use_tz):
    settings.USE_TZ = use_tz
    result = add.using(run_after=timedelta(hours=1)).enqueue(1)
    assert result.task.run_after - result.enqueued_at == timedelta(hours=1)
    [waiting] = Row.objects.scheduled()
    assert timedelta(minutes=59) < waiting.run_at - timezone.now() <= timedelta(hours=1)


@pytest.mark.fast
@pytest.mark.parametrize("kind", ["immediate.Immediate", "dummy.Dummy"])
def test_9_our_decorator_works_under_the_test_backends_of_django(kind):
    with override_settings(TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.{kind}Backend"}}):
        decorated = task(max_attempts=5)(add.func)
        assert decorated.max_attempts == 5
        assert decorated.enqueue(1).backend == "default"


@pytest.mark.fast
@pytest.mark.parametrize("kind", ["Inline", "Manual"])
def test_9_our_test_backends_have_our_task_class(kind):
    with override_settings(TASKS={"default": {"BACKEND": f"django_dhara.testing.{kind}Backend"}}):
        decorate = task(max_attempts=5)
        if not (6, 0) <= django.VERSION < (6, 1):
            from tests.test_contract import django_task

            decorate = django_task(max_attempts=5)
        assert decorate(add.func).max_attempts == 5
        assert add.enqueue(1).is_finished == (kind == "Inline")


def test_10_a_task_of_another_backend_can_be_sent_to_ours(db):
    immediate = {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"}
    with override_settings(TASKS={"default": {"BACKEND": OURS, "QUEUES": []}, "other": immediate}):
        from tests.test_contract import django_task

        foreign = django_task(backend="other")(add.func)
        assert not isinstance(foreign, Task)
        result = foreign.using(backend="default").enqueue(1)
        row = Row.objects.get(id=result.id)
        assert (row.backend, row.max_attempts, row.timeout) == ("default", 5, None)
        [done] = run_all()
        assert done.return_value == 3


@pytest.mark.fast
def test_11_tasks_run_in_a_test_case_without_harm_to_its_transaction(db):
    """See also test_testing.py, transactions."""
    session = connection.connection
    add.enqueue(1)
    fail.enqueue()
    run_all()
    assert connection.connection is session
    assert connection.in_atomic_block
    assert Row.objects.count() == 2


def test_12_task_enqueued_is_sent_before_the_commit_and_ours_after_it(transactional_db, listen):
    told = []

    def enqueued(**kwargs):
        told.append("enqueued")

    def committed(**kwargs):
        told.append("committed")

    listen(task_enqueued, enqueued)
    listen(signals.task_committed, committed)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        add.enqueue(1)
        1 / 0  # noqa: B018
    assert told == ["enqueued"]


def test_13_aenqueue_is_enqueue_in_the_callers_transaction(db):
    assert async_to_sync(add.aenqueue)(1).state == State.PENDING
    assert Row.objects.count() == 1


def test_13_results_are_read_where_they_are_written(db, monkeypatch):
    class Router:
        def db_for_read(self, model, **hints):
            raise AssertionError("a read went to a replica")

    with override_settings(DATABASE_ROUTERS=[Router()]):
        result = add.enqueue(1)
        assert add.get_result(result.id) == result
        run_all()
        result.refresh()
    assert result.return_value == 3


@pytest.mark.fast
def test_14_the_order_is_priority_then_due_time_then_id(db):
    due = [(0, 5), (0, 60), (10, 1), (-10, 90), (0, 60)]
    rows = [
        a_task(function=f"{__name__}.add", priority=priority, run_at=ago(seconds), id=uuid4())
        for priority, seconds in due
    ]
    same = ago(60)
    Row.objects.filter(id__in=[rows[1].id, rows[4].id]).update(run_at=same)
    undated = add.enqueue(1)
    first, second = sorted((rows[1].id, rows[4].id))
    order = [done.id for done in run_all()]
    assert order == [str(id_) for id_ in (rows[2].id, first, second, rows[0].id, undated.id, rows[3].id)]


@pytest.mark.fast
def test_14_long_names_fit(db):
    result = add.using(queue_name="q" * 255, idempotency_key="k" * 255).enqueue(1)
    [done] = run_all()
    assert (done.id, done.task.queue_name) == (result.id, "q" * 255)


@pytest.mark.fast
def test_15_a_dead_task_can_be_retried_in_place_or_run_again_as_a_new_one(db):
    dead = fail.enqueue("x")
    run_all(include_scheduled=True)
    dead.refresh()
    assert dead.is_finished
    again = dead.task.enqueue(*dead.args, **dead.kwargs)
    assert again.id != dead.id
    dead.refresh()
    assert dead.is_finished
    assert revive(dead.id)
    dead.refresh()
    assert (dead.is_finished, dead.status, dead.attempts) == (False, TaskResultStatus.READY, 0)
    assert len(dead.errors) == Attempt.objects.filter(task_id=dead.id).count() == 2


@pytest.mark.fast
def test_16_the_late_write_of_an_old_run_matches_no_row(db):
    """See also test_lifecycle.py and test_races.py."""
    execute = sql.on(DEFAULT_DB_ALIAS)
    result = add.enqueue(1)

    def claim(worker):
        lifecycle.claim(execute, "default", Wanted("default"), worker, limit=1, suspects=1, lease_seconds=30)
        return Row.objects.get(id=result.id)

    old = an_ending(claim(WORKER), outcome=Completed('"old"'))
    Row.objects.update(lease_until=ago(1))
    lifecycle.rescue(execute, "default", "default", max_lost=3, grace_seconds=0)
    new = an_ending(claim(OTHER_WORKER), outcome=Completed('"new"'))
    [refused] = lifecycle.settle(execute, WORKER, [old], max_interrupted=3)
    [accepted] = lifecycle.settle(execute, OTHER_WORKER, [new], max_interrupted=3)
    assert (refused.refused, accepted.state) == (True, State.COMPLETED)
    result.refresh()
    assert result.return_value == "new"


@pytest.mark.fast
def test_1_5_a_backend_whose_settings_are_wrong_does_not_fail_at_import():
    """A raising `__init__` would be a traceback in place of a system check (section 1.1)."""
    with override_settings(TASKS={"default": {"BACKEND": OURS, "OPTIONS": {"MAX_ATTEMPTS": "many"}}}):
        decorated = task(max_attempts=3)(add.func)
        assert decorated.max_attempts == 3
        with pytest.raises(ImproperlyConfigured, match="MAX_ATTEMPTS"):
            _ = task_backends["default"].settings


def test_2_receivers_may_use_the_database_and_be_async_whatever_the_function_is(transactional_db, listen, caplog):
    told = []

    def receiver(task_result, **kwargs):
        told.append(Row.objects.get(id=task_result.id).state)

    async def areceiver(task_result, **kwargs):
        told.append((await Row.objects.aget(id=task_result.id)).state)

    for each in (receiver, areceiver):
        listen(task_started, each)
        listen(task_finished, each)
    for function, state in ((add, State.COMPLETED), (aadd, State.COMPLETED)):
        result = function.enqueue(1)
        assert burst() == 0
        result.refresh()
        assert (result.state, told) == (state, [State.RUNNING] * 2 + [state] * 2)
        told.clear()
    assert "ERROR" not in caplog.text


def test_2_a_receivers_query_that_fails_does_not_break_an_atomic_run(transactional_db, listen):
    def receiver(**kwargs):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1/0")

    listen(task_started, receiver)
    result = atomically.enqueue()
    assert burst() == 0
    result.refresh()
    assert result.return_value == 1
