"""`atomic=True`: what the function wrote and the fact that it is done commit together, or not at all."""

import threading

import pytest
from django.db import connections, transaction

from django_dhara import lifecycle, sql
from django_dhara.compat import InvalidTask, task_backends
from django_dhara.errors import Discard, Retry, Snooze
from django_dhara.lifecycle import Wanted
from django_dhara.models import Attempt, Task
from django_dhara.states import State
from django_dhara.tasks import task
from django_dhara.worker import Worker
from tests.app.models import Effect, Note

pytestmark = pytest.mark.django_db(transaction=True)

RAISES = {
    "error": ValueError("no"),
    "snooze": Snooze(60),
    "retry": Retry(60),
    "discard": Discard("never"),
    "exit": SystemExit(1),
}
hook = None


@task(atomic=True, max_attempts=1)
def write(how="return"):
    Effect.objects.create(task="write")
    if hook is not None:
        hook()
    if how in RAISES:
        raise RAISES[how]
    return how


@task(atomic=True, max_attempts=1)
def swallow_a_broken_query():
    Effect.objects.create(task="swallow")
    try:
        with transaction.atomic(savepoint=False), connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1/0")
    except Exception:  # the mistake under test
        return "all is well"


@pytest.fixture
def set_hook():
    def install(function):
        global hook
        hook = function

    yield install
    install(None)


def run_worker(**options):
    backend = task_backends["default"]
    return Worker(backend, backend.settings, Wanted("default"), burst=True, **options).run()


def test_a_success_commits_its_writes_and_its_state_together():
    result = write.enqueue()
    assert run_worker() == 0
    result.refresh()
    assert (result.state, result.return_value, Effect.objects.count()) == (State.COMPLETED, "return", 1)


@pytest.mark.parametrize(
    ("how", "state"),
    [("error", "DEAD"), ("snooze", "PENDING"), ("retry", "DEAD"), ("discard", "DEAD"), ("exit", "DEAD")],
)
def test_whatever_is_raised_rolls_back_and_is_settled_outside(how, state):
    result = write.enqueue(how)
    run_worker()
    result.refresh()
    assert (result.state, Effect.objects.count()) == (state, 0)


def test_a_run_whose_lease_was_lost_changes_nothing(set_hook):
    result = write.enqueue()
    set_hook(lambda: take_over(result.id))
    run_worker()
    assert Effect.objects.count() == 0
    assert Task.objects.get().lease == 2


def take_over(task_id):
    """Another worker's run gets the task, while this thread's transaction is open."""

    def elsewhere():
        Task.objects.filter(id=task_id).update(lease=2)
        connections.close_all()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()


def test_without_the_lease_in_the_guard_a_lost_run_would_commit(set_hook, monkeypatch):
    """The test above has teeth."""
    from django_dhara.lifecycle import runs

    result = write.enqueue()
    set_hook(lambda: take_over(result.id))
    blind = runs._SETTLE.replace("task.id = ending.id AND task.lease = ending.lease", "task.id = ending.id")
    blind = blind.replace("task.lease = held.lease AND", "").replace("task.lease, task.state", "held.lease, task.state")
    monkeypatch.setattr(runs, "_SETTLE", blind)
    run_worker()
    assert Effect.objects.count() == 1


def test_a_transaction_that_was_broken_and_went_on_is_a_failure_not_a_success():
    result = swallow_a_broken_query.enqueue()
    run_worker()
    result.refresh()
    assert (result.state, Effect.objects.count(), Attempt.objects.count()) == (State.DEAD, 0, 1)


def test_a_lock_on_the_row_is_waited_for(set_hook):
    """A cancel that is not committed yet holds the row; the success still counts, since it came first or after."""
    result = write.enqueue()
    locked, go_on = threading.Event(), threading.Event()

    def hold_the_row():
        with transaction.atomic():
            Task.objects.select_for_update().get(id=result.id)
            locked.set()
            go_on.wait(10)
        connections.close_all()

    holder = threading.Thread(target=hold_the_row)

    def start_holding():
        holder.start()
        locked.wait(10)
        threading.Timer(0.3, go_on.set).start()

    set_hook(start_holding)
    run_worker()
    holder.join()
    result.refresh()
    assert (result.state, Effect.objects.count()) == (State.COMPLETED, 1)


def test_a_success_after_a_cancel_request_is_completed(set_hook):
    result = write.enqueue()
    answers = []

    def cancel_elsewhere():
        def cancel():
            answers.append(lifecycle.cancel(sql.on("default"), Task.objects.get().id))
            connections.close_all()

        thread = threading.Thread(target=cancel)
        thread.start()
        thread.join()

    set_hook(cancel_elsewhere)
    run_worker()
    result.refresh()
    assert (answers, result.state, Effect.objects.count()) == (["requested"], State.COMPLETED, 1)


def test_on_commit_callbacks_run_after_the_settle(set_hook):
    seen = []
    set_hook(lambda: transaction.on_commit(lambda: seen.append(Task.objects.get().state)))
    write.enqueue()
    run_worker()
    assert seen == [State.COMPLETED]


def test_what_it_enqueues_is_rolled_back_with_it(set_hook):
    set_hook(lambda: write.enqueue("return"))
    write.enqueue("error")
    run_worker()
    assert Task.objects.count() == 1


def test_async_functions_are_refused():
    async def coroutine():
        Note.objects.all()

    coroutine.__qualname__ = "coroutine"
    with pytest.raises(InvalidTask, match="atomic=True needs a plain function"):
        task(atomic=True)(coroutine)
