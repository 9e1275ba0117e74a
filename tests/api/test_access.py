"""Who may call what: nobody without credentials, a token by its scopes and queues, a user by permissions and CSRF."""

import logging
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver
from django.views.debug import ExceptionReporter

from django_dhara import bulk, pause, search, tokens
from django_dhara.api.openapi import document, operations
from django_dhara.models import Token
from django_dhara.states import State
from tests.api.conftest import BASE, Api, a_secret, a_session, problem, rows
from tests.rows import a_task

pytestmark = pytest.mark.fast

NEW = {"type": "tests.app.tasks.add", "payload": {"a": 1}}

#: Every endpoint: a call of it that changes something if it may, the scope that it takes, and a user's permissions.
CALLS = {
    "enqueue_task": ("POST", "/tasks", NEW, "enqueue", ["add_task"]),
    "enqueue_tasks": ("POST", "/tasks/bulk", {"tasks": [NEW]}, "enqueue", ["add_task"]),
    "list_tasks": ("GET", "/tasks", None, "read", ["view_task"]),
    "get_task": ("GET", "/tasks/{pending}", None, "read", ["view_task"]),
    "cancel_task": ("DELETE", "/tasks/{pending}", None, "operate", ["view_task", "cancel_task"]),
    "retry_task": ("POST", "/tasks/{dead}/retry", None, "operate", ["view_task", "revive_task"]),
    "cancel_tasks": ("POST", "/tasks/cancel", {"status": "PENDING"}, "operate", ["view_task", "cancel_task"]),
    "retry_tasks": ("POST", "/tasks/retry", {"status": "DEAD"}, "operate", ["view_task", "revive_task"]),
    "get_change": ("GET", "/changes/{change}", None, "read", ["view_task"]),
    "continue_change": ("POST", "/changes/{change}/continue", None, "operate", ["view_task", "cancel_task"]),
    "stop_change": ("DELETE", "/changes/{change}", None, "operate", ["view_task", "cancel_task"]),
    "list_queues": ("GET", "/queues", None, "read", ["view_queue"]),
    "pause_queue": ("POST", "/queues/mail/pause", None, "operate", ["pause_queue"]),
    "resume_queue": ("POST", "/queues/paused/resume", None, "operate", ["pause_queue"]),
    "list_workers": ("GET", "/workers", None, "read", ["view_worker"]),
    "get_stats": ("GET", "/stats", None, "read", ["view_task"]),
    "openapi": ("GET", "/openapi.json", None, "read", ["view_task"]),
    "docs": ("GET", "/docs", None, "read", ["view_task"]),
}
WRITES = [name for name, (method, *_) in CALLS.items() if method != "GET"]


@pytest.fixture
def scene(db):
    """Something that every call can find."""
    pause("paused")
    pending, dead = a_task(), a_task(State.DEAD)
    change = bulk.create("default", "cancel", search.parse("state:pending"))
    return {"pending": pending.id, "dead": dead.id, "change": change.pk}


def call(caller, name, scene, **headers):
    method, path, body, *_ = CALLS[name]
    return caller(method, path.format(**scene), body, **headers)


def test_every_address_is_in_the_table():
    described = {operation.id for operation in operations(document(f"{BASE}/"))}
    found = [pattern for pattern in get_resolver().url_patterns if str(pattern.pattern) == "dhara/"]
    [api] = found[0].url_patterns
    names = {pattern.name for pattern in api.url_patterns} - {None, "api-root"}
    assert described | {"openapi", "docs"} == set(CALLS)
    assert names <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_without_credentials_there_is_only_401(scene, name):
    before = rows()
    response = call(Api(), name, scene)
    assert problem(response, 401)
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert rows() == before


