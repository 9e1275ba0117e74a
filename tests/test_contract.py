"""Django's tasks contract on our backend: what `django.tasks` promises, at each stage of a task's life."""

import dataclasses
import logging
import pickle
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_dhara import Discard, Retry, Snooze, cancel, lifecycle, news, revive, signals, sql, task
from django_dhara.backend import DharaBackend
from django_dhara.compat import (
    BaseTaskBackend,
    DjangoTask,
    InvalidTask,
    TaskContext,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_dhara.compat import TaskResult as DjangoTaskResult
from django_dhara.errors import PayloadError, TaskCanceled, WorkerLost
from django_dhara.lifecycle import Wanted
from django_dhara.models import Task as Row
from django_dhara.results import TaskResult
from django_dhara.states import Completed, State
from django_dhara.tasks import Task
from django_dhara.testing import run_all, run_one
from django_dhara.worker import Worker
from tests.rows import WORKER, a_task, ago, an_ending

if django.VERSION >= (6, 0):
    from django.tasks import task as django_task
else:
    from django_tasks import task as django_task

PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
SEEN = []


@pytest.fixture(autouse=True)
def forget():
    SEEN.clear()


def backend():
    return task_backends["default"]


def burst():
    return Worker(backend(), backend().settings, Wanted("default"), burst=True).run()


def make_due():
    Row.objects.pending().update(run_at=ago(1))


@contextmanager
def heard(*announced):
    """Collects (sender, what the signal named) while it lasts."""
    told, receivers = [], []
    for signal in announced:

        def receiver(sender, signal=signal, **named):
            told.append((signal, sender, named))

        signal.connect(receiver)
        receivers.append((signal, receiver))
    try:
        yield told
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)


# ------------------------------------------------------------------------------------------------------- the functions


@task
def add(a, b=2):
    return a + b


@django_task
def plain(a):
    return a


@django_task(takes_context=True)
def plain_with_context(context, a):
    return [context.attempt, a]


@task
async def aadd(a, b=2):
    return a + b


@task(takes_context=True)
def look(context):
    SEEN.append((context, Row.objects.get(id=context.task_result.id).worker_id))
    return context.attempt


@task(takes_context=True)
async def alook(context):
    SEEN.append(context)
    return context.attempt


@task(max_attempts=3, backoff=lambda error, result: 60)
def fail(message="it broke"):
    raise ValueError(message)


@task(max_attempts=2, takes_context=True, backoff=lambda error, result: 60)
def fail_once(context):
    context.progress({"attempt": context.attempt})
    if context.attempt == 1:
        raise ValueError("it broke")
    return "fine"


@task(max_attempts=1)
def die_by(kind):
    raise {"exit": SystemExit(3), "keyboard": KeyboardInterrupt(), "value": ValueError("it broke")}[kind]


@task
def end(how):
    raise {"discard": Discard("never"), "retry": Retry(30), "snooze": Snooze(30)}[how]


@task
def give(name):
    return {"none": None, "tuple": (1, (2,)), "object": object(), "nul": "a\0b", "nested": {"a": [1.5, True, None]}}[
        name
    ]


class Holder:
    @staticmethod
    def method():
        """A function of a class."""


# ------------------------------------------------------------------------------------------------------- the flags


@pytest.mark.fast
def test_all_four_features_are_supported():
    ours = backend()
    assert isinstance(ours, BaseTaskBackend)
    assert ours.supports_defer
    assert ours.supports_async_task
    assert ours.supports_get_result
    assert ours.supports_priority
    assert ours.task_class is Task


def test_supports_defer_means_that_a_task_waits_for_its_time(db):
    result = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    assert run_all() == []
    make_due()
    assert [done.id for done in run_all()] == [result.id]


def test_supports_async_task_means_that_async_functions_run(db):
    result = aadd.enqueue(1)
    run_all()
    result.refresh()
    assert result.return_value == 3


