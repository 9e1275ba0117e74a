"""The life of a task without a worker: every arrow, its budget, its history, and what the arrow must leave alone."""

import re
from datetime import UTC, datetime, timedelta
from itertools import product
from time import monotonic
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_dhara import lifecycle
from django_dhara.lifecycle import Ending, Report, Settled, Wanted
from django_dhara.models import Attempt, Command, Queue, Task, Worker
from django_dhara.sql import array, on
from django_dhara.states import ARROWS, FINAL, REVIVABLE, Completed, Failed, HandedBack, State
from tests.rows import (
    BOOM,
    MAX_INTERRUPTED,
    MAX_LOST,
    OTHER_WORKER,
    OUTCOMES,
    WORKER,
    a_task,
    ago,
    ahead,
    an_attempt,
    an_ending,
    everything,
    fresh,
)
from tests.verbs import DOES_SOMETHING, VERBS, rescue, settle


@pytest.fixture
def run(db):
    """Runs the statements inside the test's transaction, which is faster than `execute`: nobody else looks on."""
    return on("default")


def claim(execute, wanted="default", *, worker=WORKER, limit=100, suspects=1, **named):
    """What a worker of one backend claims."""
    wanted = Wanted(wanted) if isinstance(wanted, str) else wanted
    return lifecycle.claim(
        execute, "default", wanted, worker, limit=limit, suspects=suspects, lease_seconds=30, **named
    )


def ids(claims):
    return [claimed.id for claimed in claims]


# ------------------------------------------------------------------------------------------------------ the arrows


def columns_for(arrow):
    """What a row needs for this arrow to be the one that is taken."""
    if arrow.source == State.RUNNING:
        columns = {"lease_until": ago(1)} if arrow.verb == "rescue" else {}
        if arrow.target == State.CANCELED:
            columns |= {"cancel_requested_at": Now()}
        if arrow.target == State.DEAD:
            columns |= {"max_attempts": 1, "interrupted": MAX_INTERRUPTED - 1}
        return columns
    return {}


@pytest.mark.fast
@pytest.mark.parametrize("arrow", ARROWS, ids=lambda arrow: f"{arrow.source} {arrow.verb} {arrow.target}")
def test_every_arrow_happens(run, arrow):
    task = a_task(arrow.source, **columns_for(arrow))
    VERBS[arrow.verb](run, task)
    assert fresh(task).state == arrow.target


@pytest.mark.parametrize(
    ("state", "verb"), [pair for pair in product(State, VERBS) if pair not in DOES_SOMETHING], ids=str
)
def test_no_other_verb_changes_anything(run, state, verb):
    # The row has had a run, whose lease is known to the caller and ran out: only the state stands against the verb.
    overdue = {"lease_until": ago(5), "run_at": ago(5)} if state == State.RUNNING else {}
    task = a_task(state, **{"lease": 1, "worker_id": WORKER, "lost": 1, **overdue})
    an_attempt(task)
    before = everything()
    VERBS[verb](run, task)
    assert everything() == before


def test_there_is_no_arrow_that_the_table_does_not_show(run):
    seen = set()
    spent = {"max_attempts": 1, "lost": MAX_LOST - 1, "interrupted": MAX_INTERRUPTED - 1}
    for state, verb, cancel, budget in product(State, VERBS, (None, Now()), ({}, spent)):
        overdue = {"lease_until": ago(1)} if state == State.RUNNING else {}
        task = a_task(state, cancel_requested_at=cancel, **overdue, **budget)
        VERBS[verb](run, task)
        seen |= {(state, verb, after) for after in Task.objects.exclude(state=state).values_list("state", flat=True)}
        Task.objects.all().delete()
    assert seen == set(ARROWS)


@pytest.mark.parametrize("verb", [*OUTCOMES, "renew", "report"])
def test_a_run_with_an_older_lease_changes_nothing(run, verb):
    task = a_task(State.RUNNING, lease=8)
    before = everything()
    task.lease = 7
    VERBS[verb](run, task)
    assert everything() == before


@pytest.mark.parametrize("verb", ["cancel", "revive", "run now"])
def test_an_operator_is_told_that_there_is_no_such_task(run, verb):
    assert VERBS[verb](run, Task(id=uuid4())) is None


# -------------------------------------------------------------------------------------------------------- settling


@pytest.mark.fast
def test_a_success_keeps_its_result_and_its_worker(run):
    task = a_task(State.RUNNING, failures=2)
    assert settle("complete", run, task) == Settled(State.COMPLETED)
    after = fresh(task)
    assert after.result == {"answer": 42}
    assert (after.worker_id, after.lease_until, after.failures) == (WORKER, None, 2)
    assert after.finished_at - after.attempted_at == timedelta(seconds=0.5)
    assert not Attempt.objects.exists()


def test_a_result_of_none_is_null_in_json(run):
    task = a_task(State.RUNNING)
    lifecycle.settle(run, WORKER, [an_ending(task, outcome=Completed("null"))], max_interrupted=3)
    assert run("SELECT result::text FROM dhara_task", {}) == [("null",)]


@pytest.mark.parametrize("verb", ["fail", "time out"])
def test_a_failure_waits_its_delay_by_the_clock_of_the_database(run, verb):
    task = a_task(State.RUNNING)
    assert settle(verb, run, task) == Settled(State.PENDING)
    [[waits]] = run("SELECT run_at - statement_timestamp() FROM dhara_task", {})
    assert timedelta(seconds=59) < waits <= timedelta(seconds=60)
    assert (fresh(task).failures, fresh(task).worker_id, fresh(task).error_class) == (1, None, "tests.Boom")


