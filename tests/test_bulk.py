"""Changes of all that match: every task once, nothing that came later, whoever makes the steps and however they end."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from uuid import uuid4

import pytest
from django.db import connections

from django_dhara import bulk, services, sql
from django_dhara.compat import task_backends
from django_dhara.models import Attempt, BulkChange, Task
from django_dhara.search import finding, parse, sources
from django_dhara.states import State
from tests.rows import ago, an_attempt, everything, fresh
from tests.test_search import put


def many(number, state=State.DEAD, **columns):
    return [put(state, 1000 - n, **columns) for n in range(number)]


def finish(change, **options):
    """Make steps to the end; how many it took."""
    for steps in range(1, 1000):
        change = bulk.step("default", change.pk, **{"seconds": 0.0, "batch": 7, **options})
        if change.finished_at:
            return change, steps
    raise AssertionError("it never ends")


@pytest.mark.fast
def test_a_search_is_kept_with_its_times_written_out(db):
    change = bulk.create("default", "cancel", parse("state:pending before:1h"), reason="a bad deploy", user_name="eve")
    before = change.created_at - timedelta(hours=1)
    assert change.search == f'state:pending before:"{before.isoformat()}"'
    assert (change.verb, change.reason, change.user_name, change.counts) == ("cancel", "a bad deploy", "eve", {})


def test_a_search_that_its_written_out_times_make_too_long_is_kept_all_the_same(db):
    put(State.DEAD, 9)
    asked = parse("state:dead after:2h -queue:" + "y" * 1970)
    change = bulk.create("default", "revive", asked)
    assert len(change.search) > 2000
    assert bulk.left("default", change).number == 1
    assert finish(change)[0].counts == {"revived": 1}


def test_a_router_that_reads_from_a_replica_is_not_asked(db, settings):
    settings.DATABASE_ROUTERS = ["tests.test_admin.Replica"]
    put(State.DEAD, 9)
    assert finish(bulk.create("default", "revive", parse("")))[0].counts == {"revived": 1}


@pytest.mark.fast
def test_arguments_are_checked_before_it_begins(db):
    with pytest.raises(ValueError, match="a priority is a whole number"):
        bulk.create("default", "change_priority", parse(""), {"priority": "high"})
    assert not BulkChange.objects.exists()


@pytest.mark.fast
@pytest.mark.parametrize("gather", [0, 1000])
@pytest.mark.parametrize("window", [3, 1000])
def test_all_that_match_are_changed_once_in_batches(db, monkeypatch, gather, window):
    for module in (finding, sources):
        monkeypatch.setattr(module, "GATHER", gather)
    monkeypatch.setattr(finding, "WINDOWS", (window,))
    dead, others = many(30), [*many(5, queue="other"), *many(3, State.COMPLETED)]
    change = bulk.create("default", "revive", parse("state:dead queue:default"))
    assert bulk.left("default", change).number == min(30, 30 if gather else window)
    change, steps = finish(change)
    assert (change.counts, change.looked_at) == ({"revived": 30}, 30)
    assert steps >= 30 / 7
    assert {fresh(task).state for task in dead} == {State.PENDING}
    assert State.PENDING not in {fresh(task).state for task in others}
    assert bulk.left("default", change).number == 0


@pytest.mark.fast
def test_what_is_enqueued_after_the_start_is_not_touched(db):
    many(10, State.PENDING)
    change = bulk.create("default", "cancel", parse("state:pending"))
    bulk.step("default", change.pk, seconds=0.0, batch=4)
    later = put()
    behind_a_slow_clock = put(seconds_ago=500)
    Task.objects.filter(pk=behind_a_slow_clock.pk).update(enqueued_at=later.enqueued_at + timedelta(seconds=60))
    change, _ = finish(change)
    assert change.counts == {"canceled": 10}
    assert {fresh(later).state, fresh(behind_a_slow_clock).state} == {State.PENDING}


@pytest.mark.fast
def test_what_a_step_moves_in_its_index_is_not_met_again(db):
    many(20, State.PENDING)
    change, _ = finish(bulk.create("default", "snooze", parse("state:pending"), {"seconds": 60}))
    assert change.counts == {"snoozed": 20}
    change, _ = finish(bulk.create("default", "change_priority", parse("is:scheduled"), {"priority": "9"}))
    assert change.counts == {"moved": 20}
    change, _ = finish(bulk.create("default", "change_queue", parse("priority:9"), {"queue": "mail"}))
    assert change.counts == {"moved": 20}
    assert set(Task.objects.values_list("priority", "queue")) == {(9, "mail")}


@pytest.mark.fast
def test_attempts_of_deleted_tasks_are_deleted(db):
    for task in many(9, State.COMPLETED):
        an_attempt(task)
    change, _ = finish(bulk.create("default", "delete", parse("state:completed")))
    assert (change.counts, Task.objects.count(), Attempt.objects.count()) == ({"deleted": 9}, 0, 0)


def test_the_summary_counts_what_was_refused_and_what_was_busy(transactional_db, other_session):
    tasks = [*many(4), *many(2, State.COMPLETED)]
    change = bulk.create("default", "revive", parse("queue:default"))
    with other_session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM dhara_task WHERE id = %s FOR UPDATE", [tasks[0].pk])
        change, _ = finish(change)
        cursor.execute("ROLLBACK")
    assert change.counts == {"revived": 3, "refused": 2, "busy": 1}


@pytest.mark.fast
def test_one_that_was_stopped_or_has_ended_makes_no_step(db):
    many(10)
    change = bulk.create("default", "revive", parse("state:dead"))
    bulk.step("default", change.pk, seconds=0.0, batch=4)
    assert bulk.stop("default", change.pk) is True
    assert bulk.stop("default", change.pk) is False
    before = everything()
    change = bulk.step("default", change.pk)
    assert (change.counts, everything()) == ({"revived": 4}, before)
    assert bulk.left("default", change).number == 0
    with pytest.raises(BulkChange.DoesNotExist):
        bulk.step("default", uuid4())


def test_a_step_that_is_killed_leaves_nothing_half_done(transactional_db):
    many(10)
    change = bulk.create("default", "revive", parse("state:dead"))
    bulk.step("default", change.pk, seconds=0.0, batch=4)
    before = everything(), BulkChange.objects.values().get()

    def killed(change, tally):
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(Exception, match=r"terminat|closed|connection"):
        bulk.step("default", change.pk, on_changed=killed)
    connections["default"].close()
    assert (everything(), BulkChange.objects.values().get()) == before
    change, _ = finish(change)
    assert (change.counts, change.looked_at) == ({"revived": 10}, 10)


def at_once(number, call):
    """So many calls that begin together, each on connections of its own."""
    barrier = Barrier(number)

    def one(place):
        try:
            barrier.wait(20)
            return call(place)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(number) as pool:
        return [*pool.map(one, range(number))]


def test_two_browsers_that_step_the_same_one_do_each_task_once(transactional_db):
    many(200)
    change = bulk.create("default", "revive", parse("state:dead"))
    changed = []

    def note(change, tally):
        changed.extend(tally.changed["revived"])

    def browser(place):
        for _ in range(200):
            seen = bulk.step("default", change.pk, seconds=0.0, batch=5, on_changed=note)
            if seen.finished_at:
                return True
        return False

    at_once(2, browser)
    change, _ = finish(change)
    assert change.counts == {"revived": 200}
    assert len(changed) == len(set(changed)) == 200


def test_two_people_who_retry_the_same_tasks_at_once_make_one_retry_of_each(transactional_db):
    many(200)
    changes = [bulk.create("default", "revive", parse("state:dead"), user_name=name) for name in ("ann", "bob")]
    revived = at_once(2, lambda place: finish(changes[place], batch=9)[0].counts.get("revived", 0))
    assert sum(revived) + sum(_busy_still()) == 200
    assert Task.objects.filter(state=State.PENDING, lease=1).count() == 200 - sum(_busy_still())


def _busy_still():
    """Tasks that each of two left to the other at the same moment."""
    return [Task.objects.filter(state=State.DEAD).count()]


def test_a_stop_waits_for_the_step_that_is_being_made(transactional_db):
    many(50)
    change = bulk.create("default", "revive", parse("state:dead"))
    stopped = []

    def call(place):
        if place:
            return bulk.step("default", change.pk, batch=5, on_changed=lambda c, tally: stopped or None)
        return bulk.stop("default", change.pk)

    at_once(2, call)
    seen = bulk.step("default", change.pk)
    revived = Task.objects.filter(state=State.PENDING).count()
    assert seen.counts.get("revived", 0) == revived


def test_a_task_that_dies_again_meanwhile_is_retried_once(db):
    tasks = many(10)
    change = bulk.create("default", "revive", parse("state:dead"))
    bulk.step("default", change.pk, seconds=0.0, batch=5)
    again = [task for task in tasks if fresh(task).state == State.PENDING]
    Task.objects.filter(pk__in=[task.pk for task in again]).update(state=State.DEAD, finished_at=ago(0))
    change, _ = finish(change)
    assert change.counts == {"revived": 10}
    assert {fresh(task).state for task in again} == {State.DEAD}


def test_a_copy_of_each_is_made_once_however_often_it_is_asked_for(db):
    many(12)
    for expected in ({"copied": 12}, {"refused": 12}):
        change, _ = finish(bulk.create("default", "copy", parse("state:dead")))
        assert change.counts == expected
    assert Task.objects.filter(state=State.PENDING).count() == 12


@pytest.mark.fast
def test_what_is_looked_for_ahead_and_not_changed_in_time_is_changed_by_the_next_step(db, monkeypatch):
    monkeypatch.setattr(bulk, "AHEAD", 10)
    many(25)
    change = bulk.create("default", "revive", parse("state:dead"))
    change = bulk.step("default", change.pk, seconds=0.0, batch=4)
    assert (change.looked_at, change.counts) == (4, {"revived": 4})
    change, _ = finish(change, batch=4)
    assert change.counts == {"revived": 25}


@pytest.mark.fast
def test_an_empty_table_is_done_at_once(db):
    change, steps = finish(bulk.create("default", "cancel", parse("")))
    assert (change.counts, steps) == ({}, 1)


def test_a_search_that_is_too_slow_changes_nothing_and_says_so(db, monkeypatch):
    many(3)
    change = bulk.create("default", "revive", parse("state:dead"))

    def slow(*arguments, **named):
        raise sql.TooSlow

    monkeypatch.setattr(bulk.search, "walk", slow)
    with pytest.raises(sql.TooSlow):
        bulk.step("default", change.pk)
    assert BulkChange.objects.get().looked_at == 0


# How long it stays


def options(**days):
    columns = {f"retain_{state}_seconds": number * 86_400.0 for state, number in days.items()}
    return replace(task_backends["default"].settings, **columns)


@pytest.mark.fast
def test_a_bulk_change_stays_as_long_after_its_last_step_as_the_finished_tasks_that_stay_longest(db):
    kept = options(completed=1, canceled=3, dead=2)
    for days, columns in ((2.9, {}), (3.1, {"finished_at": ago(3.1 * 86_400)}), (3.1, {}), (4, {"stopped_at": ago(0)})):
        BulkChange.objects.create(verb="revive", changed_at=ago(days * 86_400), created_at=ago(9e6), **columns)
    assert services.prune_bulk_changes(sql.on("default"), options=kept) == 3
    assert services.prune_bulk_changes(sql.on("default"), options=kept) == 0
    assert BulkChange.objects.count() == 1
    assert services.prune_bulk_changes(sql.on("default"), options=options(completed=0, canceled=0, dead=0)) == 1


def test_a_worker_on_the_tables_of_the_version_before_prunes_no_bulk_changes(db):
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP TABLE dhara_bulk_change")
    assert services.prune_bulk_changes(sql.on("default"), options=options()) == 0


def test_a_pruner_takes_its_turn_with_them(execute):
    BulkChange.objects.create(verb="revive", changed_at=ago(100 * 86_400))
    pruner = services.Pruner("default", "default", options())
    for _turn in range(6):
        pruner.tick(execute)
    assert not BulkChange.objects.exists()
