"""What must hold when workers, reapers and operators meet, told case by case; each has a real session of its own.

test_collisions.py lets every pair of verbs meet on one task, test_interleavings.py four of them in every order.
"""

import random
from collections import Counter
from functools import partial
from itertools import pairwise
from uuid import UUID

import pytest

from django_dhara import lifecycle
from django_dhara.lifecycle import Report, Settled
from django_dhara.models import Attempt, Task
from django_dhara.states import ARROWS, State
from tests.rows import (
    MAX_INTERRUPTED,
    OUTCOMES,
    WORKER,
    a_task,
    ago,
    an_attempt,
    an_ending,
    fresh,
    row,
)
from tests.sessions import at_once, wait
from tests.verbs import VERBS, claim, prune, renew, rescue, settle

# ------------------------------------------------------------------------------------------------------- the claim


@pytest.mark.fast
def test_two_claims_at_once_share_the_tasks(sessions):
    one, two, watcher = sessions(3)
    tasks = [a_task() for _ in range(10)]
    one.begin()
    first = claim(one.execute, tasks[0], limit=6)
    second = at_once(two, watcher, lambda execute: claim(execute, tasks[0], limit=6))
    one.end()
    assert (len(first), len(second)) == (6, 4)
    assert {claimed.id for claimed in first + second} == {task.id for task in tasks}


def claim_all(session, mistakes=()):
    """Claim in small bites until nothing is left."""

    def go(execute):
        taken = []
        while claims := claim(execute, Task(backend="default"), limit=9):
            taken += [(claimed.id, claimed.lease) for claimed in claims]
        return taken

    session.planted = mistakes
    return session.start(go)


@pytest.mark.parametrize("suspects", [0, 40])
def test_eight_workers_claim_five_hundred_tasks_each_exactly_once(sessions, suspects):
    tasks = [{"queue": f"q{n % 3}", "priority": n % 2, "lost": int(n < suspects)} for n in range(500)]
    for columns in tasks:
        a_task(**columns)
    futures = [claim_all(session) for session in sessions(8)]
    taken = [run for future in futures for run in future.result(60)]
    # A row that somebody had locked at the last look is left for the next one.
    taken += claim_all(sessions(1)[0]).result(60)
    assert Counter(taken) == {(id_, 1): 1 for id_ in Task.objects.values_list("id", flat=True)}
    assert len(taken) == 500


def test_nobody_waits_for_a_due_row_that_somebody_has_locked(sessions):
    holder, worker, watcher = sessions(3)
    held, free = a_task(priority=9), a_task()
    suspect = a_task(priority=9, lost=1)
    holder.begin()
    holder.execute("SELECT FROM dhara_task WHERE priority = 9 FOR UPDATE", {})
    claims = at_once(worker, watcher, lambda execute: claim(execute, held, limit=10))
    assert [claimed.id for claimed in claims] == [free.id]
    holder.end()
    assert {claimed.id for claimed in claim(worker.execute, held, limit=10)} == {held.id, suspect.id}


# ------------------------------------------------------------------------------------------- settle against cancel


@pytest.mark.fast
def test_a_failure_after_a_cancel_is_no_retry(sessions):
    operator, worker, watcher = sessions(3)
    task = a_task(State.RUNNING)
    operator.begin()
    assert lifecycle.cancel(operator.execute, task.id) == "requested"
    assert at_once(worker, watcher, lambda execute: settle("fail", execute, task)) == Settled(None, refused=False)
    operator.end()
    assert settle("fail", worker.execute, task) == Settled(State.CANCELED)


def test_a_cancel_waits_for_the_settle_and_tells_what_came_of_it(sessions):
    operator, worker, watcher = sessions(3)
    for how, answer, state in (("COMMIT", "finished", State.COMPLETED), ("ROLLBACK", "requested", State.RUNNING)):
        task = a_task(State.RUNNING)
        worker.begin()
        settle("complete", worker.execute, task)
        future = operator.start(lambda execute, id_=task.id: lifecycle.cancel(execute, id_))
        assert not wait(future, operator, watcher)
        worker.end(how)
        assert (future.result(), fresh(task).state) == (answer, state)