@pytest.mark.parametrize("verb", ["fail", "time out"])
@pytest.mark.parametrize(("failures", "lost"), [(2, 0), (1, 1), (0, 2)])
def test_failed_and_lost_runs_together_use_up_the_attempts(run, verb, failures, lost):
    last = a_task(State.RUNNING, failures=failures, lost=lost, max_attempts=3)
    not_last = a_task(State.RUNNING, failures=failures, lost=lost, max_attempts=4)
    assert settle(verb, run, last).state == State.DEAD
    assert settle(verb, run, not_last).state == State.PENDING


def test_a_budget_that_was_lowered_below_what_is_spent_ends_at_the_next_failure(run):
    assert settle("fail", run, a_task(State.RUNNING, failures=9, max_attempts=2)).state == State.DEAD


@pytest.mark.fast
@pytest.mark.parametrize(
    ("verb", "counter"), [("snooze", "snoozed"), ("hand back", None), ("interrupt", "interrupted")]
)
def test_what_is_no_failure_spends_no_attempt(run, verb, counter):
    task = a_task(State.RUNNING, max_attempts=1)
    assert settle(verb, run, task).state == State.PENDING
    counted = {name: getattr(fresh(task), name) for name in ("failures", "lost", "interrupted", "snoozed")}
    assert counted == {"failures": 0, "lost": 0, "interrupted": 0, "snoozed": 0} | ({counter: 1} if counter else {})
    assert not Attempt.objects.exists()


@pytest.mark.parametrize("failures", [0, 2])
def test_interruptions_have_a_budget_of_their_own(run, failures):
    task = a_task(State.RUNNING, interrupted=MAX_INTERRUPTED - 1, failures=failures)
    assert settle("interrupt", run, task).state == State.DEAD
    [attempt] = Attempt.objects.all()
    assert (attempt.ended, attempt.number, attempt.worker_id) == ("INTERRUPTED", failures + 1, WORKER)


@pytest.mark.parametrize(
    ("verb", "state"), [(verb, State.COMPLETED if verb == "complete" else State.CANCELED) for verb in OUTCOMES]
)
def test_of_a_run_that_was_asked_to_stop_only_a_success_counts(run, verb, state):
    task = a_task(State.RUNNING, cancel_requested_at=Now())
    assert settle(verb, run, task) == Settled(state)
    assert fresh(task).finished_at is not None
    assert Attempt.objects.count() == (verb in ("fail", "time out", "discard"))


def test_a_lost_run_that_was_asked_to_stop_ends_canceled(run):
    task = a_task(State.RUNNING, lease_until=ago(1), cancel_requested_at=Now())
    [rescued] = rescue(run, task)
    assert (rescued.state, fresh(task).state) == (State.CANCELED, State.CANCELED)
    assert Attempt.objects.get().ended == "LOST"


@pytest.mark.parametrize("verb", ["interrupt", "hand back", "rescue"])
def test_a_task_that_was_taken_from_its_run_keeps_its_place(run, verb):
    task = a_task(State.RUNNING, lease_until=ago(1), run_at=ago(500))
    before = fresh(task).run_at
    VERBS[verb](run, task)
    assert (fresh(task).state, fresh(task).run_at) == (State.PENDING, before)


def test_a_retry_without_delay_stands_behind_who_waits_already(run):
    failing, waiting = a_task(State.RUNNING, run_at=ago(500)), a_task(run_at=ago(5))
    lifecycle.settle(run, WORKER, [an_ending(failing, outcome=Failed(BOOM, 0.0))], max_interrupted=3)
    assert [task.id for task in Task.objects.ready()] == [waiting.id, failing.id]


def test_a_hand_back_with_a_delay_moves_the_task(run):
    task = a_task(State.RUNNING)
    lifecycle.settle(run, WORKER, [an_ending(task, outcome=HandedBack(30.0), seconds=None)], max_interrupted=3)
    assert not Task.objects.ready().exists()


def test_a_task_that_was_handed_back_unstarted_was_never_started(run):
    task = a_task()
    [claimed] = claim(run).claims
    ending = Ending(task.id, claimed.lease, HandedBack(), None)
    assert lifecycle.settle(run, WORKER, [ending], max_interrupted=3) == [Settled(State.PENDING)]
    assert (fresh(task).started_at, fresh(task).attempted_at, fresh(task).lease) == (None, None, 1)


def test_a_first_run_keeps_its_start_when_later_ones_come(run):
    task = a_task(State.RUNNING, started_at=ago(900), attempted_at=ago(5))
    before = fresh(task).started_at
    settle("fail", run, task)
    assert fresh(task).started_at == before
    assert fresh(task).attempted_at > before


def test_a_failure_before_the_function_started_is_recorded_too(run):
    task = a_task()
    [claimed] = claim(run).claims
    ending = Ending(task.id, claimed.lease, Failed(BOOM, 1.0), None)
    assert lifecycle.settle(run, WORKER, [ending], max_interrupted=3) == [Settled(State.PENDING)]
    assert Attempt.objects.get().started_at is not None


@pytest.mark.parametrize(("verb", "ended"), [("fail", "FAILED"), ("time out", "TIMED_OUT"), ("discard", "FAILED")])
def test_a_failed_run_is_kept_with_its_number_its_worker_and_its_lease(run, verb, ended):
    task = a_task(State.RUNNING, failures=2, lost=1, lease=9, max_attempts=9)
    settle(verb, run, task)
    [attempt] = Attempt.objects.all()
    assert (attempt.task_id, attempt.number, attempt.lease) == (task.id, 4, 9)
    assert (attempt.ended, attempt.worker_id) == (ended, WORKER)
    assert (attempt.error_class, attempt.message) == ("tests.Boom", "it broke")
    assert attempt.traceback == "Traceback: it broke"
    assert attempt.ended_at - attempt.started_at == timedelta(seconds=0.5)