def test_supports_get_result_means_that_another_process_finds_it(db):
    assert add.get_result(add.enqueue(1).id).status == TaskResultStatus.READY


def test_supports_priority_means_that_the_larger_one_runs_first(db):
    results = [add.using(priority=priority).enqueue(priority) for priority in (0, -100, 100, 50)]
    assert [done.args for done in run_all()] == [[100], [50], [0], [-100]]
    assert {result.task.priority for result in results} == {0, -100, 100, 50}


# ------------------------------------------------------------------------------------------------------- validation


def local_function():
    def inner():
        """Nobody finds it."""

    return inner


@pytest.mark.fast
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: None, "<lambda> cannot be found by a worker: give the function a name"),
        (local_function(), "Task function must be defined at a module level"),
        (len, "Task function must be defined at a module level"),
    ],
    ids=["lambda", "local", "builtin"],
)
def test_a_function_that_no_worker_can_find_is_refused_at_decoration(function, message):
    with pytest.raises(InvalidTask, match=message):
        task(function)


@pytest.mark.fast
def test_a_function_of_main_is_refused():
    namespace = {"__name__": "__main__"}
    exec("def f(): pass", namespace)
    with pytest.raises(InvalidTask, match=r"__main__\.f cannot be found by a worker"):
        task(namespace["f"])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 101}, "priority must be a whole number between -100 and 100."),
        ({"priority": -101}, "priority must be a whole number between -100 and 100."),
        ({"priority": 1.5}, "priority must be a whole number between -100 and 100."),
        ({"run_after": datetime(2026, 1, 1)}, "run_after must be an aware datetime."),
        ({"run_after": "tomorrow"}, "run_after must be a datetime or a timedelta, not 'tomorrow'."),
        ({"run_after": timedelta(seconds=-1)}, "run_after must be between no time and 36500 days"),
        ({"run_after": datetime(9999, 1, 1, tzinfo=UTC)}, "run_after must be within the next hundred years"),
        ({"queue_name": "x" * 256}, "queue_name must have 1 to 255 characters, not 256"),
        ({"queue_name": "a\0b"}, "queue_name has a control character"),
        ({"queue_name": "a,b"}, "queue_name 'a,b' has a comma or an outer space in it"),
        ({"idempotency_key": ""}, "idempotency_key must have 1 to 255 characters, not 0"),
        ({"max_attempts": 0}, "max_attempts must be a whole number between 1 and 10000, not 0."),
        ({"max_attempts": True}, "max_attempts must be a whole number between 1 and 10000, not True."),
        ({"timeout": 0}, "timeout must be a positive number of seconds, not 0."),
        ({"timeout": float("inf")}, "timeout must be a positive number of seconds, not inf."),
        ({"metadata": [1]}, "metadata must be a mapping, not list."),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options, message):
    with pytest.raises(InvalidTask) as refused:
        add.using(**options)
    assert str(refused.value).startswith(message)


@pytest.mark.fast
def test_a_queue_that_is_not_in_queues_is_refused():
    with override_settings(TASKS={"default": {"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": ["a", "b"]}}):
        assert add.using(queue_name="a").queue_name == "a"
        with pytest.raises(InvalidTask, match="Queue 'c' is not valid for backend"):
            add.using(queue_name="c")


@pytest.mark.fast
def test_without_names_in_queues_every_queue_is_allowed():
    assert add.using(queue_name="whatever").queue_name == "whatever"


@pytest.mark.fast
def test_the_first_parameter_of_a_function_with_context_is_called_context():
    assert plain_with_context.takes_context
    for code in ("def f(): pass", "def f(other): pass"):
        namespace = {"__name__": __name__}
        exec(code, namespace)
        with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
            task(takes_context=True)(namespace["f"])


@pytest.mark.fast
def test_an_atomic_coroutine_is_refused():
    with pytest.raises(InvalidTask, match="atomic=True needs a plain function"):
        task(atomic=True)(aadd.func)