def test_a_locked_row_keeps_no_other_outcome_from_being_settled(sessions):
    holder, worker, watcher = sessions(3)
    tasks = [a_task(State.RUNNING) for _ in range(5)]
    endings = [an_ending(task) for task in tasks]
    holder.begin()
    holder.execute("SELECT FROM dhara_task WHERE id = %(id)s FOR UPDATE", {"id": tasks[2].id})
    answers = at_once(worker, watcher, _settle_all, endings)
    assert [answer.state for answer in answers] == [State.COMPLETED, State.COMPLETED, None, *[State.COMPLETED] * 2]
    assert not any(answer.refused for answer in answers)
    holder.end()
    assert _settle_all(worker.execute, [endings[2]]) == [Settled(State.COMPLETED)]


def _settle_all(execute, endings):
    return lifecycle.settle(execute, WORKER, endings, max_interrupted=MAX_INTERRUPTED)


# ------------------------------------------------------------------------------------------- settle against rescue


def a_late_settle(late, others, verb="complete"):
    """A paused worker wakes up: its task was rescued, and another worker runs it."""
    task = a_task(State.RUNNING, lease_until=ago(1), lease=7)
    assert [rescued.state for rescued in rescue(others.execute, task)] == [State.PENDING]
    [claimed] = claim(others.execute, task)
    assert claimed.lease == 8
    before = row(task)
    answer = VERBS[verb](late.execute, task)
    assert row(task) == before, "the late run changed a row that is not its own"
    return answer


@pytest.mark.fast
@pytest.mark.parametrize("verb", OUTCOMES)
def test_a_late_run_settles_nothing_once_another_worker_has_the_task(sessions, verb):
    assert a_late_settle(*sessions(2), verb) == Settled(None, refused=True)
    assert Attempt.objects.get().ended == "LOST"


def test_a_late_run_neither_renews_nor_reports_once_another_worker_has_the_task(sessions):
    late, others = sessions(2)
    assert len(a_late_settle(late, others, "renew").refused) == 1
    assert a_late_settle(late, others, "report") == set()


@pytest.mark.parametrize("verb", ["complete", "renew", "report"])
def test_a_missing_fence_is_noticed(sessions, verb):
    late, others = sessions(2)
    late.planted = [(f"AND task.lease = {row}.lease", "") for row in ("ending", "held", "mine", "report")]
    with pytest.raises(AssertionError, match="not its own"):
        a_late_settle(late, others, verb)


def test_a_run_that_was_rescued_settles_nothing(sessions):
    reaper, worker, watcher = sessions(3)
    task = a_task(State.RUNNING, lease_until=ago(1))
    reaper.begin()
    assert len(rescue(reaper.execute, task)) == 1
    assert at_once(worker, watcher, lambda execute: settle("complete", execute, task)) == Settled(None, refused=False)
    reaper.end()
    assert settle("complete", worker.execute, task) == Settled(None, refused=True)
    assert fresh(task).state == State.PENDING


def test_a_run_that_is_being_settled_is_not_rescued(sessions):
    reaper, worker, watcher = sessions(3)
    task = a_task(State.RUNNING, lease_until=ago(1))
    worker.begin()
    settle("complete", worker.execute, task)
    assert at_once(reaper, watcher, rescue, task) == []
    worker.end()
    assert rescue(reaper.execute, task) == []
    assert (fresh(task).state, fresh(task).lost) == (State.COMPLETED, 0)


@pytest.mark.fast
def test_two_reapers_at_once_count_one_loss(sessions):
    one, two, watcher = sessions(3)
    tasks = [a_task(State.RUNNING, lease_until=ago(1)) for _ in range(6)]
    one.begin()
    assert len(rescue(one.execute, tasks[0])) == 6
    assert at_once(two, watcher, rescue, tasks[0]) == []
    one.end()
    assert rescue(two.execute, tasks[0]) == []
    assert {task.lost for task in Task.objects.all()} == {1}
    assert Attempt.objects.count() == 6