@pytest.mark.fast
def test_two_hundred_endings_of_all_kinds_are_settled_in_one_statement(execute):
    verbs = [list(OUTCOMES)[n % len(OUTCOMES)] for n in range(200)]
    tasks = [a_task(State.RUNNING) for _ in verbs]
    endings = [an_ending(task, verb) for task, verb in zip(tasks, verbs, strict=True)]
    with CaptureQueriesContext(connection) as queries:
        answers = lifecycle.settle(execute, WORKER, endings, max_interrupted=MAX_INTERRUPTED)
    assert len(queries) == 1
    expected = {"complete": State.COMPLETED, "discard": State.DEAD}
    assert answers == [Settled(expected.get(verb, State.PENDING)) for verb in verbs]
    assert [fresh(task).state for task in tasks] == [answer.state for answer in answers]
    assert Attempt.objects.count() == sum(verb in ("fail", "time out", "discard") for verb in verbs)


def test_answers_come_in_the_order_of_the_endings(run):
    tasks = [a_task(State.RUNNING) for _ in range(20)]
    kept = [task for n, task in enumerate(tasks) if n % 3]
    Task.objects.exclude(pk__in=[task.pk for task in kept]).delete()
    answers = lifecycle.settle(run, WORKER, [an_ending(task) for task in tasks], max_interrupted=3)
    assert [answer.refused for answer in answers] == [task not in kept for task in tasks]


def test_an_old_run_is_not_told_the_success_of_the_new_one_in_the_same_batch(run):
    task = a_task(State.RUNNING, lease=2)
    endings = [an_ending(task, "fail", lease=1), an_ending(task, lease=2)]
    answers = lifecycle.settle(run, WORKER, endings, max_interrupted=3)
    assert answers == [Settled(None, refused=True), Settled(State.COMPLETED)]


# ------------------------------------------------------------------------------------------------- leases, reports


@pytest.mark.fast
def test_a_renewal_counts_from_now_even_if_the_lease_had_run_out(run):
    task = a_task(State.RUNNING, lease_until=ago(100))
    renewal = lifecycle.renew(run, WORKER, [(task.id, 1)], lease_seconds=30.0)
    assert renewal == ({(task.id, 1)}, set(), False)
    [[left]] = run("SELECT lease_until - statement_timestamp() FROM dhara_task", {})
    assert timedelta(seconds=29) < left <= timedelta(seconds=30)


def test_only_a_lease_that_is_gone_is_refused(run):
    mine, taken, gone = a_task(State.RUNNING, lease=4), a_task(State.RUNNING, lease=5), uuid4()
    renewal = lifecycle.renew(run, WORKER, [(mine.id, 4), (taken.id, 4), (gone, 1)], lease_seconds=30.0)
    assert renewal == ({(mine.id, 4)}, {(taken.id, 4), (gone, 1)}, False)


@pytest.mark.parametrize("ends", [State.PENDING, State.DEAD, State.CANCELED, State.COMPLETED])
def test_who_has_completed_a_task_is_not_told_that_it_is_lost(run, ends):
    """The answer to an atomic function's COMMIT may be on its way yet, on the function's own connection."""
    task = a_task(ends, lease=4, worker_id=WORKER)
    renewal = lifecycle.renew(run, WORKER, [(task.id, 4)], lease_seconds=30.0)
    assert renewal == (set(), set() if ends is State.COMPLETED else {(task.id, 4)}, False)


def test_an_old_lease_is_refused_though_the_new_one_of_the_same_task_is_renewed(run):
    task = a_task(State.RUNNING, lease=2)
    renewal = lifecycle.renew(run, WORKER, [(task.id, 1), (task.id, 2)], lease_seconds=30.0)
    assert renewal == ({(task.id, 2)}, {(task.id, 1)}, False)


def test_a_renewal_is_the_heartbeat_of_the_worker(run):
    Worker.objects.create(id=WORKER, concurrency=1, pid=1, lease_seconds=30, heartbeat_at=ago(100))
    assert lifecycle.renew(run, WORKER, [], lease_seconds=30.0) == (set(), set(), True)
    assert Worker.objects.filter(heartbeat_at__gt=ago(10)).exists()


def test_a_report_keeps_what_it_does_not_mention(run):
    task = a_task(State.RUNNING, progress={"done": 1}, checkpoint="start")
    assert lifecycle.report(run, [Report(task.id, 1, '{"done": 2}', None)]) == {(task.id, 1)}
    assert (fresh(task).progress, fresh(task).checkpoint) == ({"done": 2}, "start")
    assert lifecycle.report(run, [Report(task.id, 1, None, '"half"')]) == {(task.id, 1)}
    assert (fresh(task).progress, fresh(task).checkpoint) == ({"done": 2}, "half")


@pytest.mark.parametrize("verb", ["fail", "snooze", "interrupt", "hand back", "rescue"])
def test_a_checkpoint_is_kept_across_attempts(run, verb):
    task = a_task(State.RUNNING, checkpoint={"page": 7}, lease_until=ago(1))
    VERBS[verb](run, task)
    Task.objects.update(run_at=ago(1))
    [claimed] = claim(run).claims
    assert claimed.checkpoint == '{"page": 7}'


# -------------------------------------------------------------------------------------------------- cancel, revive


@pytest.mark.fast
def test_a_pending_task_is_canceled_and_never_claimed(run):
    task = a_task()
    assert lifecycle.cancel(run, task.id) == "canceled"
    assert claim(run).claims == []
    assert fresh(task).cancel_requested_at is not None
    assert not Command.objects.exists()


def test_a_running_task_is_asked_to_stop_through_its_worker(run):
    task = a_task(State.RUNNING, lease=6)
    assert lifecycle.cancel(run, task.id) == "requested"
    assert (fresh(task).state, fresh(task).lease) == (State.RUNNING, 6)
    command = Command.objects.get()
    assert (command.worker_id, command.verb) == (WORKER, "CANCEL")
    assert command.argument == {"task": str(task.id), "lease": 6}


def test_a_second_cancel_does_not_move_the_time_of_the_first(run):
    task = a_task(State.RUNNING, cancel_requested_at=ago(50))
    before = fresh(task).cancel_requested_at
    assert lifecycle.cancel(run, task.id) == "requested"
    assert fresh(task).cancel_requested_at == before


