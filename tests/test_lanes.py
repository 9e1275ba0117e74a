"""Looks that begin where the lanes began the last time: what they see, what they leave to the next whole look."""

import random
from itertools import count
from threading import Thread
from time import monotonic
from types import SimpleNamespace

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from django_dhara import lifecycle, registry
from django_dhara.compat import task_backends
from django_dhara.lifecycle import Haul, View, Wanted
from django_dhara.lifecycle.claim import LATE_SECONDS, MOST_LANES, WHOLE
from django_dhara.models import Queue, Task
from django_dhara.worker import Worker, lanes
from django_dhara.worker.hand import Demand
from tests.rows import WORKER, a_task, ago, ahead, fresh
from tests.test_plans import fill
from tests.test_scale import wait_for

WANTED = [
    pytest.param(Wanted("default"), id="all queues"),
    pytest.param(Wanted("default", ("a", "b", "default")), id="named queues"),
]


ALL = Wanted("default")


def look(execute, view=WHOLE, wanted=ALL, limit=10, unknown=()):
    return lifecycle.claim(
        execute, "default", wanted, WORKER, limit=limit, suspects=1, lease_seconds=60.0, unknown=unknown, view=view
    )


def ids(haul):
    return [claimed.id for claimed in haul.claims]


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("before", [{}, {"priority": 3}, {"queue": "b", "priority": -3}], ids=str)
def test_what_comes_now_is_seen_by_the_next_look_in_whatever_lane(execute, wanted, before):
    a_task(**before)
    view = look(execute, wanted=wanted).view
    assert not view.is_whole
    lanes_ = [("a", 9), ("default", 3), ("default", 0), ("b", 0), ("b", -3), ("default", -100)]
    tasks = [a_task(queue=queue, priority=priority, run_at=Now()) for queue, priority in lanes_]
    seen = look(execute, view, wanted)
    assert {claimed.id for claimed in seen.claims} == {task.id for task in tasks}
    assert ids(look(execute, seen.view, wanted)) == []


@pytest.mark.parametrize("wanted", WANTED)
def test_a_look_takes_the_first_of_the_order_from_a_lane_that_it_did_not_know(execute, wanted):
    for n in range(5):
        a_task(run_at=ago(100 - n))
    view = look(execute, wanted=wanted, limit=1).view
    urgent = a_task(queue="b", priority=9, run_at=Now())
    assert ids(look(execute, view, wanted, limit=1)) == [urgent.id]


def test_a_task_whose_time_comes_is_seen(execute):
    task = a_task(run_at=ahead(0.3))
    view = look(execute).view
    wait_for(lambda: fresh(task).run_at < now())
    assert ids(look(execute, view)) == [task.id]


def now():
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("others", [0, 3])
def test_what_comes_in_behind_a_place_waits_for_a_whole_look(execute, others):
    for _ in range(2 + others):
        a_task(run_at=ago(20))
    view = look(execute, limit=2).view
    view = look(execute, view, limit=others + 1).view
    late = a_task(run_at=ago(30))
    assert late.id not in ids(look(execute, view))
    assert ids(look(execute, View(places=view.places))) == [late.id]


def test_a_transaction_that_commits_soon_is_seen_by_the_next_look(execute):
    view = look(execute).view
    task = a_task(run_at=ago(LATE_SECONDS * 0.8))
    assert ids(look(execute, view)) == [task.id]


def test_what_could_not_be_taken_holds_its_place(execute, other_session):
    paused, unknown, locked = [a_task(queue=queue, run_at=ago(50)) for queue in "abc"]
    a_task(run_at=ago(40), queue="b")
    Queue.objects.create(backend="default", name="a", paused_at=Now())
    Task.objects.filter(id=unknown.id).update(function="gone")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT FROM dhara_task WHERE id = %s FOR UPDATE", [locked.id])
        haul = look(on(other_session), unknown=["gone"])
        assert len(haul.claims) == 1
    Queue.objects.all().delete()
    assert set(ids(look(execute, haul.view))) == {paused.id, unknown.id, locked.id}


def on(session):
    def execute(statement, parameters):
        with session.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()

    return execute