# -------------------------------------------------------------------------------------------------------- renewing


@pytest.mark.fast
def test_a_renewal_does_not_wait_for_a_settle_that_is_not_committed(sessions):
    settler, worker, watcher = sessions(3)
    task, other = a_task(State.RUNNING), a_task(State.RUNNING)
    leases = [(task.id, 1), (other.id, 1)]
    settler.begin()
    settle("complete", settler.execute, task)
    held = at_once(worker, watcher, _renew, leases)
    assert (held.renewed, held.refused) == ({(other.id, 1)}, set())
    settler.end()
    held = _renew(worker.execute, leases)
    assert (held.renewed, held.refused) == ({(other.id, 1)}, set())


def _renew(execute, leases):
    return lifecycle.renew(execute, WORKER, leases, lease_seconds=30.0)


def test_a_worker_whose_own_row_is_locked_renews_all_the_same(sessions):
    from django_dhara.models import Worker

    admin, worker, watcher = sessions(3)
    Worker.objects.create(id=WORKER, concurrency=1, pid=1, lease_seconds=30)
    task = a_task(State.RUNNING)
    admin.begin()
    admin.execute("SELECT FROM dhara_worker FOR UPDATE", {})
    assert at_once(worker, watcher, _renew, [(task.id, 1)]) == ({(task.id, 1)}, set(), True)


def test_a_renewal_saves_a_lease_that_had_run_out_before_the_reaper_came(sessions):
    reaper, worker, watcher = sessions(3)
    task = a_task(State.RUNNING, lease_until=ago(100))
    worker.begin()
    assert renew(worker.execute, task).renewed
    assert at_once(reaper, watcher, rescue, task) == []
    worker.end()
    assert rescue(reaper.execute, task) == []


# ------------------------------------------------------------------------------------------------- revive and prune


@pytest.mark.fast
def test_a_double_click_revives_once_in_a_hundred_rounds(sessions):
    one, two = sessions(2)
    for _ in range(100):
        task = a_task(State.DEAD, lease=3)
        futures = [session.start(VERBS["revive"], task) for session in (one, two)]
        assert sorted(future.result(20) for future in futures) == [False, True]
        assert fresh(task).state == State.PENDING


def test_a_double_click_on_many_tasks_revives_each_once(sessions):
    one, two = sessions(2)
    ids = [a_task(State.DEAD).id for _ in range(200)]
    futures = [
        session.start(lifecycle.revive_all, order) for session, order in ((one, ids), (two, list(reversed(ids))))
    ]
    tallies = [future.result(20) for future in futures]
    assert sorted(id_ for tally in tallies for id_ in tally.changed.get("revived", ())) == sorted(ids)
    for tally in tallies:
        assert len(tally.changed.get("revived", ())) + tally.busy + tally.refused == 200


def copies_of(task):
    return list(Task.objects.filter(parent_id=task.id))


@pytest.mark.fast
def test_a_copy_is_the_call_anew_and_the_task_stays_as_it_was(sessions):
    [one] = sessions(1)
    options = {"queue": "mail", "priority": 3, "max_attempts": 2, "timeout": 9.0, "metadata": {"tenant": 1}}
    task = a_task(State.DEAD, idempotency_key="k", lease=4, failures=2, checkpoint="here", **options)
    before, new = row(task), UUID(int=77)
    tally = lifecycle.copy_all(one.execute, {task.id: new})
    assert (tally.changed, tally.copies) == ({"copied": [task.id]}, {task.id: new})
    assert tally.wake == {("default", "mail")}
    assert row(task) == before
    [copy] = copies_of(task)
    assert {name: getattr(copy, name) for name in options} == options
    assert (copy.id, copy.state, copy.payload, copy.function) == (new, State.PENDING, task.payload, task.function)
    assert (copy.lease, copy.failures, copy.checkpoint) == (0, 0, None)
    assert copy.idempotency_key == f"copy of {task.id} after run 4"