@pytest.mark.parametrize("state", FINAL)
def test_a_cancel_that_comes_too_late_says_so(run, state):
    task = a_task(state)
    assert lifecycle.cancel(run, task.id) == "finished"


@pytest.mark.fast
@pytest.mark.parametrize("state", REVIVABLE)
def test_a_revived_task_has_new_budgets_and_its_old_history(run, state):
    spent = {"failures": 3, "lost": 2, "interrupted": 2, "snoozed": 9, "cancel_requested_at": Now(), "run_at": ago(500)}
    task = a_task(state, lease=5, started_at=ago(90), checkpoint="here", progress=0.5, **spent)
    an_attempt(task)
    before = fresh(task)
    assert lifecycle.revive(run, task.id) is True
    after = fresh(task)
    assert [after.failures, after.lost, after.interrupted, after.snoozed] == [0, 0, 0, 0]
    assert (after.cancel_requested_at, after.finished_at, after.progress) == (None, None, None)
    assert (after.lease, after.started_at, after.checkpoint) == (5, before.started_at, "here")
    assert after.run_at > before.run_at
    assert Attempt.objects.count() == 1
    assert ids(claim(run).claims) == [task.id]


def test_a_revived_task_counts_its_attempts_from_one_and_appends_to_its_history(run):
    task = a_task(State.DEAD, failures=3, max_attempts=3)
    an_attempt(task, number=3)
    lifecycle.revive(run, task.id)
    [claimed] = claim(run).claims
    assert claimed.attempt == 1
    lifecycle.settle(run, WORKER, [Ending(task.id, claimed.lease, OUTCOMES["fail"], 1.0)], max_interrupted=3)
    assert list(Attempt.objects.order_by("id").values_list("number", "lease")) == [(3, 1), (1, claimed.lease)]


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.COMPLETED])
def test_what_did_not_fail_cannot_be_revived(run, state):
    assert lifecycle.revive(run, a_task(state).id) is False


def test_a_scheduled_task_can_be_run_now(run):
    task = a_task(run_at=ahead(500))
    assert lifecycle.run_now(run, task.id) is True
    assert ids(claim(run).claims) == [task.id]
    assert lifecycle.run_now(run, task.id) is False


def counts(tally):
    changed = {answer: len(ids) for answer, ids in tally.changed.items()}
    return changed, tally.refused, tally.busy, tally.missing


def test_a_bulk_action_changes_what_it_can_and_counts_the_rest(run):
    made = {state: [a_task(state) for _ in range(2)] for state in State}
    every = [task.id for tasks in made.values() for task in tasks] + [uuid4()]
    scheduled = a_task(run_at=ahead(500))
    assert counts(lifecycle.run_now_all(run, [*every, scheduled.id])) == ({"hastened": 1}, 10, 0, 1)
    assert counts(lifecycle.revive_all(run, every)) == ({"revived": 4}, 6, 0, 1)
    assert counts(lifecycle.cancel_all(run, every)) == ({"canceled": 6, "requested": 2}, 2, 0, 1)


def test_a_bulk_action_counts_rows_that_somebody_has_locked_as_busy(sessions):
    holder, operator = sessions(2)
    scheduled, dead = a_task(run_at=ahead(500)), a_task(State.DEAD)
    holder.begin()
    holder.execute("SELECT FROM dhara_task FOR UPDATE", {})
    both = [scheduled.id, dead.id]
    assert counts(lifecycle.run_now_all(operator.execute, both)) == ({}, 1, 1, 0)
    assert counts(lifecycle.revive_all(operator.execute, both)) == ({}, 1, 1, 0)
    assert counts(lifecycle.cancel_all(operator.execute, both)) == ({}, 1, 1, 0)


# ------------------------------------------------------------------------------------------------------- the claim


@pytest.mark.fast
def test_a_claim_brings_what_the_run_needs(run):
    task = a_task(
        payload={"args": [{"ä": [1, None]}], "kwargs": {"b": 2.5}},
        function="shop.send",
        queue="mail",
        priority=7,
        timeout=1.5,
        max_attempts=4,
        metadata={"trace": "t"},
        idempotency_key="k",
        failures=1,
        interrupted=1,
        snoozed=2,
    )
    [claimed] = claim(run, worker=WORKER).claims
    after = fresh(task)
    for name in ("id", "lease", "function", "queue", "priority", "failures", "lost", "interrupted", "snoozed"):
        assert getattr(claimed, name) == getattr(after, name), name
    for name in ("max_attempts", "timeout", "idempotency_key", "enqueued_at", "run_at", "started_at", "attempted_at"):
        assert getattr(claimed, name) == getattr(after, name), name
    assert claimed.payload == '{"args": [{"ä": [1, null]}], "kwargs": {"b": 2.5}}'
    assert (claimed.metadata, claimed.checkpoint, claimed.cancel_requested) == ('{"trace": "t"}', None, False)
    assert (claimed.attempt, claimed.is_suspect) == (2, False)
    assert (after.state, after.lease, after.worker_id) == (State.RUNNING, 1, WORKER)
    assert after.lease_until - after.attempted_at == timedelta(seconds=30)


def test_every_claim_of_a_task_has_a_higher_lease_than_the_one_before(run):
    task = a_task(lease=41)
    assert claim(run).claims[0].lease == 42
    settle("hand back", run, fresh(task))
    assert claim(run).claims[0].lease == 43


def test_waiting_time_counts_from_when_the_task_was_both_due_and_there(run):
    a_task(run_at=ago(500), enqueued_at=ago(40))
    a_task(run_at=ago(20), enqueued_at=ago(900))
    assert [round(claimed.waited) for claimed in claim(run).claims] == [40, 20]