def test_a_task_is_validated_again_when_it_is_enqueued(db):
    on_a = add.using(queue_name="a")
    changed = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": ["b"]}}
    with override_settings(TASKS=changed), pytest.raises(InvalidTask, match="Queue 'a' is not valid"):
        on_a.enqueue(1)
    assert Row.objects.count() == 0


# ------------------------------------------------------------------------------------------------------- enqueue


@pytest.mark.fast
def test_a_new_result_says_all_that_is_known(db):
    before = timezone.now()
    result = add.enqueue(1, b=3)
    assert isinstance(result, DjangoTaskResult)
    assert result.task == add
    assert isinstance(result.id, str)
    assert 0 < len(result.id) < 64
    assert result.status == TaskResultStatus.READY
    assert before - timedelta(seconds=5) < result.enqueued_at < timezone.now() + timedelta(seconds=5)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 3}, "default")
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert not result.is_finished
    assert (result.state, result.duplicate, result.is_canceled, result.progress) == (State.PENDING, False, False, None)


@pytest.mark.fast
def test_aenqueue_is_enqueue(db):
    result = async_to_sync(add.aenqueue)(1, b=3)
    assert (result.args, result.kwargs) == ([1], {"b": 3})
    assert async_to_sync(add.aget_result)(result.id) == result == add.get_result(result.id)


def test_the_backend_itself_enqueues_too(db):
    result = backend().enqueue(add, (1,), {"b": 3})
    aresult = async_to_sync(backend().aenqueue)(add, [1], {"b": 4})
    assert [(done.args, done.return_value) for done in run_all()] == [([1], 4), ([1], 5)]
    assert async_to_sync(backend().aget_result)(aresult.id).return_value == 5
    assert result.id != aresult.id


@pytest.mark.fast
@pytest.mark.parametrize("arguments", [((1,), {}), (((1, 2),), {"b": [3, {"c": (4,)}]}), (({1: "a"},), {"b": 1e16})])
def test_the_result_of_an_enqueue_equals_what_get_result_finds(db, arguments):
    args, kwargs = arguments
    result = add.using(run_after=timedelta(minutes=1), priority=3, queue_name="q").enqueue(*args, **kwargs)
    found = add.get_result(result.id)
    assert found == result
    for name in ("args", "kwargs", "errors", "worker_ids", "status", "state", "enqueued_at", "id", "backend"):
        assert getattr(found, name) == getattr(result, name), name
    for name in ("priority", "queue_name", "run_after", "backend", "func"):
        assert getattr(found.task, name) == getattr(result.task, name), name


def test_an_enqueue_inside_a_transaction_is_there_at_once_and_for_others_after_the_commit(
    transactional_db, other_session
):
    def others_see():
        with other_session.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM dhara_task")
            return cursor.fetchone()[0]

    with transaction.atomic():
        result = add.enqueue(1)
        assert result.enqueued_at is not None
        assert (Row.objects.count(), others_see()) == (1, 0)
        assert not result.committed
    assert (others_see(), result.committed) == (1, True)


def test_a_rolled_back_enqueue_never_existed(transactional_db):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = add.enqueue(1)
        1 / 0  # noqa: B018
    assert not result.committed
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


# ------------------------------------------------------------------------------------------------------- using


@pytest.mark.fast
def test_using_makes_a_copy():
    changed = add.using(priority=5, queue_name="q", run_after=timezone.now())
    assert (changed.priority, changed.queue_name) == (5, "q")
    assert (add.priority, add.queue_name, add.run_after) == (0, "default", None)
    assert changed.func is add.func
    assert changed != add
    assert changed.using() == changed


@pytest.mark.fast
def test_a_task_has_a_name_a_path_and_can_be_called():
    assert (add.name, add.module_path) == ("add", "tests.test_contract.add")
    assert add.call(1) == add.func(1) == 3
    assert async_to_sync(add.acall)(1, b=1) == 2
    assert aadd.call(1) == 3
    assert async_to_sync(aadd.acall)(1) == 3
    assert add.get_backend() is backend()


