"""Events, by the real SDK: one for each DEAD task, grouped by its error, and no arguments unless they are asked for."""

import json
import logging

import pytest
import sentry_sdk
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from django_dhara import lifecycle, news, signals
from django_dhara.backend import DharaBackend
from django_dhara.compat import task_finished
from django_dhara.contrib.sentry import listener
from django_dhara.contrib.sentry.apps import SentryConfig
from django_dhara.enqueue import AliasWarning
from django_dhara.testing import run_all
from tests.app import tasks
from tests.observers import report_to
from tests.rows import a_task

pytestmark = pytest.mark.fast


@pytest.fixture
def events(settings):
    """The events, with a client that takes them, as a list."""
    yield from listening(settings)


@pytest.fixture
def events_of_attempts(settings):
    settings.DHARA = {"SENTRY_ATTEMPTS": True}
    yield from listening(settings)


@pytest.fixture
def events_with_arguments(settings):
    yield from listening(settings, data_collection={"queues": True})


def listening(settings, **options):
    found = []
    report_to(tell=found.append, **options)
    sentry_sdk.get_isolation_scope().clear()  # of the breadcrumbs of other tests
    listener.install()
    yield found
    signals.task_dead.disconnect(dispatch_uid=listener._UID)
    signals.attempt_failed.disconnect(dispatch_uid=listener._UID)
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def places(text, found, path="event"):
    """Where it is."""
    if isinstance(found, dict):
        return [each for name, value in found.items() for each in places(text, value, f"{path}.{name}")]
    if isinstance(found, list):
        return [each for number, value in enumerate(found) for each in places(text, value, f"{path}[{number}]")]
    return [path] if text in str(found) else []


def test_a_dead_task_is_one_event(db, events, caplog):
    caplog.set_level(logging.INFO)  # Django's line at ERROR is an event to Sentry as well, were it not for us
    result = tasks.fail.using(max_attempts=3, queue_name="email").enqueue()
    run_all(include_scheduled=True)
    [event] = events
    assert event["level"] == "error"
    assert event["transaction"] == "tests.app.tasks.fail"
    tags = {name.removeprefix("dhara."): value for name, value in event["tags"].items() if name.startswith("dhara.")}
    assert tags == {
        "function": "tests.app.tasks.fail",
        "queue": "email",
        "backend": "default",
        "outcome": "fail",
        "error": "builtins.ValueError",
    }
    assert event["contexts"]["dhara"]["task id"] == result.id
    assert event["contexts"]["dhara"]["attempt"] == 3
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "the reason")
    assert error["stacktrace"]["frames"][-1]["function"] == "fail"
    assert "news.py" not in json.dumps(error)


def test_tasks_that_die_alike_are_one_issue(db, events):
    for function in (tasks.fail, tasks.fail, tasks.fail_with):
        function.using(max_attempts=1).enqueue(*(["x"] if function is tasks.fail_with else []))
    run_all()
    first, second, third = (tuple(event["fingerprint"]) for event in events)
    assert first == second != third
    assert first[:2] == ("django_dhara", "tests.app.tasks.fail")


def test_a_failed_run_that_comes_again_is_none(db, events):
    tasks.fail_until.enqueue("again", 2)
    run_all(include_scheduled=True)
    assert events == []


def test_failed_runs_are_events_where_that_is_asked_for(db, events_of_attempts):
    tasks.fail.using(max_attempts=3).enqueue()
    run_all(include_scheduled=True)
    assert [event["level"] for event in events_of_attempts] == ["warning", "warning", "error"]
    assert [event["contexts"]["dhara"]["attempt"] for event in events_of_attempts] == [1, 2, 3]


def test_no_argument_leaves_the_process(db, events):
    tasks.fail_with.using(max_attempts=1).enqueue("the-secret")
    run_all()
    [event] = events
    assert "the-secret" not in json.dumps(event), places("the-secret", event)


def test_arguments_are_sent_with_personal_data(db, events_with_arguments):
    tasks.fail_with.using(max_attempts=1).enqueue("the-secret")
    run_all()
    [event] = events_with_arguments
    assert event["contexts"]["dhara"]["args"] == ["the-secret"]
    assert "the-secret again" in json.dumps(event["exception"])


@pytest.mark.parametrize(
    ("options", "sends"),
    [
        ({}, False),
        ({"send_default_pii": None}, False),
        ({"send_default_pii": True}, True),
        ({"send_default_pii": True, "data_collection": {"queues": False}}, False),
        ({"data_collection": {"queues": True}}, True),
    ],
)
def test_the_client_says_whether_arguments_are_sent(options, sends):
    assert listener._may_tell_arguments(options) is sends


def test_a_task_that_died_with_its_workers_is_an_event_too(execute, events):
    row = a_task("RUNNING", lost=2, max_attempts=3)
    execute("UPDATE dhara_task SET lease_until = now() - interval '1 minute' WHERE id = %(id)s", {"id": row.id})
    rescued = lifecycle.rescue(execute, "default", "default", max_lost=3, grace_seconds=0)
    for call in news.of_rescued(DharaBackend, "default", rescued):
        call()
    [event] = events
    assert event["tags"]["dhara.outcome"] == "lost"
    assert event["contexts"]["dhara"]["task id"] == str(row.id)
    assert event["message"].startswith("tests.app.tasks.add: ")


def test_lines_of_others_are_left_to_sentry(db, events):
    logging.getLogger("shop").error("an error of the shop's own")
    assert len(events) == 1


def test_a_warning_points_at_the_call_and_not_at_sentrys_wrapper_of_enqueue(database, events):
    database("other")
    with transaction.atomic(using="other"), pytest.warns(AliasWarning) as caught:
        tasks.add.enqueue(1, 2)
    assert [warning.filename for warning in caught] == [__file__]


def test_without_a_client_nothing_happens(db):
    listener.install()
    tasks.fail.using(max_attempts=1).enqueue()
    run_all()
    signals.task_dead.disconnect(dispatch_uid=listener._UID)


def test_nothing_is_built_for_a_task_that_ends_well(db, events):
    """Our receivers are not at `task_finished`, which tells of every one."""
    assert not signals.calls_user_code(task_finished)


def test_without_sentry_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("django_dhara.contrib.sentry.apps.find_spec", lambda name: None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-dhara\[sentry\]'"):
        SentryConfig.ready(type("App", (), {"name": SentryConfig.name})())