@pytest.mark.fast
def test_higher_priorities_come_first_then_older_tasks_then_smaller_ids(run):
    order = [
        a_task(priority=100, run_at=ago(1)),
        a_task(priority=5, run_at=ago(9), queue="mail"),
        a_task(priority=5, run_at=ago(5)),
        *(a_task(id=UUID(int=n), run_at=fresh_time) for fresh_time in [_an_hour_ago(run)] for n in (10, 11, 12)),
        a_task(run_at=ago(1)),
        a_task(priority=-100, run_at=ago(9000)),
    ]
    assert ids(claim(run).claims) == [task.id for task in order]


def _an_hour_ago(execute):
    [[moment]] = execute("SELECT statement_timestamp() - interval '1 hour'", {})
    return moment


def test_a_small_claim_takes_the_first_of_that_order(run):
    tasks = [a_task(priority=n % 3, run_at=ago(100 - n), queue=f"q{n % 2}") for n in range(12)]
    best = sorted(tasks, key=lambda task: (-task.priority, fresh(task).run_at))
    taken = [task for _ in range(6) for task in ids(claim(run, limit=2).claims)]
    by_priority = [fresh(Task(pk=pk)).priority for pk in taken]
    assert by_priority == sorted(by_priority, reverse=True)
    assert set(taken) == {task.id for task in best}


def test_a_task_is_not_claimed_before_its_time(run):
    a_task(run_at=ahead(1))
    assert claim(run).claims == []


def test_a_claim_takes_no_more_than_its_limit(run):
    for n in range(30):
        a_task(queue=f"q{n % 7}", priority=n % 2, lost=n % 5 == 0)
    assert len(claim(run, limit=10).claims) == 10
    assert Task.objects.running().count() == 10


def test_a_claim_of_nothing_reads_the_commands_only(run):
    a_task(), a_task(lost=1)
    mine = Command.objects.create(worker_id=WORKER, verb="DRAIN", argument={"why": "deploy"})
    Command.objects.create(worker_id=OTHER_WORKER, verb="DRAIN")
    Command.objects.create(worker_id=WORKER, verb="STACKS", answered_at=Now())
    haul = claim(run, limit=0)
    assert (haul.claims, haul.due_in) == ([], None)
    assert haul.orders == [(mine.id, "DRAIN", {"why": "deploy"})]
    assert not Task.objects.running().exists()


def test_commands_are_read_in_their_order_beside_the_tasks(run):
    task = a_task()
    made = [Command.objects.create(worker_id=WORKER, verb=verb) for verb in ("STACKS", "CANCEL", "DRAIN")]
    haul = claim(run)
    assert ids(haul.claims) == [task.id]
    assert [order.id for order in haul.orders] == [command.id for command in made]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (Wanted("default"), "abc"),
        (Wanted("default", ("a", "c")), "ac"),
        (Wanted("default", ("a", "a", "missing")), "a"),
        (Wanted("default", (), ("a",)), "bc"),
        (Wanted("default", ("a", "b"), ("a",)), "b"),
        (Wanted("other"), "d"),
    ],
    ids=str,
)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_takes_from_its_queues_and_its_backend_only(run, wanted, taken, lost):
    for queue in "abc":
        a_task(queue=queue, lost=lost)
    a_task(queue="d", backend="other", lost=lost)
    claimed = {claimed.queue for _ in range(3) for claimed in claim(run, wanted).claims}
    assert claimed == set(taken)


def test_a_queue_that_is_named_twice_costs_no_task(run):
    for _ in range(10):
        a_task(queue="a")
    assert len(claim(run, Wanted("default", ("a", "a")), limit=10).claims) == 10


@pytest.mark.parametrize("wanted", [Wanted("default"), Wanted("default", ("open", "paused"))], ids=str)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_paused_queue_gives_nothing_until_it_is_opened_again(run, wanted, lost):
    open_, paused = a_task(queue="open", lost=lost), a_task(queue="paused", lost=lost)
    queue = Queue.objects.create(backend="default", name="paused", paused_at=Now())
    Queue.objects.create(backend="other", name="open", paused_at=Now())
    assert [id_ for _ in range(2) for id_ in ids(claim(run, wanted).claims)] == [open_.id]
    queue.paused_at = None
    queue.save()
    assert ids(claim(run, wanted).claims) == [paused.id]


def test_unknown_functions_are_left_for_others_and_stand_in_nobodys_way(run):
    unknown = [a_task(function="later.release", run_at=ago(99), lost=n % 2) for n in range(6)]
    known = a_task()
    assert ids(claim(run, limit=3, unknown={"later.release"}).claims) == [known.id]
    assert len(claim(run).claims) == 4  # three trusted ones and one suspect
    assert Task.objects.pending().count() == len(unknown) - 4


def test_a_worker_takes_as_many_suspects_as_it_asks_for_and_their_neighbours_go_on(run):
    suspects = [a_task(lost=1, run_at=ago(99)) for _ in range(3)]
    innocent = [a_task() for _ in range(4)]
    first = claim(run, suspects=1).claims
    assert [claimed.is_suspect for claimed in first] == [True, False, False, False, False]
    assert set(ids(first)) - {task.id for task in suspects} == {task.id for task in innocent}
    assert claim(run, suspects=0).claims == []
    assert len(claim(run, suspects=1).claims) == 1


def test_a_suspect_stands_in_the_order_like_anybody(run):
    suspect = a_task(lost=1, priority=3)
    higher, lower = a_task(priority=4), a_task(priority=2)
    assert ids(claim(run).claims) == [higher.id, suspect.id, lower.id]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_suspect_that_does_not_fit_waits(run, limit):
    suspect = a_task(lost=1, priority=-1)
    for _ in range(2):
        a_task()
    assert (suspect.id in ids(claim(run, limit=limit).claims)) == (limit == 3)
    assert Task.objects.running().count() == limit