@pytest.mark.parametrize("path", ["/nothing", "/tasks/1", "/", "/tasks/../admin"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD"])
def test_without_credentials_nothing_is_said_of_what_there_is(db, path, method):
    problem(Api()(method, path), 401)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("scope", tokens.SCOPES)
def test_a_token_may_what_its_scopes_say(scene, scope, name):
    before = rows() | {"Token": None}
    response = call(Api(a_secret(scope)), name, scene)
    if scope == CALLS[name][3]:
        assert response.status_code in (200, 201), response.content
        assert (rows() | {"Token": None} != before) == (name in WRITES)
    else:
        problem(response, 403)
        assert rows() | {"Token": None} == before


@pytest.mark.parametrize("name", CALLS)
def test_a_user_may_what_the_permissions_say(scene, name):
    needed = CALLS[name][4]
    may = Api(client=(client := a_session(*needed)), **csrf(client))
    others = {permission for call in CALLS.values() for permission in call[4]}
    lacks = Api(client=(client := a_session(*(others - {needed[-1]}))), **csrf(client))
    before = rows()
    problem(call(lacks, name, scene), 403)
    assert rows() == before
    assert call(may, name, scene).status_code in (200, 201)


def csrf(client):
    """The header and the cookie of a page of the site."""
    token = "a" * 32
    client.cookies["csrftoken"] = token
    return {"X-CSRFToken": token}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("how", ["none", "wrong", "foreign origin"])
def test_a_session_changes_nothing_without_its_csrf_token(scene, name, how):
    client = a_session(*CALLS[name][4])
    headers = {}
    if how != "none":
        headers = csrf(client)
        headers |= {"X-CSRFToken": "b" * 32} if how == "wrong" else {"Origin": "https://elsewhere.example"}
    before = rows()
    problem(call(Api(client=client, **headers), name, scene), 403)
    assert rows() == before


def test_a_form_of_another_site_is_not_even_read(scene):
    client = a_session("add_task")
    response = client.post(f"{BASE}/tasks", {"csrfmiddlewaretoken": "a" * 32, "type": "x"})
    problem(response, 415)


@pytest.mark.parametrize("name", WRITES)
def test_a_token_needs_no_csrf_token(scene, name):
    assert call(Api(a_secret(CALLS[name][3])), name, scene).status_code in (200, 201)


def test_a_wrong_token_is_not_replaced_by_a_good_session(scene):
    client = a_session("view_task")
    assert Api(client=client).get("/tasks").status_code == 200
    problem(Api("dht_" + "x" * 43, client=client).get("/tasks"), 401)


def test_a_user_who_was_shut_out_is_nobody(scene):
    client = a_session("view_task")
    User.objects.update(is_active=False)
    problem(Api(client=client).get("/tasks"), 401)


# Tokens


def test_of_a_token_only_its_hash_is_kept(db):
    row, secret = tokens.create("ci", ["read"])
    assert re.fullmatch(r"dht_[A-Za-z0-9_-]{43}", secret)
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(dhara_token)::text FROM dhara_token")
        [[stored]] = cursor.fetchall()
    assert secret not in stored
    assert row.hint == secret[:7]
    assert secret not in repr(row) + str(row) + repr(vars(row))
    assert tokens.find(tokens.Secret(secret)) == row


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "dht_",
        "dht_" + "x" * 43,
        "dht_" + "x" * 10_000,
        "dht_\0" + "x" * 42,
        "dht_é" + "x" * 42,
        "DHT_" + "x" * 43,
        "' OR 1=1",
    ],
    ids=lambda secret: secret[:8],
)
def test_a_text_that_is_no_token_is_401(db, secret):
    problem(Api(client=None, Authorization=f"Bearer {secret}").get("/tasks"), 401)


@pytest.mark.parametrize("header", ["Bearer", "Basic dXNlcjpwYXNz", "dht_x", "Bearer  ", "bearer\tx"])
def test_other_words_are_no_credentials(db, header):
    problem(Api(Authorization=header).get("/tasks"), 401)


def test_the_scheme_may_be_written_as_one_likes(db):
    assert Api(Authorization=f"bEARER {a_secret()}").get("/tasks").status_code == 200


def test_a_token_that_was_revoked_or_has_expired_is_401(db):
    row, secret = tokens.create("ci", ["read"], expires_at=Now() + timedelta(hours=1))
    assert Api(secret).get("/tasks").status_code == 200
    Token.objects.update(expires_at=Now() - timedelta(seconds=1))
    problem(Api(secret).get("/tasks"), 401)
    Token.objects.update(expires_at=None)
    assert tokens.revoke(row.pk) is True
    assert tokens.revoke(row.pk) is False
    problem(Api(secret).get("/tasks"), 401)