def test_a_double_click_copies_once_in_fifty_rounds(sessions):
    one, two = sessions(2)
    for n in range(50):
        task = a_task(State.DEAD, lease=3)
        futures = [
            session.start(partial(lifecycle.copy_all, wait=True), {task.id: UUID(int=2 * n + place)})
            for place, session in enumerate((one, two))
        ]
        tallies = [future.result(20) for future in futures]
        assert sorted((len(tally.copies), tally.refused) for tally in tallies) == [(0, 1), (1, 0)]
        assert len(copies_of(task)) == 1


def test_a_task_is_copied_again_after_another_run_or_when_its_copy_is_gone(sessions):
    [one] = sessions(1)
    task = a_task(State.DEAD, lease=3)

    def copy(number):
        tally = lifecycle.copy_all(one.execute, {task.id: UUID(int=number)})
        return len(tally.copies), tally.refused, tally.busy

    assert [copy(1), copy(2)] == [(1, 0, 0), (0, 1, 0)]
    Task.objects.filter(pk=task.pk).update(lease=4)
    assert copy(3) == (1, 0, 0)
    Task.objects.filter(pk=UUID(int=3)).delete()
    assert copy(4) == (1, 0, 0)


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.COMPLETED])
def test_what_is_neither_dead_nor_canceled_is_not_copied(sessions, state):
    [one] = sessions(1)
    task = a_task(state)
    tally = lifecycle.copy_all(one.execute, {task.id: UUID(int=1), UUID(int=5): UUID(int=2)})
    assert (tally.changed, tally.refused, tally.missing) == ({}, 1, 1)
    assert not copies_of(task)


def test_a_task_that_is_being_revived_is_copied_by_nobody(sessions):
    operator, other, watcher = sessions(3)
    task = a_task(State.DEAD)
    operator.begin()
    assert VERBS["revive"](operator.execute, task) is True
    tally = at_once(other, watcher, lifecycle.copy_all, {task.id: UUID(int=1)})
    assert (tally.busy, copies_of(task)) == (1, [])
    future = other.start(partial(lifecycle.copy_all, wait=True), {task.id: UUID(int=1)})
    assert not wait(future, other, watcher)
    operator.end()
    assert (future.result().refused, copies_of(task)) == (1, [])


def test_a_task_whose_backend_has_no_such_queue_stays_where_it_is(sessions):
    [one] = sessions(1)
    here, there = a_task(), a_task(backend="other")
    tally = lifecycle.change_queue_all(one.execute, [here.id, there.id], queue="mail", without=["other"])
    assert (tally.changed, tally.refused, tally.wake) == ({"moved": [here.id]}, 1, {("default", "mail")})
    assert (fresh(here).queue, fresh(there).queue) == ("mail", "default")


def test_a_task_that_is_being_revived_is_not_pruned(sessions):
    operator, pruner, watcher = sessions(3)
    task = a_task(State.DEAD, finished_at=ago(900))
    an_attempt(task)
    operator.begin()
    assert VERBS["revive"](operator.execute, task) is True
    assert at_once(pruner, watcher, prune, task) == 0
    operator.end()
    assert prune(pruner.execute, task) == 0
    assert (fresh(task).state, Attempt.objects.count()) == (State.PENDING, 1)


def test_who_revives_a_task_that_is_being_pruned_learns_that_it_is_gone(sessions):
    operator, pruner, watcher = sessions(3)
    task = a_task(State.DEAD, finished_at=ago(900))
    pruner.begin()
    assert prune(pruner.execute, task) == 1
    future = operator.start(VERBS["revive"], task)
    assert not wait(future, operator, watcher)
    pruner.end()
    assert future.result() is None


# ---------------------------------------------------------------------------------------------- everything together