@pytest.mark.fast
def test_a_claim_tells_when_the_next_task_is_due(run):
    assert claim(run).due_in is None
    a_task(run_at=ahead(30), queue="a")
    a_task(run_at=ahead(10), queue="b", priority=-5)
    a_task(run_at=ahead(5), queue="hidden")
    a_task(run_at=ahead(1), queue="paused")
    Queue.objects.create(backend="default", name="paused", paused_at=Now())
    assert 9 < claim(run, Wanted("default", (), ("hidden",))).due_in <= 10
    assert 29 < claim(run, Wanted("default", ("a",))).due_in <= 30


def test_queues_of_one_priority_share_a_claim_fairly(run):
    for n in range(90):
        a_task(queue=f"q{n // 30}", run_at=ago(1000 - n))
    taken = [claimed.queue for claimed in claim(run, limit=30).claims]
    assert {queue: taken.count(queue) for queue in set(taken)} == {"q0": 10, "q1": 10, "q2": 10}


def test_a_claim_of_one_starves_no_queue_of_that_priority(run):
    for n in range(400):
        a_task(queue=f"q{n % 4}")
    taken = [claimed.queue for _ in range(100) for claimed in claim(run, limit=1).claims]
    # Of 100 draws among four, fewer than 5 for one of them happens once in ten million times.
    assert all(taken.count(f"q{n}") >= 5 for n in range(4))


def test_what_a_queue_leaves_of_its_share_goes_to_the_others_of_its_priority_first(run):
    for n in range(20):
        a_task(queue="long", run_at=ago(100 - n))
        a_task(queue="low", priority=-1, run_at=ago(1000))
    a_task(queue="short")
    taken = [claimed.queue for claimed in claim(run, limit=10).claims]
    assert (taken.count("short"), taken.count("long")) == (1, 9)


def test_many_nearly_empty_queues_do_not_make_a_claim_small(run):
    Task.objects.bulk_create(_rows(300))
    for n in range(30):
        a_task(queue=f"trickle {n}")
    taken = [claimed.queue for claimed in claim(run, limit=200).claims]
    assert len(taken) == 200
    assert sum(queue.startswith("trickle") for queue in taken) == 30
    assert all(taken.count(f"q{n}") >= 7 for n in range(3))  # a share is a 33rd of 200


def test_a_queue_that_is_nearly_empty_leaves_its_share_to_higher_and_lower_priorities(run):
    high, low = [a_task(priority=9) for _ in range(3)], [a_task(queue="low") for _ in range(20)]
    taken = ids(claim(run, limit=10).claims)
    assert taken[:3] == [task.id for task in sorted(high, key=lambda task: (fresh(task).run_at, task.id))]
    assert len(taken) == 10
    assert set(taken[3:]) < {task.id for task in low}


@pytest.mark.parametrize(
    "settings",
    [
        ["enable_hashjoin = off", "enable_mergejoin = off", "enable_material = off", "enable_memoize = off"],
        ["enable_nestloop = off"],
        ["enable_indexscan = off", "enable_bitmapscan = off", "enable_indexonlyscan = off", "enable_hashjoin = off"],
        ["enable_sort = off", "enable_incremental_sort = off"],
    ],
    ids=lambda settings: settings[0],
)
@pytest.mark.parametrize("queues", [(), ("q0", "q1", "q2")])
def test_a_claim_of_ten_changes_ten_rows_whatever_the_plan(run, settings, queues):
    Task.objects.bulk_create(_rows(300))
    for setting in settings:
        run(f"SELECT 1; SET LOCAL {setting}; SELECT 1", {})
    for taken in (10, 20):
        assert len(claim(run, Wanted("default", queues), limit=10).claims) == 10
        assert Task.objects.running().count() == taken
    assert rescue(run, Task(backend="default")) == []
    Task.objects.running().update(lease_until=ago(1))
    assert len(lifecycle.rescue(run, "default", "default", max_lost=3, grace_seconds=0.0, limit=5)) == 5
    assert Task.objects.running().count() == 15


def test_the_obvious_claim_changes_more_than_its_limit_in_that_plan(run):
    """The trap that the materialized CTE is for; should PostgreSQL ever change here, the reason is gone."""
    Task.objects.bulk_create(_rows(300))
    for name in ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "sort"):
        run(f"SELECT 1; SET LOCAL enable_{name} = off; SELECT 1", {})
    changed = run(
        """UPDATE dhara_task SET state = 'RUNNING', lease = 1, worker_id = id, lease_until = statement_timestamp()
           WHERE id IN (SELECT id FROM dhara_task WHERE state = 'PENDING' LIMIT 10 FOR UPDATE SKIP LOCKED)
           RETURNING id""",
        {},
    )
    assert len(changed) > 10


def _rows(count):
    return [
        Task(
            backend="default",
            function="tests.app.tasks.add",
            queue=f"q{n % 3}",
            payload={"args": [], "kwargs": {}},
            run_at=ago(count - n),
        )
        for n in range(count)
    ]


# -------------------------------------------------------------------------------------------------------- rescuing


@pytest.mark.fast
def test_a_task_whose_lease_ran_out_is_rescued_and_its_run_kept_as_lost(run):
    task = a_task(State.RUNNING, lease=3, failures=1, lease_until=ago(1), started_at=ago(77), attempted_at=ago(66))
    before = fresh(task)
    [rescued] = rescue(run, task)
    assert rescued == (task.id, "tests.app.tasks.add", "default", State.PENDING)
    after = fresh(task)
    assert (after.lost, after.failures, after.lease, after.worker_id, after.lease_until) == (1, 1, 3, None, None)
    assert after.error_class == "django_dhara.errors.WorkerLost"
    [attempt] = Attempt.objects.all()
    assert (attempt.ended, attempt.number, attempt.lease, attempt.worker_id) == ("LOST", 2, 3, WORKER)
    assert attempt.started_at == before.attempted_at
    assert str(WORKER) in attempt.message


