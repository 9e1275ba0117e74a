"""/livez, /readyz and what `dhara_health` asks: each answer has a reason, and nothing is open that need not be."""

import json

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection, connections
from django.test import Client
from django.urls import include, path

from django_dhara import health, probes, project, sql, tokens
from django_dhara.health import Wanted
from django_dhara.models import Worker
from tests.rows import a_task

pytestmark = pytest.mark.fast

urlpatterns = [path("dhara/", include("django_dhara.probes"))]
TOKEN = "a-secret-of-the-operators"


@pytest.fixture(autouse=True)
def _site(settings, monkeypatch):
    settings.ROOT_URLCONF = __name__
    settings.DHARA = {"OBSERVE_TOKEN": TOKEN}
    monkeypatch.setattr(probes, "_recent", probes.Recent())


def worker_row(**columns):
    values = {"backend": "default", "name": "w", "host": "box", "pid": 1, "version": "1", "concurrency": 1}
    return Worker.objects.create(**{**values, "lease_seconds": 30.0, **columns})


def ready(query="", **headers):
    return Client().get(f"/dhara/readyz{query}", headers={"Authorization": f"Bearer {TOKEN}", **headers})


def reasons(findings):
    return [finding.reason for finding in findings if not finding.is_good]


# ---------------------------------------------------------------------------------------------------------------- open


def test_livez_asks_nobody(settings):
    settings.DHARA = {}
    response = Client().get("/dhara/livez")  # without the mark of a database, pytest-django allows no query
    assert (response.status_code, response.json()["status"]) == (200, "ok")
    assert response["Cache-Control"] == "no-store"


def test_livez_lives_while_the_database_is_away_and_requests_are_atomic(settings, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    assert Client().get("/dhara/livez").status_code == 200


@pytest.mark.parametrize("query", ["worker=%00", "queue=a%0Ab", f"worker={'x' * 301}"])
def test_a_name_that_nothing_can_have_is_a_wrong_value(db, query):
    response = ready(f"?{query}")
    assert (response.status_code, response.json()["title"]) == (400, "A value is wrong")
    assert query.partition("=")[0] in response.json()["detail"]


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_probes_are_only_read(method):
    assert getattr(Client(), method)("/dhara/livez").status_code == 405


# -------------------------------------------------------------------------------------------------------------- closed


def test_readyz_is_closed_by_default(settings, db):
    settings.DHARA = {}
    response = ready()
    assert response.status_code == 401
    assert response["Content-Type"] == "application/problem+json"
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert "checks" not in response.json()


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "é"])
def test_a_wrong_token_opens_nothing(value, db):
    assert Client().get("/dhara/readyz", headers={"Authorization": value}).status_code == 401


def test_the_token_opens_it(db):
    assert ready().status_code == 200


def test_a_token_of_the_api_opens_it_if_it_may_read(settings, db):
    settings.DHARA = {}
    row, reads = tokens.create("prometheus", ["read"])
    _, enqueues = tokens.create("shop", ["enqueue"])
    assert ready(Authorization=f"Bearer {reads}").status_code == 200
    assert ready(Authorization=f"Bearer {enqueues}").status_code == 401
    tokens.revoke(row.pk)
    assert ready(Authorization=f"Bearer {reads}").status_code == 401


def test_while_the_database_is_away_tokens_of_the_api_open_nothing(settings, db, monkeypatch):
    def refuse(secret):
        raise OperationalError

    settings.DHARA = {}
    monkeypatch.setattr(tokens, "find", refuse)
    assert ready(Authorization="Bearer dht_").status_code == 401


@pytest.mark.parametrize(
    ("networks", "address", "status"),
    [
        ("10.0.0.0/8, ::1/128", "10.2.3.4", 200),
        ("10.0.0.0/8, ::1/128", "::1", 200),
        ("10.0.0.0/8", "11.0.0.1", 401),
        ("", "127.0.0.1", 401),
        ("0.0.0.0/0", "", 401),
    ],
)
def test_networks_open_it_by_the_address_that_connects(networks, address, status, settings, db):
    settings.DHARA = {"OBSERVE_NETWORKS": networks}
    response = Client().get("/dhara/readyz", REMOTE_ADDR=address, headers={"X-Forwarded-For": "10.1.1.1"})
    assert response.status_code == status


def test_somebody_who_may_see_workers_may_look(settings, db):
    settings.DHARA = {}
    client = Client()
    user = User.objects.create_user("ops")
    client.force_login(user)
    assert client.get("/dhara/readyz").status_code == 401
    user.user_permissions.add(Permission.objects.get(codename="view_worker"))
    assert client.get("/dhara/readyz").status_code == 200


@pytest.mark.parametrize("given", ["short", "has a space in it, and is long", "ünlesbar-für-einen-kopf", 7])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_a_mistake(given, settings):
    settings.DHARA = {"OBSERVE_TOKEN": given}
    [problem] = project.problems()
    assert str(given) not in problem.message
    assert project.usable().observe_token == ""


@pytest.mark.parametrize("given", ["10.0.0.1/8", "localhost", "10.0.0.0/8; ::1", "256.0.0.0/8"])
def test_networks_that_are_none_are_a_mistake_and_open_nothing(given, settings):
    settings.DHARA = {"OBSERVE_NETWORKS": given}
    [problem] = project.problems()
    assert "networks" in problem.message
    assert project.usable().observe_networks == ""


