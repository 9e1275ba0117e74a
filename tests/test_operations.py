"""cancel, revive, run_now, pause and resume, as a project's code calls them."""

import io
import os
import re
import subprocess
import sys
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import transaction

import django_dhara
from django_dhara import operations
from django_dhara.compat import InvalidTask, TaskResultDoesNotExist, task_backends, task_enqueued
from django_dhara.models import Queue
from django_dhara.signals import task_canceled, task_committed
from django_dhara.states import State
from example_project.localdb.place import PROJECT
from tests.app.tasks import add
from tests.rows import a_task, ago, fresh

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("of", [lambda r: r, lambda r: r.id, lambda r: UUID(r.id)], ids=["result", "str", "uuid"])
def test_a_task_is_named_by_its_result_or_its_id(db, of):
    result = add.using(run_after=timedelta(hours=1)).enqueue(1)
    assert django_dhara.run_now(of(result)) is True
    assert django_dhara.cancel(of(result)) == "canceled"
    assert django_dhara.cancel(of(result)) == "finished"
    assert django_dhara.revive(of(result)) is True
    assert django_dhara.revive(of(result)) is False


@pytest.mark.parametrize("verb", ["cancel", "revive", "run_now"])
def test_a_task_that_does_not_exist_is_said_so(db, verb):
    for unknown in (str(uuid4()), uuid4(), "nonsense"):
        with pytest.raises(TaskResultDoesNotExist):
            getattr(django_dhara, verb)(unknown)


@pytest.mark.parametrize("verb", ["cancel", "revive", "run_now"])
def test_what_is_no_task_is_refused_by_its_type(verb):
    with pytest.raises(TypeError, match="give the task's id, or the result of its enqueue, not int"):
        getattr(django_dhara, verb)(5)


def test_a_cancel_that_is_rolled_back_never_was(db):
    task = a_task()
    with transaction.atomic():
        assert django_dhara.cancel(task.id) == "canceled"
        transaction.set_rollback(True)
    assert fresh(task).state == State.PENDING


def test_a_cancel_is_announced_at_its_commit(commits):
    seen = []

    def receive(task_result, **named):
        seen.append((task_result.id, task_result.is_canceled))

    task_canceled.connect(receive)
    try:
        task = a_task()
        with transaction.atomic():
            django_dhara.cancel(task.id)
            assert not seen
    finally:
        task_canceled.disconnect(receive)
    assert seen == [(str(task.id), True)]


def test_a_paused_queue_stays_paused_until_it_is_resumed(db):
    for _ in range(2):
        django_dhara.pause("mail")
    assert Queue.objects.get(name="mail").paused_at is not None
    django_dhara.resume("mail")
    assert Queue.objects.get(name="mail").paused_at is None


def test_a_queue_that_the_backend_does_not_have_cannot_be_paused(db, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail", "default"]}}
    with pytest.raises(ValueError, match=r"TASKS\['default'\] has no queue 'mial'; it has: default, mail\."):
        django_dhara.pause("mial")
    assert not Queue.objects.exists()


def test_enqueue_many_says_what_it_takes():
    with pytest.raises(TypeError, match=r"calls made by task\.bind\(\.\.\.\), not Task"):
        django_dhara.enqueue_many([add])


@pytest.mark.parametrize("priority", ["hi", float("nan"), [1]])
def test_a_priority_that_cannot_be_compared_is_named(priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100, not"):
        add.using(priority=priority)


def test_without_the_app_an_enqueue_says_what_to_do(db, settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_dhara"]
    with pytest.raises(ImproperlyConfigured, match="Add 'django_dhara' to INSTALLED_APPS"):
        task_backends["default"].enqueue(add, (1,), {})


WITHOUT_THE_APP = """
import django
from django.conf import settings
from django.core.management import execute_from_command_line

apps = ["django.contrib.contenttypes"] + ([] if django.VERSION >= (6, 0) else ["django_tasks"])
settings.configure(SECRET_KEY="k", ROOT_URLCONF="addresses", INSTALLED_APPS=apps)
execute_from_command_line(["manage.py", "check"])
"""


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("django_dhara.api.urls", "ninja"),
        ("django_dhara.probes", "django"),
        ("django_dhara.metrics.urls", "prometheus_client"),
    ],
)
def test_without_the_app_its_addresses_say_what_to_do(tmp_path, module, needs):
    pytest.importorskip(needs)
    (tmp_path / "addresses.py").write_text(
        f"from django.urls import include, path\nurlpatterns = [path('', include('{module}'))]\n"
    )
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}"}
    words = [sys.executable, "-c", WITHOUT_THE_APP]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("Add 'django_dhara' to INSTALLED_APPS and run `manage.py migrate`.")