def test_run_after_takes_a_time_and_a_timedelta(db):
    at = timezone.now() + timedelta(hours=2)
    assert add.using(run_after=at).enqueue(1).task.run_after == at
    result = add.using(run_after=timedelta(hours=1)).enqueue(1)
    assert result.task.run_after == result.enqueued_at + timedelta(hours=1)
    assert add.get_result(result.id).task.run_after == result.task.run_after
    # The later of two wins, whichever kind it is.
    assert add.using(run_after=timedelta(hours=1)).using(run_after=at).enqueue(1).task.run_after == at
    assert add.using(run_after=at).using(run_after=timedelta(0)).enqueue(1).task.run_after <= timezone.now()


def test_an_idempotency_key_gives_the_task_that_is_there(db):
    keyed = add.using(idempotency_key="k")
    first = keyed.enqueue(1)
    run_all()
    again = keyed.enqueue(1)
    assert (again.id, again.duplicate, again.return_value) == (first.id, True, 3)
    assert again == add.get_result(first.id)
    assert not fail.using(idempotency_key="k").enqueue().duplicate


# ------------------------------------------------------------------------------------------------------- the stages


@pytest.mark.fast
def test_a_running_task_sees_itself_running(db):
    result = look.enqueue()
    run_all()
    [(context, worker)] = SEEN
    assert isinstance(context, TaskContext)
    during = context.task_result
    assert (context.attempt, during.attempts, during.id) == (1, 1, result.id)
    assert (during.status, during.state) == (TaskResultStatus.RUNNING, State.RUNNING)
    assert during.worker_ids == [str(worker)]
    assert during.started_at == during.last_attempted_at is not None
    assert during.finished_at is None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = during.return_value


def test_the_row_of_a_running_task_says_what_its_context_says(db):
    result = look.enqueue()
    [claim] = lifecycle.claim(
        lifecycle_execute(), "default", Wanted("default"), WORKER, limit=1, suspects=1, lease_seconds=30
    ).claims
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.RUNNING, 1, [str(WORKER)])
    assert result.started_at == result.last_attempted_at == claim.started_at
    assert not result.is_finished


def lifecycle_execute():
    from django_dhara import sql

    return sql.on("default")


@pytest.mark.fast
def test_a_successful_task(db):
    result = add.enqueue(1)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    [done] = run_all()
    assert result.status == TaskResultStatus.READY  # until it is read again
    result.refresh()
    assert result == done
    assert (result.status, result.state, result.return_value) == (TaskResultStatus.SUCCESSFUL, State.COMPLETED, 3)
    assert result.is_finished
    assert result.attempts == len(result.worker_ids) == 1
    assert result.errors == []
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


@pytest.mark.fast
def test_a_failed_attempt_waits_for_its_retry(db):
    result = fail.enqueue("first")
    run_all()
    result.refresh()
    assert (result.status, result.state, result.finished_at) == (TaskResultStatus.READY, State.PENDING, None)
    assert not result.is_finished
    assert result.attempts == len(result.worker_ids) == len(result.errors) == 1
    [error] = result.errors
    assert (error.exception_class, error.exception_class_path) == (ValueError, "builtins.ValueError")
    assert error.traceback.endswith("ValueError: first\n")
    assert "in fail" in error.traceback
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert timedelta(seconds=50) < result.task.get_backend().get_result(result.id).task.run_after - timezone.now()


@pytest.mark.fast
def test_a_dead_task(db):
    result = fail.enqueue()
    starts = []
    for _ in range(3):
        run_one()
        result.refresh()
        starts.append(result.last_attempted_at)
        make_due()
    assert (result.status, result.state) == (TaskResultStatus.FAILED, State.DEAD)
    assert result.is_finished
    assert result.attempts == len(result.errors) == len(result.worker_ids) == 3
    assert result.started_at == starts[0] < starts[1] < starts[2] == result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert run_one() is None