def test_the_use_of_a_token_is_noted_once_a_minute(db):
    caller = Api(a_secret())

    def writes():
        with CaptureQueriesContext(connection) as asked:
            assert caller.get("/queues").status_code == 200
        return sum("UPDATE" in query["sql"] for query in asked.captured_queries)

    assert [writes(), writes(), writes()] == [1, 0, 0]
    Token.objects.update(used_at=Now() - timedelta(seconds=61))
    assert [writes(), writes()] == [1, 0]


def test_a_column_that_is_no_list_allows_nothing(db):
    _, secret = tokens.create("ci", ["read", "enqueue"])
    Token.objects.update(queues={"mail": 1})
    assert Api(secret).get("/tasks").json()["tasks"] == []
    problem(Api(secret).post("/tasks", NEW), 403)
    Token.objects.update(scopes="read")
    problem(Api(secret).get("/tasks"), 403)


@pytest.mark.parametrize(
    ("name", "scopes", "queues"),
    [("", ["read"], []), ("a\nb", ["read"], []), ("a", [], []), ("a", ["all"], []), ("a", ["read"], ["a,b"])],
)
def test_a_token_that_cannot_be_is_not_made(db, name, scopes, queues):
    with pytest.raises(ValueError, match=r"must|has"):
        tokens.create(name, scopes, queues=queues)
    assert Token.objects.count() == 0


# Failures


def test_too_many_wrong_tokens_are_429_until_the_minute_is_over(db, settings):
    settings.DHARA = {"API_FAILURES_PER_MINUTE": 3}
    good = a_secret()
    for _ in range(3):
        problem(Api("dht_" + "x" * 43).get("/tasks"), 401)
    with CaptureQueriesContext(connection) as asked:
        response = Api(good).get("/tasks")
    assert problem(response, 429)
    assert response["Retry-After"] == "60"
    assert asked.captured_queries == []
    assert Api(client=a_session("view_task")).get("/tasks").status_code == 200
    assert Api(good).client.get(f"{BASE}/tasks", headers=Api(good).headers, REMOTE_ADDR="10.0.0.9").status_code == 200
    cache.clear()
    assert Api(good).get("/tasks").status_code == 200


def test_right_tokens_and_none_at_all_count_for_nothing(db, settings):
    settings.DHARA = {"API_FAILURES_PER_MINUTE": 2}
    caller = Api(a_secret())
    for _ in range(5):
        assert caller.get("/queues").status_code == 200
        problem(Api().get("/queues"), 401)
    assert caller.get("/queues").status_code == 200


class NoCache:
    def __getattr__(self, name):
        raise ConnectionError("the cache is away")


def test_a_cache_that_is_away_stops_nobody(db, monkeypatch):
    monkeypatch.setattr("django_dhara.api.access.cache", NoCache())
    assert Api(a_secret()).get("/queues").status_code == 200
    problem(Api("dht_" + "x" * 43).get("/queues"), 401)


# What gets out


#: What is logged of each call that changes something but enqueues nothing: that is told by `task.enqueued`.
LOGGED = {
    "cancel_task": ("api.changed", {"verb": "cancel", "answer": "canceled", "task_id": "pending"}),
    "retry_task": ("api.changed", {"verb": "revive", "answer": "revived", "task_id": "dead"}),
    "cancel_tasks": ("api.bulk_begun", {"verb": "cancel"}),
    "retry_tasks": ("api.bulk_begun", {"verb": "revive"}),
    "continue_change": None,
    "stop_change": ("api.bulk_stopped", {"change_id": "change"}),
    "pause_queue": ("api.queue_changed", {"verb": "pause", "queue": "mail"}),
    "resume_queue": ("api.queue_changed", {"verb": "resume", "queue": "paused"}),
}