def test_a_live_lease_is_never_rescued(run):
    task = a_task(State.RUNNING, lease_until=ahead(0.5), started_at=ago(9_000), attempted_at=ago(9_000))
    assert rescue(run, task) == []


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"lost": MAX_LOST - 2, "max_attempts": 9}, State.PENDING),
        ({"lost": MAX_LOST - 1, "max_attempts": 9}, State.DEAD),
        ({"failures": 1, "max_attempts": 3}, State.PENDING),
        ({"failures": 2, "max_attempts": 3}, State.DEAD),
        ({"failures": 1, "lost": 1, "max_attempts": 3}, State.DEAD),
        ({"interrupted": 99, "snoozed": 99}, State.PENDING),
    ],
    ids=str,
)
def test_losses_count_against_both_budgets(run, columns, state):
    task = a_task(State.RUNNING, lease_until=ago(1), **columns)
    assert [rescued.state for rescued in rescue(run, task)] == [state]
    after = fresh(task)
    assert (after.state, after.worker_id) == (state, WORKER if state == State.DEAD else None)


def test_what_is_settled_after_an_outage_began_when_it_began(run):
    task = a_task(State.RUNNING)
    ending = an_ending(task, "fail", seconds=2.0)._replace(ended=monotonic() - 50)
    lifecycle.settle(run, WORKER, [ending], max_interrupted=MAX_INTERRUPTED)
    [attempt] = Attempt.objects.all()
    assert Attempt.objects.filter(ended_at__range=(ago(60), ago(50))).exists()
    for began in (fresh(task).attempted_at, attempt.started_at):
        assert attempt.ended_at - began == timedelta(seconds=2)


def a_worker(**columns):
    return Worker.objects.create(id=WORKER, name="w", host="h", pid=1, concurrency=1, lease_seconds=30, **columns)


def test_a_worker_that_gives_signs_of_life_has_another_lease_to_renew(run):
    worker = a_worker(heartbeat_at=ago(29))
    task = a_task(State.RUNNING, lease_until=ago(29))
    assert rescue(run, task) == []
    Worker.objects.filter(pk=worker.pk).update(heartbeat_at=ago(30))
    assert [rescued.id for rescued in rescue(run, task)] == [task.id]


@pytest.mark.parametrize("columns", [{"heartbeat_at": ago(30)}, {"heartbeat_at": ago(0), "stopped_at": ago(0)}])
def test_what_a_silent_or_stopped_worker_held_is_taken_when_its_lease_runs_out(run, columns):
    a_worker(**columns)
    assert len(rescue(run, a_task(State.RUNNING, lease_until=ago(0.001)))) == 1


def test_a_worker_that_never_renews_a_task_loses_it_for_all_its_signs_of_life(run):
    a_worker(heartbeat_at=ago(0))
    assert len(rescue(run, a_task(State.RUNNING, lease_until=ago(30)))) == 1


def test_a_rescue_that_comes_too_late_takes_nothing(run):
    a_task(State.RUNNING, lease_until=ago(3600))
    [[now]] = run("SELECT extract(epoch FROM statement_timestamp())::float8", {})
    budget = {"max_lost": 3, "grace_seconds": 0.0}
    assert lifecycle.rescue(run, "default", "default", **budget, until=now) == []
    assert len(lifecycle.rescue(run, "default", "default", **budget, until=now + 60)) == 1


def test_what_is_spared_keeps_its_run_and_is_abandoned_no_more(run):
    task, live = a_task(State.RUNNING, lease_until=ago(1)), a_task(State.RUNNING, lease_until=ahead(1))
    assert lifecycle.spare(run, "default", "default", lease_seconds=60.0) == 1
    assert [fresh(each).lease for each in (task, live)] == [task.lease, live.lease]
    [[spared, other]] = run(
        "SELECT (SELECT lease_until > now() + '50 s' FROM dhara_task WHERE id = %(spared)s), "
        "(SELECT lease_until > now() + '50 s' FROM dhara_task WHERE id = %(live)s)",
        {"spared": task.id, "live": live.id},
    )
    assert (spared, other) == (True, False)
    assert rescue(run, task) == []


def test_nothing_is_rescued_in_the_grace_after_a_start_of_the_server(run):
    task = a_task(State.RUNNING, lease_until=ago(3600))
    [[up]] = run("SELECT extract(epoch FROM statement_timestamp() - pg_postmaster_start_time())::float8", {})
    assert rescue(run, task, grace_seconds=up + 60) == []
    assert len(rescue(run, task, grace_seconds=up - 0.001)) == 1


def test_a_rescue_takes_at_most_its_limit_and_no_live_run_stands_in_its_way(run):
    for n in range(20):
        a_task(State.RUNNING, id=UUID(int=n + 1), lease_until=ahead(60))
    for n in range(20):
        a_task(State.RUNNING, id=UUID(int=n + 100), lease_until=ago(1))
    taken = [len(lifecycle.rescue(run, "default", "default", max_lost=3, grace_seconds=0.0, limit=8)) for _ in range(4)]
    assert taken == [8, 8, 4, 0]


def test_a_rescue_leaves_other_backends_alone(run):
    a_task(State.RUNNING, lease_until=ago(1), backend="other")
    assert rescue(run, Task(backend="default")) == []


def test_a_lease_runs_by_the_clock_of_the_database_not_by_the_start_of_the_transaction(run):
    # now() stands still in a transaction, statement_timestamp() does not.
    task = a_task()
    [claimed] = lifecycle.claim(
        run, "default", Wanted("default"), WORKER, limit=1, suspects=0, lease_seconds=0.001
    ).claims
    run("SELECT pg_sleep(0.005) IS NULL", {})
    assert [rescued.id for rescued in rescue(run, task)] == [claimed.id]