def test_a_success_keeps_the_errors_of_its_earlier_attempts(db):
    result = fail_once.enqueue()
    run_all(include_scheduled=True)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, "fine", 2)
    assert len(result.errors) == 1
    assert len(result.worker_ids) == 2
    assert result.started_at < result.last_attempted_at
    assert result.progress == {"attempt": 2}


@pytest.mark.parametrize(
    ("how", "state", "errors"), [("discard", State.DEAD, 1), ("retry", State.PENDING, 1), ("snooze", State.PENDING, 0)]
)
def test_a_function_says_how_it_ends(db, how, state, errors):
    result = end.enqueue(how)
    run_all()
    result.refresh()
    assert (result.state, result.attempts, len(result.errors), len(result.worker_ids)) == (
        state,
        errors,
        errors,
        errors,
    )


@pytest.mark.fast
def test_a_canceled_task(db):
    result = add.enqueue(1)
    assert cancel(result.id) == "canceled"
    result.refresh()
    assert (result.status, result.state, result.is_canceled) == (TaskResultStatus.FAILED, State.CANCELED, True)
    assert result.is_finished
    assert result.finished_at is not None
    assert (result.attempts, result.started_at, result.worker_ids) == (0, None, [])
    assert result.errors[-1].exception_class is TaskCanceled
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert cancel(result.id) == "finished"
    assert revive(result.id)
    run_all()
    result.refresh()
    assert result.return_value == 3


def test_a_lost_run_is_an_error_and_an_attempt_of_its_own(db):
    result = add.enqueue(1)
    execute = lifecycle_execute()
    lifecycle.claim(execute, "default", Wanted("default"), WORKER, limit=1, suspects=1, lease_seconds=30)
    Row.objects.update(lease_until=ago(1))
    lifecycle.rescue(execute, "default", "default", max_lost=3, grace_seconds=0)
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.READY, 1, [str(WORKER)])
    [error] = result.errors
    assert error.exception_class is WorkerLost
    run_all()
    result.refresh()
    assert (result.attempts, len(result.errors), len(result.worker_ids), result.return_value) == (2, 1, 2, 3)


def test_exits_and_interrupts_are_failed_attempts_and_the_worker_goes_on(transactional_db):
    results = [die_by.enqueue("exit"), die_by.enqueue("keyboard"), add.enqueue(1)]
    assert burst() == 0
    for result in results:
        result.refresh()
    assert [result.state for result in results] == [State.DEAD, State.DEAD, State.COMPLETED]
    assert [result.errors[0].exception_class for result in results[:2]] == [SystemExit, KeyboardInterrupt]


@pytest.mark.parametrize(
    ("name", "value"), [("none", None), ("tuple", [1, [2]]), ("nested", {"a": [1.5, True, None]}), ("object", None)]
)
def test_a_return_value_comes_back_as_json(db, name, value):
    result = give.enqueue(name)
    run_all()
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, value)


@pytest.mark.fast
@pytest.mark.parametrize("function", [look, alook], ids=["plain", "async"])
def test_a_worker_and_the_test_helper_run_the_same_pipeline(transactional_db, function):
    result = function.enqueue()
    assert burst() == 0
    result.refresh()
    assert (result.return_value, result.attempts) == (1, 1)


# ------------------------------------------------------------------------------------------------------- reading


@pytest.mark.fast
@pytest.mark.parametrize("id_", ["123", "", "not-an-id", "0" * 100, None, 7])
def test_a_malformed_id_does_not_exist(db, id_):
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(id_)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(backend().aget_result)(id_)


@pytest.mark.fast
def test_an_unknown_id_does_not_exist(db):
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(str(uuid4()))


@pytest.mark.fast
def test_a_result_of_another_task_is_a_mismatch(db):
    result = add.enqueue(1)
    with pytest.raises(TaskResultMismatch, match=r"tests\.test_contract\.add"):
        fail.get_result(result.id)
    with pytest.raises(TaskResultMismatch):
        async_to_sync(fail.aget_result)(result.id)
    assert backend().get_result(result.id).task == add