@pytest.mark.parametrize("name", LOGGED)
def test_who_changed_what_is_logged(scene, caplog, name):
    caplog.set_level(logging.INFO, "django_dhara.api")
    assert call(Api(a_secret("operate")), name, scene).status_code == 200
    told = [record for record in caplog.records if record.name == "django_dhara.api"]
    if LOGGED[name] is None:
        assert told == []
        return
    event, fields = LOGGED[name]
    [record] = told
    assert (record.dhara_event, record.levelname) == (event, "INFO")
    assert record.dhara_caller.startswith("token ")
    found = {field: getattr(record, f"dhara_{field}") for field in fields}
    assert found == {field: str(scene.get(value, value)) for field, value in fields.items()}


def test_every_change_has_its_line_in_the_log():
    assert set(LOGGED) == {name for name in WRITES if CALLS[name][3] == "operate"}


def test_no_token_gets_into_logs_answers_or_reports(db, caplog, monkeypatch, rf, settings):
    settings.DHARA = {"API_FAILURES_PER_MINUTE": 0}
    caplog.set_level(logging.DEBUG)
    secret = a_secret()
    seen = []
    for method, path, body, *_ in CALLS.values():
        for text in (secret, secret[:-1] + "-", "dht_" + "x" * 43):
            seen.append(
                Api(text)(method, path.format(pending=uuid4(), dead=uuid4(), change=uuid4()), body).content.decode()
            )

    def fails():
        raise RuntimeError("away")

    monkeypatch.setattr("django_dhara.tokens.alias", fails)
    with pytest.raises(RuntimeError, match="away") as raised:
        Api(secret, client=Client()).get("/tasks")
    request = rf.get("/dhara/api/v1/tasks", headers={"Authorization": f"Bearer {secret}"})
    ours = raised.tb  # the frames of this test know it
    while not ours.tb_frame.f_globals["__name__"].startswith("django_dhara"):
        ours = ours.tb_next
    report = ExceptionReporter(request, raised.type, raised.value, ours)
    seen += [report.get_traceback_text(), report.get_traceback_html()]
    for text in [caplog.text, *seen]:
        assert secret[:20] not in text


def test_the_page_of_an_error_under_debug_hides_the_header(db, settings, rf):
    settings.DEBUG = True
    request = rf.get("/", headers={"Authorization": "Bearer dht_secret"})
    for text in (ExceptionReporter(request, ValueError, ValueError(), None).get_traceback_html(),
                 ExceptionReporter(request, ValueError, ValueError(), None).get_traceback_text()):  # fmt: skip
        assert "HTTP_AUTHORIZATION" in text
        assert "dht_secret" not in text


# Problems


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD"])
def test_another_method_is_405_and_says_which(api, method):
    response = api(method, "/tasks")
    problem(response, 405)
    assert set(response["Allow"].split(", ")) == {"GET", "POST"}


def test_an_error_that_nobody_foresaw_is_logged_and_tells_nothing(api, monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise RuntimeError("with the password hunter2 in it")

    monkeypatch.setattr("django_dhara.api.finding.page", fails)
    response = api.get("/tasks")
    assert "hunter2" not in response.content.decode()
    problem(response, 500)
    assert "hunter2" in caplog.text


def test_under_debug_it_tells_as_little(api, monkeypatch, settings):
    settings.DEBUG = True

    def fails(*args, **kwargs):
        raise RuntimeError("hunter2")

    monkeypatch.setattr("django_dhara.api.finding.page", fails)
    assert "hunter2" not in api.get("/tasks").content.decode()


def test_no_answer_is_kept_by_a_proxy_or_taken_for_a_page(api):
    for response in (api.get("/tasks"), api.get("/nothing"), Api().get("/tasks")):
        assert response["Cache-Control"] == "private, no-cache"
        assert response["X-Content-Type-Options"] == "nosniff"


# The description


def test_the_description_may_be_opened_to_everybody(db, settings):
    settings.DHARA = {"API_DOCS_OPEN": True}
    assert Api().get("/openapi.json").json()["openapi"] == "3.1.0"
    assert Api().get("/docs").status_code == 200
    problem(Api().get("/tasks"), 401)


def test_the_page_has_no_script_no_style_and_no_foreign_host(api):
    page = api.get("/docs").content.decode()
    assert "<script" not in page
    assert "style=" not in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    for operation in operations(document(f"{BASE}/")):
        assert f'id="{operation.id}"' in page