def test_no_answer_depends_on_where_tokens_differ():
    assert tokens.compare_digest.__module__ in ("_operator", "_hashlib", "hmac")


# --------------------------------------------------------------------------------------------------------------- ready


def test_readyz_says_what_it_has_looked_at(db):
    assert [(check["name"], check["status"]) for check in ready().json()["checks"]] == [
        ("database", "ok"),
        ("migrations", "ok"),
    ]


def test_a_database_that_does_not_answer_is_503_with_the_reason(db, monkeypatch):
    def refuse(*args):
        raise connection.Database.OperationalError("no\nroute")

    monkeypatch.setattr(health, "database", refuse)
    response = ready()
    assert (response.status_code, response["Content-Type"]) == (503, "application/problem+json")
    assert response.json()["detail"] == "database 'default' does not answer: no route"


def test_missing_migrations_are_503_and_named(db):
    sql.on("default")("DELETE FROM django_migrations WHERE app = 'dhara' AND name = '0001_initial'", {})
    response = ready()
    assert response.status_code == 503
    assert "missing: 0001_initial" in response.json()["detail"]


def test_without_a_backend_of_ours_it_is_not_ready(settings, db):
    settings.TASKS = {"default": {"BACKEND": "django_dhara.testing.backends.ManualBackend"}}
    assert "no DharaBackend" in ready().json()["detail"]


def test_a_worker_is_asked_about_on_request(db):
    assert ready().status_code == 200
    assert "there is no worker of default" in ready("?worker").json()["detail"]
    worker_row(name="w1", queues=["email"])
    for query in ("?worker=w1", "?queue=email"):
        assert ready(query).status_code == 200, query
    for query in ("?worker=w2", "?queue=photos", "?worker=w1&queue=photos"):
        assert ready(query).status_code == 503, query


def test_an_answer_is_good_for_a_second(db, django_assert_num_queries):
    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock = Clock()
    recent, asked = probes.Recent(clock), []
    for step, looks in ((0.0, 1), (0.9, 1), (0.2, 2)):
        clock.now += step
        recent.get(None, lambda: asked.append(1) or [])
        assert len(asked) == looks


def test_questions_do_not_fill_the_memory():
    recent = probes.Recent()
    for number in range(1000):
        recent.get(Wanted(str(number)), list)
    assert len(recent._known) <= probes.MOST_QUESTIONS


# ------------------------------------------------------------------------------------------------------------- workers


def look(**wanted):
    return health.examine(sql.on, health.backends(), Wanted(**wanted))


def test_a_worker_is_found_by_name_id_or_process(db):
    row = worker_row(name="w1", host="box", pid=7)
    for who in ("", "w1", str(row.pk), "box:7"):
        assert reasons(look(who=who)) == [], who
    assert reasons(look(who="box:8")) == ["there is no worker that is box:8 of default"]


def test_a_worker_without_a_sign_of_life_for_its_lease_is_not_well(db):
    row = worker_row(name="w1", lease_seconds=30.0)
    silence(row, 29)
    assert reasons(look()) == []
    silence(row, 31)
    assert reasons(look()) == ["worker w1 has given no sign of life for 31 s (limit 30 s)"]
    assert reasons(look(max_age=60.0)) == []


def test_a_worker_that_has_stopped_is_not_well(db):
    row = worker_row(name="w1")
    sql.on("default")("UPDATE dhara_worker SET stopped_at = now() WHERE id = %(id)s", {"id": row.pk})
    assert reasons(look(who="w1")) == ["worker w1 has stopped"]


def test_a_worker_that_drains_is_well(db):
    row = worker_row(name="w1")
    sql.on("default")("UPDATE dhara_worker SET draining_at = now() WHERE id = %(id)s", {"id": row.pk})
    assert reasons(look(who="w1")) == []


def test_of_several_that_fit_one_is_enough(db):
    silence(worker_row(name="w1"), 1000)
    worker_row(name="w1")
    assert reasons(look(who="w1")) == []


def test_queues_that_a_worker_leaves_out_are_not_served(db):
    worker_row(queues=[], exclude_queues=["email"])
    assert reasons(look(queue="photos")) == []
    assert reasons(look(queue="email")) == ["there is no worker that serves queue 'email' of default"]


def test_lost_tasks_that_nobody_takes_back_are_told(db):
    worker_row()
    row = a_task("RUNNING")
    set_lease(row, "-3 seconds")
    assert reasons(look()) == []
    set_lease(row, "-1 hour")
    assert reasons(look()) == [
        "nobody takes back the tasks of lost workers of 'default': is there a worker, or dhara_reaper?"
    ]


def silence(row, seconds):
    update = (
        "UPDATE dhara_worker SET heartbeat_at = statement_timestamp() - make_interval(secs => %(s)s) WHERE id = %(id)s"
    )
    sql.on("default")(update, {"id": row.pk, "s": seconds})


def set_lease(row, delta):
    update = "UPDATE dhara_task SET lease_until = statement_timestamp() + %(delta)s::interval WHERE id = %(id)s"
    sql.on("default")(update, {"id": row.pk, "delta": delta})


def test_findings_are_json():
    [finding] = health.examine(sql.on, [], None)
    assert json.loads(json.dumps(finding.as_dict()))["status"] == "failed"