@pytest.mark.parametrize("again", ["refresh", "arefresh"])
def test_refresh_reads_everything_that_changes(db, again):
    result = fail_once.enqueue()
    known = dataclasses.asdict(dataclasses.replace(result, task=None))
    run_all(include_scheduled=True)
    result.refresh() if again == "refresh" else async_to_sync(result.arefresh)()
    fresh = fail_once.get_result(result.id)
    for field in dataclasses.fields(TaskResult):
        if field.name != "task":
            assert getattr(result, field.name) == getattr(fresh, field.name), field.name
    assert known["state"] != result.state


def test_refresh_of_a_pruned_task_says_that_it_is_gone(db):
    result = add.enqueue(1)
    Row.objects.all().delete()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


# ------------------------------------------------------------------------------------------------------- signals


DJANGOS = (task_enqueued, task_started, task_finished)
OURS = (signals.task_committed, signals.attempt_failed, signals.task_retried, signals.task_canceled)


def names(told):
    known = ["enqueued", "started", "finished", "committed", "failed", "retried", "canceled"]
    return [known[(*DJANGOS, *OURS).index(signal)] for signal, *_ in told]


@pytest.mark.fast
def test_the_signals_of_a_success(db):
    with heard(*DJANGOS, *OURS) as told:
        result = add.enqueue(1)
        run_all()
    assert names(told) == ["enqueued", "started", "finished"]
    assert {sender for _, sender, _ in told} == {DharaBackend}
    results = [named["task_result"] for *_, named in told]
    assert [each.id for each in results] == [result.id] * 3
    assert [each.status for each in results] == ["READY", "RUNNING", "SUCCESSFUL"]
    assert [each.attempts for each in results] == [0, 1, 1]
    assert results[-1].return_value == 3
    assert results[-1].finished_at is not None


@pytest.mark.fast
def test_task_started_is_sent_for_every_attempt_and_task_finished_once(db):
    with heard(*DJANGOS, *OURS) as told:
        result = fail.enqueue()
        run_all(include_scheduled=True)
    retried = ["started", "failed", "retried"]
    assert names(told) == ["enqueued", *retried, *retried, "started", "failed", "finished"]
    last = told[-1][2]["task_result"]
    result.refresh()
    assert (last.status, last.state, last.attempts) == (TaskResultStatus.FAILED, State.DEAD, 3)
    assert last.errors == result.errors
    assert last.worker_ids == result.worker_ids
    failed = [named for signal, _, named in told if signal is signals.attempt_failed]
    assert [named["delay"] for named in failed] == [60, 60, None]
    assert {named["error"].class_path for named in failed} == {"builtins.ValueError"}


def test_a_canceled_task_sends_no_task_finished(transactional_db):
    result = add.enqueue(1)
    with heard(*DJANGOS, *OURS) as told:
        cancel(result.id)
    assert names(told) == ["canceled"]
    assert told[0][2]["task_result"].id == result.id


@pytest.mark.parametrize(("columns", "told_last"), [({}, "finished"), ({"cancel_requested_at": ago(1)}, "canceled")])
def test_a_task_that_ends_by_a_rescue_is_announced_like_any_other(commits, columns, told_last):
    task = a_task(State.RUNNING, lease_until=ago(60), max_attempts=1, **columns)
    rescued = lifecycle.rescue(sql.on("default"), "default", "default", max_lost=5, grace_seconds=0)
    with heard(*DJANGOS, *OURS) as told:
        for announce in news.of_rescued(DharaBackend, "default", rescued):
            announce()
    assert names(told) == [told_last]
    assert told[0][2]["task_result"].id == str(task.id)
    assert told[0][2]["task_result"].errors[0].exception_class is WorkerLost


@task(takes_context=True)
def give_in(context):
    cancel(context.task_result.id)
    raise TaskCanceled


