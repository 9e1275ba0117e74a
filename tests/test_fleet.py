"""Queues and workers as operators see them: who lives, what is paused, and what workers are asked."""

from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from django_dhara import fleet, operations, services, stats
from django_dhara.compat import task_backends
from django_dhara.fleet import Status
from django_dhara.models import Command, Queue, Worker
from django_dhara.states import State
from tests.minutes import a_minute
from tests.rows import a_task, ago, ahead

pytestmark = pytest.mark.fast


def a_worker(**columns):
    values = {"backend": "default", "name": "w1", "host": "box7", "pid": 4711, "version": "0.1.0"}
    values |= {"concurrency": 10, "lease_seconds": 30.0}
    return Worker.objects.create(**{**values, **columns})


# Workers


@pytest.mark.parametrize(
    ("columns", "status"),
    [
        ({}, Status.ALIVE),
        ({"draining_at": ago(1)}, Status.DRAINING),
        ({"heartbeat_at": ago(31)}, Status.LATE),
        ({"heartbeat_at": ago(31), "draining_at": ago(40)}, Status.LATE),
        ({"heartbeat_at": ago(299)}, Status.LATE),
        ({"heartbeat_at": ago(301)}, Status.LOST),
        ({"heartbeat_at": ago(301), "lease_seconds": 60.0}, Status.LATE),
        ({"heartbeat_at": ago(601), "lease_seconds": 60.0}, Status.LOST),
        ({"heartbeat_at": ago(301), "lease_seconds": 0.5}, Status.LOST),
        ({"heartbeat_at": ago(9000), "stopped_at": ago(9000)}, Status.STOPPED),
    ],
)
def test_the_row_of_a_worker_tells_whether_it_lives(db, columns, status):
    a_worker(**columns)
    assert fleet.workers("default").get().status == status
    # The overview goes by the same rule.
    seen = [] if status == Status.STOPPED else [status.lower()]
    assert [worker.status for worker in stats.workers("default", None)] == seen


def test_workers_that_are_gone_stay_for_a_day_and_orders_that_nobody_answered_too(execute):
    for age in (0.9, 1.1):
        a_worker(heartbeat_at=ago(age * 86_400))
        Command.objects.create(worker_id=uuid4(), verb="DRAIN", created_at=ago(age * 86_400))
        Command.objects.create(worker_id=uuid4(), verb="CANCEL", created_at=ago(age * 86_400), answered_at=ago(0))
    services.prune_records(execute)
    assert (Worker.objects.count(), Command.objects.count()) == (1, 3)


# What they are asked


def test_a_worker_is_asked_once_until_it_answers(db):
    worker, gone = a_worker(), a_worker(stopped_at=ago(1))
    assert fleet.order("default", Command.Verb.DRAIN, [worker.pk, gone.pk, uuid4()]) == [worker]
    assert fleet.order("default", Command.Verb.DRAIN, [worker.pk]) == []
    assert fleet.order("default", Command.Verb.STACKS, [worker.pk]) == [worker]
    Command.objects.filter(verb="DRAIN").update(answered_at=ago(0), answer="draining")
    Worker.objects.filter(pk=worker.pk).update(draining_at=ago(0))
    assert fleet.order("default", Command.Verb.DRAIN, [worker.pk]) == []
    assert Command.objects.count() == 2


def test_two_people_who_ask_at_once_ask_once(commits, callers):
    worker = a_worker()
    both = [caller.start(fleet.order, "default", Command.Verb.DRAIN, [worker.pk]) for caller in callers(2)]
    assert sorted(len(one.result(20)) for one in both) == [0, 1]
    assert Command.objects.count() == 1


# Pausing


def test_a_second_pause_changes_nothing_and_the_first_ones_time_stays(db):
    assert operations.pause("mail") is True
    since = Queue.objects.get().paused_at
    assert operations.pause("mail") is False
    [paused] = fleet.paused_queues("default")
    assert paused[:3] == ("default", "mail", since)
    assert paused.now > since
    assert operations.resume("mail") is True
    assert operations.resume("mail") is False
    assert fleet.paused_queues("default") == []


def test_two_people_who_pause_at_once_make_one_change(commits, callers):
    two = callers(2)
    for paused in (True, False):
        change = {"paused": paused, "backend": "default", "database": "default"}
        both = [caller.start(operations.set_paused, "mail", **change) for caller in two]
        assert sorted(one.result(20) is None for one in both) == [False, True]
    assert Queue.objects.get().paused_at is None


def test_a_queue_that_is_no_longer_configured_can_be_resumed(db, settings):
    operations.pause("old")
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail"]}}
    assert operations.resume("old") is True
    with pytest.raises(ValueError, match="has no queue 'old'"):
        operations.resume("old")


def test_the_commands_say_what_they_changed(db, capsys):
    call_command("dhara_pause", "mail", "slow")
    call_command("dhara_pause", "mail")
    call_command("dhara_resume", "mail")
    call_command("dhara_resume", "mail")
    assert capsys.readouterr().out.splitlines() == [
        "Queue mail is paused: workers claim nothing more of it. `manage.py dhara_resume` undoes that.",
        "Queue slow is paused: workers claim nothing more of it. `manage.py dhara_resume` undoes that.",
        "Queue mail was paused already.",
        "Queue mail is resumed.",
        "Queue mail was not paused.",
    ]


def test_a_queue_that_nothing_knows_is_warned_of_and_a_resume_forgets_it(db, capsys):
    call_command("dhara_pause", "mial")
    warning = capsys.readouterr().err
    assert "no task, function, worker or setting knows a queue mial. Is it misspelt?" in warning
    assert warning.count("\n") == 1
    call_command("dhara_resume", "mial")
    assert not Queue.objects.exists()


def test_a_row_that_was_left_of_a_queue_that_nothing_knows_goes_too(db):
    Queue.objects.create(backend="default", name="mial")
    assert operations.resume("mial") is False
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: a_task(queue="rare"),
        lambda: a_task(queue="rare", lost=1),
        lambda: a_task("RUNNING", queue="rare"),
        lambda: a_minute(0, queue="rare"),
        lambda: a_worker(queues=["rare"]),
        lambda: a_worker(exclude_queues=["rare"]),
    ],
)
def test_a_queue_that_something_knows_is_not_warned_of_and_stays(db, capsys, make):
    make()
    call_command("dhara_pause", "rare")
    call_command("dhara_resume", "rare")
    assert capsys.readouterr().err == ""
    assert Queue.objects.get().name == "rare"


def test_a_queue_of_a_function_or_a_setting_is_known(db, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["set", "default"]}}
    assert fleet.is_known(task_backends["default"], "set")
    assert fleet.is_known(task_backends["default"], "default")
    assert not fleet.is_known(task_backends["default"], "other")


def test_the_commands_refuse_a_queue_that_the_backend_does_not_have(db, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail"]}}
    for command in ("dhara_pause", "dhara_resume"):
        with pytest.raises(CommandError, match=r"TASKS\['default'\] has no queue 'mial'; it has: mail\."):
            call_command(command, "mial")


# Tasks


def test_what_runs_and_what_is_suspected_is_counted_by_queue(db):
    for columns in ({"lost": 1}, {"lost": 2, "run_at": ahead(50)}, {}, {"state": State.RUNNING}):
        a_task(queue="mail", **columns)
    a_task(State.RUNNING, queue="images", backend="other")
    a_task(State.DEAD, queue="gone", lost=1)
    assert fleet.held("default") == {("default", "mail"): (1, 2), ("other", "images"): (1, 0)}