def test_a_reaper_that_looks_once_says_how_many_it_rescued(db):
    a_task(State.RUNNING, lease_until=ago(60))
    said = io.StringIO()
    call_command("dhara_reaper", "--once", stdout=said)
    assert said.getvalue().splitlines()[-1] in ("1 rescued", "0 rescued")  # 0 within a lease of the server's start


def log_of(setup):
    """What a fresh interpreter writes to stderr; pytest's own handlers are everywhere in this one."""
    twice = "console.log_here(); console.log_here(); logging.getLogger('django_dhara.worker').info('a drain')"
    code = f"import logging; from django_dhara.management import console; {setup}; {twice}"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stderr


def test_a_worker_without_a_log_of_its_own_prints_what_it_does():
    assert log_of("pass").count("INFO a drain\n") == 1


@pytest.mark.parametrize("logger", ["", "django_dhara"])
def test_a_log_that_the_project_has_configured_is_left_alone(logger):
    assert log_of(f"logging.getLogger({logger!r}).addHandler(logging.StreamHandler())") == ""


# What takes arguments, through `change`


@pytest.mark.parametrize(
    ("verb", "arguments", "said"),
    [
        ("cancel", {"queue": "x"}, "cancel takes no argument, not queue."),
        ("snooze", {}, "snooze takes seconds, not nothing."),
        ("snooze", {"seconds": 0}, "a time to put off is between 0 and 315360000 seconds, not 0."),
        ("snooze", {"seconds": "nan"}, "a time to put off is between"),
        ("snooze", {"seconds": True}, "a time to put off is between"),
        ("change_priority", {"priority": "101"}, "a priority is a whole number between -100 and 100, not '101'."),
        ("change_priority", {"priority": 0.5}, "a priority is a whole number"),
        ("change_priority", {"priority": None}, "a priority is a whole number"),
        ("change_queue", {"queue": "a,b"}, "queue 'a,b' has a comma or an outer space in it"),
        ("change_queue", {"queue": "mial"}, "no backend in TASKS has a queue 'mial'; they have: default, mail."),
    ],
)
def test_an_argument_of_no_use_is_said_so_before_anything_is_asked_of_the_database(settings, verb, arguments, said):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail", "default"]}}
    with pytest.raises(ValueError, match=re.escape(said)):
        operations.change(verb, [uuid4()], database="default", **arguments)


def test_numbers_may_come_as_text(db):
    task = a_task()
    assert operations.change("change_priority", [task.id], database="default", priority="7").changed
    assert operations.change("snooze", [task.id], database="default", seconds="90").changed
    assert fresh(task).priority == 7
    assert fresh(task).run_at > fresh(task).enqueued_at + timedelta(seconds=89)


def test_a_task_moves_only_to_a_queue_that_its_own_backend_has(db, settings):
    ours = settings.TASKS["default"]
    settings.TASKS = {"default": {**ours, "QUEUES": ["default"]}, "other": {**ours, "QUEUES": ["mail"]}}
    here, there, unknown = (a_task(backend=backend) for backend in ("default", "other", "gone"))
    tally = operations.change("change_queue", [here.id, there.id, unknown.id], database="default", queue="mail")
    assert (sorted(tally.changed["moved"]), tally.refused) == (sorted([there.id, unknown.id]), 1)


def test_a_copy_is_announced_as_an_enqueue(commits):
    seen = []

    def receive(signal, task_result, **named):
        seen.append((signal is task_committed, task_result.id))

    for signal in (task_enqueued, task_committed):
        signal.connect(receive)
    try:
        task = a_task(State.DEAD)
        with transaction.atomic():
            tally = operations.change("copy", [task.id], database="default")
            assert [is_committed for is_committed, _ in seen] == [False]
    finally:
        for signal in (task_enqueued, task_committed):
            signal.disconnect(receive)
    assert seen == [(False, str(tally.copies[task.id])), (True, str(tally.copies[task.id]))]