def test_a_function_that_gives_in_to_a_cancel_ends_canceled_and_did_not_fail(db):
    with heard(*DJANGOS, *OURS) as told:
        result = give_in.enqueue()
        run_all()
    assert names(told) == ["enqueued", "started", "canceled"]
    result.refresh()
    assert result.is_canceled
    for seen in (result, told[-1][2]["task_result"]):
        assert [error.exception_class for error in seen.errors] == [TaskCanceled]


def test_task_committed_is_sent_at_the_commit_only(transactional_db):
    with heard(task_enqueued, signals.task_committed) as told:
        with transaction.atomic():
            add.enqueue(1)
            assert names(told) == ["enqueued"]
        assert names(told) == ["enqueued", "committed"]
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            add.enqueue(2)
            1 / 0  # noqa: B018
    assert names(told) == ["enqueued", "committed", "enqueued"]


def test_a_worker_sends_the_same(transactional_db):
    with heard(*DJANGOS, *OURS) as told:
        add.enqueue(1)
        die_by.enqueue("value")
        assert burst() == 0
    assert sorted(names(told)) == sorted(
        ["enqueued", "committed", "started", "finished", "enqueued", "committed", "started", "failed", "finished"]
    )
    assert {sender for _, sender, _ in told} == {DharaBackend}


def test_receivers_that_raise_change_nothing(transactional_db, caplog):
    def receiver(**kwargs):
        raise RuntimeError("from a receiver")

    for signal in (*DJANGOS, *OURS):
        signal.connect(receiver)
    try:
        done, failed, canceled = add.enqueue(1), die_by.enqueue("value"), add.enqueue(2)
        assert cancel(canceled.id) == "canceled"
        assert burst() == 0
    finally:
        for signal in (*DJANGOS, *OURS):
            signal.disconnect(receiver)
    for result in (done, failed, canceled):
        result.refresh()
    assert [done.state, failed.state, canceled.state] == [State.COMPLETED, State.DEAD, State.CANCELED]
    assert len(failed.errors) == done.attempts == 1
    assert caplog.text.count("RuntimeError: from a receiver") >= 9


def test_an_on_commit_callback_that_raises_changes_nothing(transactional_db):
    with pytest.raises(RuntimeError, match="callback"), transaction.atomic():
        result = add.enqueue(1)
        transaction.on_commit(lambda: (_ for _ in ()).throw(RuntimeError("callback")))
    assert burst() == 0
    result.refresh()
    assert result.return_value == 3


@pytest.mark.fast
def test_a_dead_task_is_an_error_line_with_its_traceback_and_a_retried_one_is_none(db, caplog):
    caplog.set_level(logging.DEBUG, PACKAGE)
    result = fail.enqueue("the reason")
    run_one()
    assert [record.levelname for record in caplog.records if record.name == PACKAGE] == ["DEBUG", "INFO"]
    run_all(include_scheduled=True)
    errors = [record for record in caplog.records if record.name == PACKAGE and record.levelno >= logging.WARNING]
    [error] = errors
    assert error.levelname == "ERROR"
    assert result.id in error.getMessage()
    assert error.exc_info[0] is ValueError
    assert "ValueError: the reason" in caplog.text


def test_a_success_is_an_info_line_without_a_traceback(db, caplog):
    caplog.set_level(logging.DEBUG, PACKAGE)
    add.enqueue(1)
    run_all()
    records = [record for record in caplog.records if record.name == PACKAGE]
    assert [record.levelname for record in records] == ["DEBUG", "INFO", "INFO"]
    assert not any(record.exc_info for record in records)


def test_a_canceled_task_is_no_error_line(transactional_db, caplog):
    cancel(add.enqueue(1).id)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# ------------------------------------------------------------------------------------------------------- backends