@pytest.fixture
def changes(commits, sessions):
    """Reads every change of a task's state so far in the order in which they happened, as a trigger wrote it down."""
    [session] = sessions(1)
    session.connection.execute(
        """CREATE TABLE test_log (id bigserial, task uuid, old text, new text, lease bigint);
           CREATE FUNCTION test_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO test_log (task, old, new, lease) VALUES (NEW.id, OLD.state, NEW.state, NEW.lease);
               RETURN NULL; END $$;
           CREATE TRIGGER test_log AFTER UPDATE ON dhara_task
               FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION test_log()"""
    )
    yield lambda: session.execute("SELECT task, old, new, lease FROM test_log ORDER BY id", {})
    session.connection.execute("DROP TRIGGER test_log ON dhara_task; DROP FUNCTION test_log; DROP TABLE test_log")


MANY = (
    lifecycle.cancel_all,
    lifecycle.revive_all,
    lifecycle.run_now_all,
    partial(lifecycle.change_queue_all, queue="q1"),
    partial(lifecycle.change_priority_all, priority=2),
    partial(lifecycle.put_off_all, seconds=0.01),
)


class Player:
    """One worker and one operator in one thread, doing whatever comes to mind with whatever they find."""

    def __init__(self, execute, seed):
        self.execute = execute
        self.dice = random.Random(seed)
        self.worker = UUID(int=seed + 1)
        self.ids = [id_ for [id_] in execute("SELECT id FROM dhara_task ORDER BY id", {})]
        self.leases = {}
        self.answers = []

    def play(self, rounds):
        for _ in range(rounds):
            self.dice.choice((self.work, self.work, self.finish, self.finish, self.hold_on, self.sweep, self.operate))()
        return self.answers

    def work(self):
        limit = self.dice.randint(1, 6)
        for claimed in claim(self.execute, Task(backend="default"), self.worker, limit=limit, lease_seconds=0.005):
            self.leases[claimed.id] = claimed.lease
            self.answers.append(("claim", claimed.id, claimed.lease))

    def finish(self):
        some = self.dice.sample(sorted(self.leases), min(len(self.leases), 4))
        endings = [
            lifecycle.Ending(id_, self.leases[id_], self.dice.choice(list(OUTCOMES.values())), 0.001) for id_ in some
        ]
        for ending, answer in zip(endings, _settle_all(self.execute, endings), strict=True) if endings else ():
            if answer.state or answer.refused:
                del self.leases[ending.id]
            if answer.state:
                self.answers.append(("settle", ending.id, ending.lease))

    def hold_on(self):
        lifecycle.renew(self.execute, self.worker, list(self.leases.items()), lease_seconds=0.005)
        lifecycle.report(self.execute, [Report(id_, lease, "1", None) for id_, lease in self.leases.items()])

    def sweep(self):
        rescue(self.execute, Task(backend="default"))

    def operate(self):
        some = self.dice.sample(self.ids, 5)
        self.dice.choice(MANY)(self.execute, some)
        self.dice.choice((lifecycle.cancel, lifecycle.revive, lifecycle.run_now))(self.execute, some[0])


def test_six_players_with_thirty_tasks_take_only_arrows_and_never_deadlock(sessions, changes):
    seed = random.randrange(1_000_000)  # by pytest-randomly's own seed, which is printed
    for n in range(30):
        a_task(max_attempts=1000, priority=n % 3, queue=f"q{n % 2}")
    futures = [
        session.start(lambda execute, n=n: Player(execute, seed + n).play(150)) for n, session in enumerate(sessions(6))
    ]
    answers = [answer for future in futures for answer in future.result(60)]
    logged = changes()
    assert {(old, new) for _, old, new, _ in logged} <= {(arrow.source, arrow.target) for arrow in ARROWS}
    assert all(times == 1 for times in Counter(answers).values()), "one lease was claimed or settled twice"
    claims = {(task, lease) for verb, task, lease in answers if verb == "claim"}
    assert claims == {(task, lease) for task, _, new, lease in logged if new == State.RUNNING}
    for task in Task.objects.all():
        mine = [(old, new) for id_, old, new, _ in logged if id_ == task.id]
        assert all(before[1] == after[0] for before, after in pairwise(mine))
        assert not mine or mine[-1][1] == task.state