def test_a_look_for_commands_only_changes_no_view(execute):
    a_task()
    view = look(execute).view
    assert look(execute, view, limit=0).view == view


def test_places_of_too_many_lanes_are_not_remembered(execute):
    fill(MOST_LANES, queue="'q' || n")
    assert not look(execute).view.is_whole
    fill(11, queue="'r' || n")
    assert look(execute).view == View()


@pytest.mark.parametrize("wanted", WANTED)
def test_a_look_from_places_takes_what_a_whole_look_would_take(execute, wanted):
    draw, priority, view = random.Random(7), count(), View()
    lanes_ = [(queue, next(priority)) for queue in ("a", "b", "default") for _ in range(3)]
    for _ in range(60):
        for _ in range(draw.randrange(6)):
            queue, priority_ = draw.choice(lanes_)
            a_task(queue=queue, priority=priority_, run_at=Now())
        with transaction.atomic():
            whole = ids(look(execute, wanted=wanted, limit=3))
            transaction.set_rollback(True)
        haul = look(execute, view, wanted, limit=3)
        assert ids(haul) == whole
        view = haul.view


# ------------------------------------------------------------------------------------------------ whole looks


def a_demand(*kinds, left_out=()):
    return Demand(10, 1, list(left_out), frozenset(kinds))


EVERYTHING = a_demand("plain", "async", "suspect")


def a_haul(*functions, view=WHOLE):
    claims = [SimpleNamespace(function=function, is_suspect=False) for function in functions]
    return Haul(claims, [], None, view)


@pytest.fixture
def clock(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(lanes, "monotonic", lambda: clock[0])
    return clock


def test_whole_looks_are_as_frequent_as_they_are_cheap(clock):
    mine, view = lanes.Lanes(), View("2026-01-01", "[1]")
    assert mine.look() == View()
    clock[0] += 0.1  # the look took so long
    mine.learn(EVERYTHING, a_haul("f", view=view))
    assert mine.whole_at == pytest.approx(101.1)
    assert mine.look() == view
    mine.learn(EVERYTHING, a_haul(view=view))
    assert not mine.found_none_of
    assert not mine.may_bring(EVERYTHING)
    assert mine.look_again_at == mine.whole_at
    clock[0] = 101.2
    assert mine.may_bring(EVERYTHING)
    assert mine.look() == View(places="[1]")
    mine.learn(EVERYTHING, a_haul(view=view))
    assert mine.found_none_of == EVERYTHING.kinds
    assert not mine.may_bring(EVERYTHING)
    mine.forget()
    assert mine.look() == View()
    assert mine.may_bring(EVERYTHING)


def test_a_look_in_vain_for_one_kind_of_function_holds_up_no_other_kind(clock, monkeypatch):
    monkeypatch.setattr(registry, "async_paths", {"a"})
    mine = lanes.Lanes()
    one_sided = a_demand("async", "suspect", left_out=["p"])
    mine.look()
    clock[0] += 0.1  # it walked over all the plain functions that wait
    mine.learn(one_sided, a_haul())
    assert mine.rests(one_sided)
    assert not mine.may_bring(one_sided)
    assert not mine.rests(EVERYTHING)
    assert mine.may_bring(EVERYTHING)
    mine.look()
    mine.learn(EVERYTHING, a_haul("p"))
    clock[0] = 102.0
    assert not mine.rests(one_sided)
    assert not mine.may_bring(one_sided)  # nothing has come since, as far as is known
    mine.look()
    mine.learn(EVERYTHING, a_haul("p", "a"))
    assert mine.may_bring(one_sided)


def test_a_late_task_starts_with_the_next_whole_look_of_an_idle_worker(commits, monkeypatch):
    monkeypatch.setattr(lanes, "PAUSE_RATIO", 200.0)  # as if a look took ten times as long
    backend = task_backends["default"]
    worker = Worker(backend, backend.settings, Wanted("default"))
    thread = Thread(target=worker.run)
    thread.start()
    try:
        first = a_task(run_at=Now())
        wait_for(lambda: fresh(first).state == "COMPLETED")
        late, began = a_task(run_at=ago(5)), monotonic()
        wait_for(lambda: fresh(late).state == "COMPLETED")
        assert monotonic() - began < 3
    finally:
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()