@pytest.mark.fast
def test_each_thread_has_a_backend_of_its_own():
    others = []
    thread = threading.Thread(target=lambda: others.append(task_backends["default"]))
    thread.start()
    thread.join()
    assert others[0] is not task_backends["default"]
    assert task_backends["default"] is task_backends["default"]


@pytest.mark.fast
def test_changed_settings_make_a_new_backend():
    before = task_backends["default"]
    changed = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "OPTIONS": {"MAX_ATTEMPTS": 9}}}
    with override_settings(TASKS=changed):
        assert task_backends["default"] is not before
        assert task_backends["default"].settings.max_attempts == 9
        assert task_backends["default"].queues == {"default"} if not changed["default"].get("QUEUES") else True
    assert task_backends["default"].settings == before.settings


@pytest.mark.fast
def test_a_function_decorated_by_django_is_our_task():
    assert type(plain) is Task
    assert isinstance(plain, DjangoTask)
    assert plain.using(idempotency_key="k", max_attempts=3).max_attempts == 3


def test_a_function_decorated_by_django_runs(db):
    results = [plain.enqueue("a"), plain_with_context.enqueue("b"), plain.using(max_attempts=7).enqueue("c")]
    run_all()
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == ["a", [1, "b"], "c"]
    assert Row.objects.get(id=results[0].id).max_attempts == backend().settings.max_attempts
    assert Row.objects.get(id=results[2].id).max_attempts == 7


@pytest.mark.fast
@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="Django 6.0's own decorator takes no options of ours")
def test_djangos_own_decorator_takes_our_options():
    decorated = django_task(max_attempts=4, timeout=3, queue_name="q")(add.func)
    assert (decorated.max_attempts, decorated.timeout, decorated.queue_name) == (4, 3, "q")


@pytest.mark.fast
@pytest.mark.skipif(django.VERSION >= (6, 1) or django.VERSION < (6, 0), reason="Of Django 6.0")
def test_on_django_6_0_our_decorator_is_needed_for_our_options():
    with pytest.raises(TypeError):
        django_task(max_attempts=4)(add.func)
    assert task(max_attempts=4)(add.func).max_attempts == 4


@pytest.mark.fast
@pytest.mark.parametrize("decorator", [task, django_task], ids=["ours", "django's"])
def test_run_after_is_no_option_of_a_decorator(decorator):
    with pytest.raises(TypeError, match="run_after"):
        decorator(run_after=timezone.now())(add.func)


@pytest.mark.fast
def test_tasks_and_results_can_be_pickled(db):
    for each in (add, aadd, fail, add.using(queue_name="q", priority=2, idempotency_key="k", timeout=3)):
        again = pickle.loads(pickle.dumps(each))
        assert again == each
        assert type(again) is Task
        assert all(getattr(again, f.name) == getattr(each, f.name) for f in dataclasses.fields(Task))
    result = fail.enqueue("x")
    run_all(include_scheduled=True)
    result.refresh()
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert all(getattr(again, f.name) == getattr(result, f.name) for f in dataclasses.fields(TaskResult))


def test_arguments_that_json_cannot_hold_are_refused_before_any_sql(db, django_assert_num_queries):
    with django_assert_num_queries(0):
        for bad in (object(), {1, 2}, float("nan"), "a\0b", "\ud800", timezone.now()):
            with pytest.raises(PayloadError):
                add.enqueue(bad)


def test_an_old_run_cannot_settle_a_task_that_was_taken_from_it(db):
    result = add.enqueue(1)
    execute = lifecycle_execute()
    lifecycle.claim(execute, "default", Wanted("default"), WORKER, limit=1, suspects=1, lease_seconds=30)
    late = an_ending(Row.objects.get(), outcome=Completed('"late"'))
    Row.objects.update(lease_until=ago(1))
    lifecycle.rescue(execute, "default", "default", max_lost=3, grace_seconds=0)
    run_all()
    [answer] = lifecycle.settle(execute, WORKER, [late], max_interrupted=3)
    assert answer.refused
    result.refresh()
    assert result.return_value == 3