def test_no_statement_asks_a_clock_that_stands_still_or_runs_on():
    """now() is the transaction's start; clock_timestamp() changes from row to row and is in no index condition."""
    claim_module = _module("claim")
    statements = [claim_module._statement("default", named=named) for named in (True, False)]
    statements += [getattr(_module("runs"), name) for name in ("_SETTLE", "_RENEW", "_REPORT")]
    statements += [getattr(_module("operator"), name) for name in ("_CANCEL", "_REVIVE", "_RUN_NOW")]
    statements += [_module("reaper")._rescue("default"), _module("reaper")._prune("default", State.DEAD)]
    for statement in statements:
        assert re.search(r"statement_timestamp\(\)|/\* dhara:report", statement, re.IGNORECASE)
        assert not re.search(
            r"\bnow\(\)|clock_timestamp|current_timestamp|transaction_timestamp", statement, re.IGNORECASE
        )


def _module(name):
    from importlib import import_module

    return import_module(f"django_dhara.lifecycle.{name}")


# --------------------------------------------------------------------------------------------------------- pruning


@pytest.mark.fast
@pytest.mark.parametrize("state", FINAL)
def test_pruning_deletes_old_tasks_of_one_state_with_their_attempts(run, state):
    old, young = a_task(state, finished_at=ago(100)), a_task(state, finished_at=ago(5))
    others = [a_task(other, finished_at=ago(100)) for other in FINAL if other != state]
    for task in (old, young, *others):
        an_attempt(task)
        an_attempt(task, number=2)
    assert lifecycle.prune(run, "default", "default", state, older_than=50, keyed_older_than=0) == 1
    left = {young.id, *(task.id for task in others)}
    assert set(Task.objects.values_list("id", flat=True)) == left
    assert set(Attempt.objects.values_list("task_id", flat=True)) == left


def test_keyed_tasks_stay_longer_and_never_shorter(run):
    keyed = a_task(State.COMPLETED, finished_at=ago(100), idempotency_key="k")
    a_task(State.COMPLETED, finished_at=ago(100))
    assert lifecycle.prune(run, "default", "default", State.COMPLETED, older_than=50, keyed_older_than=200) == 1
    assert fresh(keyed)
    assert lifecycle.prune(run, "default", "default", State.COMPLETED, older_than=150, keyed_older_than=0) == 0
    assert lifecycle.prune(run, "default", "default", State.COMPLETED, older_than=50, keyed_older_than=60) == 1


def test_pruning_takes_the_oldest_first_and_at_most_its_limit(run):
    tasks = [a_task(State.DEAD, finished_at=ago(100 - n)) for n in range(10)]
    assert lifecycle.prune(run, "default", "default", State.DEAD, older_than=1, keyed_older_than=1, limit=4) == 4
    assert set(Task.objects.values_list("id", flat=True)) == {task.id for task in tasks[4:]}


def test_pruning_leaves_other_backends_alone(run):
    a_task(State.DEAD, finished_at=ago(100), backend="other")
    assert lifecycle.prune(run, "default", "default", State.DEAD, older_than=1, keyed_older_than=1) == 0


# ------------------------------------------------------------------------------------------------------- the whole


def test_a_whole_life_on_a_session_like_a_workers(sessions):
    """Server-side parameters and psycopg's own types, not Django's."""
    [session] = sessions(1)
    task, run = a_task(max_attempts=3, metadata={"a": 1}), session.execute
    for verb in ("snooze", "fail", "interrupt", "hand back"):
        [claimed] = claim(run).claims
        assert (type(claimed.payload), type(claimed.metadata)) == (str, str)
        assert lifecycle.renew(run, WORKER, [(task.id, claimed.lease)], lease_seconds=30.0).renewed
        assert lifecycle.report(run, [Report(task.id, claimed.lease, "1", '{"x": 1}')])
        settle(verb, run, fresh(task))
        Task.objects.update(run_at=ago(1))
    claim(run)
    Task.objects.update(lease_until=ago(1))
    assert rescue(run, task)[0].state == State.PENDING
    claim(run)
    assert settle("fail", run, fresh(task)) == Settled(State.DEAD)
    assert lifecycle.revive(run, task.id) is True
    claim(run)
    assert lifecycle.cancel(run, task.id) == "requested"
    assert [order.verb for order in claim(run, limit=0).orders] == ["CANCEL"]
    assert settle("fail", run, fresh(task)) == Settled(State.CANCELED)
    assert Attempt.objects.filter(task_id=task.id).count() == 4
    assert lifecycle.prune(run, "default", "default", State.CANCELED, older_than=0, keyed_older_than=0) == 1
    assert everything()[:2] == [[], []]


def test_an_interruption_that_costs_nothing_leaves_no_error_on_the_task(run):
    task = a_task()
    claimed = claim(run).claims[0]
    lifecycle.settle(run, WORKER, [Ending(task.id, claimed.lease, OUTCOMES["interrupt"], 1.0)], max_interrupted=3)
    assert (fresh(task).interrupted, fresh(task).error_class) == (1, None)


def test_a_running_task_that_is_canceled_twice_gets_one_command(run):
    task = a_task()
    claim(run)
    assert [lifecycle.cancel(run, task.id) for _ in range(2)] == ["requested", "requested"]
    assert Command.objects.count() == 1


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("text", ["", "NULL", None, 'a "b" \\ {c}, d', "\n\t ", "\\x00", "é€", "null", "'; --"]),
        ("float8", [None, 1e-5, -0.5, 1e300, float("inf"), 3]),
        ("bigint", [0, None, -(2**63), 2**63 - 1]),
        ("uuid", [uuid4(), str(uuid4()), None]),
        ("bytea", [b"", b"\x00\xff\\", None]),
        ("timestamptz", [datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), None]),
        ("text", [None, None]),
        ("text", []),
    ],
)
def test_an_array_reads_back_as_it_was(run, type_, values):
    [[found]] = run(f"SELECT %(values)s::{type_}[]", {"values": array(values)})
    expected = [UUID(value) if type_ == "uuid" and isinstance(value, str) else value for value in values]
    assert found == expected
