"""Tasks are enqueued by the API as user code enqueues them; what is wrong is told before any SQL."""

import json
from datetime import UTC, datetime, timedelta

import django
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dhara import registry
from django_dhara.models import Task
from django_dhara.states import State
from django_dhara.testing import run_all
from tests.api.conftest import Api, a_secret, problem, rows
from tests.app import awkward

PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
ADD = "tests.app.tasks.add"

pytestmark = pytest.mark.fast


def test_a_new_task_is_answered_with_201_its_row_and_its_address(api):
    response = api.post("/tasks", {"type": ADD, "payload": {"a": 1, "b": 5}, "queue": "mail", "priority": 7})
    assert response.status_code == 201
    answer, [row] = response.json(), Task.objects.all()
    assert response["Location"] == f"/dhara/api/v1/tasks/{row.id}"
    assert (answer["id"], answer["type"], answer["status"]) == (str(row.id), ADD, "PENDING")
    assert (row.function, row.queue, row.priority, row.max_attempts) == (ADD, "mail", 7, 5)
    assert row.payload == answer["payload"] == {"args": [], "kwargs": {"a": 1, "b": 5}}
    assert answer["duplicate"] is False


def test_what_is_answered_is_what_is_read_later(api):
    run_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    made = api.post(
        "/tasks",
        {"type": ADD, "payload": {"args": [1]}, "run_at": run_at, "max_attempts": 3, "idempotency_key": "k"},
    )
    read = api.get(made["Location"].removeprefix("/dhara/api/v1")).json()
    assert {**read, "duplicate": False} == made.json()
    assert (read["max_attempts"], read["idempotency_key"]) == (3, "k")


def test_a_function_of_djangos_own_decorator_is_enqueued_like_ours(api):
    item = {"type": "tests.app.tasks.by_django", "payload": {"a": 1}, "max_attempts": 2, "idempotency_key": "k"}
    response = api.post("/tasks", item)
    assert response.status_code == 201
    assert api.post("/tasks", item).status_code == 200
    told = response.json()
    assert (told["queue"], told["priority"], told["max_attempts"]) == ("mail", 3, 2)
    assert api.post("/tasks/bulk", {"tasks": [{**item, "idempotency_key": "l"}]}).status_code == 201
    assert len(run_all()) == 2
    assert {(row.function, row.state, row.result) for row in Task.objects.all()} == {(item["type"], State.COMPLETED, 1)}


def test_a_function_of_another_backend_is_refused_and_named(api, settings, monkeypatch):
    other = {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}
    settings.TASKS = {**settings.TASKS, "other": other}
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    add = registry._tasks[ADD]
    registry._tasks[ADD] = add.using(backend="other")
    document = problem(api.post("/tasks", {"type": ADD, "payload": {"a": 1}}), 400)
    assert document["detail"] == f"{ADD} is of TASKS['other'], which is not a queue of this API."
    assert document["field"] == "type"
    assert Task.objects.count() == 0


def test_the_function_decides_what_is_left_out(api):
    answer = api.post(
        "/tasks", {"type": "tests.app.tasks.nap_with_own_timeout", "payload": {"name": "n", "seconds": 1}}
    )
    assert (answer.json()["queue"], answer.json()["priority"], answer.json()["timeout"]) == ("default", 0, 60)


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ({"a": 1}, {"args": [], "kwargs": {"a": 1}}),
        ({"args": [1, 2]}, {"args": [1, 2], "kwargs": {}}),
        ({"kwargs": {"a": 1}}, {"args": [], "kwargs": {"a": 1}}),
        ({"args": [1], "kwargs": {"b": 3}}, {"args": [1], "kwargs": {"b": 3}}),
    ],
)
def test_a_payload_is_the_arguments_by_name_or_is_taken_apart(api, payload, stored):
    assert api.post("/tasks", {"type": ADD, "payload": payload}).status_code == 201
    assert Task.objects.get().payload == stored


def test_parameters_named_args_and_more_are_arguments_by_name(api):
    body = {"type": awkward.receive.module_path, "payload": {"args": 1, "other": 2}}
    assert api.post("/tasks", body).status_code == 201
    assert Task.objects.get().payload["kwargs"] == {"args": 1, "other": 2}


WRONG = [
    ({}, "type"),
    ({"type": 5}, "type"),
    ({"type": ""}, "type"),
    ({"type": "os.system"}, "type"),
    ({"type": "tests.app.exits.leave"}, "type"),
    ({"type": "tests.app.tasks.nobody"}, "type"),
    ({"type": "a\0b"}, "type"),
    ({"type": ADD, "payload": [1]}, "payload"),
    ({"type": ADD, "payload": None}, "payload"),
    ({"type": ADD, "payload": {}}, "payload"),
    ({"type": ADD, "payload": {"a": 1, "c": 2}}, "payload"),
    ({"type": ADD, "payload": {"args": 1}}, "payload.args"),
    ({"type": ADD, "payload": {"kwargs": []}}, "payload.kwargs"),
    ({"type": ADD, "payload": {"args": [1, 2, 3]}}, "payload"),
    ({"type": ADD, "payload": {"a": "x\0"}}, "payload.a"),
    ({"type": ADD, "payload": {"args": [{"deep": ["\ud800"]}]}}, "payload.args[0].deep[0]"),
    ({"type": ADD, "payload": {"a": 1}, "queue": ""}, "queue"),
    ({"type": ADD, "payload": {"a": 1}, "queue": "a,b"}, "queue"),
    ({"type": ADD, "payload": {"a": 1}, "queue": "q" * 256}, "queue"),
    ({"type": ADD, "payload": {"a": 1}, "queue": 5}, "queue"),
    ({"type": ADD, "payload": {"a": 1}, "priority": 101}, "priority"),
    ({"type": ADD, "payload": {"a": 1}, "priority": 1.5}, "priority"),
    ({"type": ADD, "payload": {"a": 1}, "priority": "5"}, "priority"),
    ({"type": ADD, "payload": {"a": 1}, "priority": True}, "priority"),
    ({"type": ADD, "payload": {"a": 1}, "max_attempts": 0}, "max_attempts"),
    ({"type": ADD, "payload": {"a": 1}, "max_attempts": 10_001}, "max_attempts"),
    ({"type": ADD, "payload": {"a": 1}, "run_at": "tomorrow"}, "run_at"),
    ({"type": ADD, "payload": {"a": 1}, "run_at": "2030-01-01T00:00:00"}, "run_at"),
    ({"type": ADD, "payload": {"a": 1}, "run_at": 1.5e9}, "run_at"),
    ({"type": ADD, "payload": {"a": 1}, "run_at": "9999-12-31T23:59:59Z"}, "run_at"),
    ({"type": ADD, "payload": {"a": 1}, "run_at": "0001-01-01T00:00:00+14:00"}, "run_at"),
    ({"type": ADD, "payload": {"a": 1}, "idempotency_key": ""}, "idempotency_key"),
    ({"type": ADD, "payload": {"a": 1}, "idempotency_key": "k\n"}, "idempotency_key"),
    ({"type": ADD, "payload": {"a": 1}, "idempotency_key": "k" * 256}, "idempotency_key"),
    ({"type": ADD, "payload": {"a": 1}, "state": "DEAD"}, "state"),
    ([], "body"),
    ("text", "body"),
    (None, "body"),
]


@pytest.mark.parametrize(("body", "field"), WRONG, ids=lambda value: json.dumps(value)[:60])
def test_what_is_wrong_is_named_and_nothing_is_written(api, body, field):
    problem(api("POST", "/tasks", data=json.dumps(body)), 400, field)
    assert Task.objects.count() == 0


def test_all_wrong_fields_are_named(api):
    document = problem(api.post("/tasks", {"type": 5, "priority": 1000, "state": "DEAD"}), 400)
    assert {error["field"] for error in document["errors"]} == {"type", "priority", "state"}


def test_the_function_of_a_request_is_never_imported(api):
    import sys

    assert "tests.app.exits" not in sys.modules
    problem(api.post("/tasks", {"type": "tests.app.exits.anything"}), 400, "type")
    assert "tests.app.exits" not in sys.modules


def test_before_it_is_right_no_task_costs_a_statement(api):
    api.post("/tasks", {"type": ADD})  # the token's use is noted
    with CaptureQueriesContext(connection) as asked:
        problem(api.post("/tasks", {"type": ADD, "payload": {"a": "x\0"}}), 400, "payload.a")
    assert all("dhara_token" in query["sql"] for query in asked.captured_queries)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"",
        b'{"type": NaN}',
        b'{"type": "a", "payload": {"a": Infinity}}',
        b"\xff\xfe{}",
        '{"type": "a"}'.encode("utf-16"),
        b'{"type": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"priority": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_malformed_json_is_400(api, data):
    problem(api("POST", "/tasks", data=data), 400)


def test_a_payload_nested_too_deeply_is_named(api):
    deep = []
    for _ in range(250):
        deep = [deep]
    problem(api.post("/tasks", {"type": ADD, "payload": {"a": deep}}), 400)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_another_content_type_is_415(api, content_type):
    problem(api("POST", "/tasks", data=b"a=1", content_type=content_type), 415)


def test_json_may_say_its_charset(api):
    sent = json.dumps({"type": ADD, "payload": {"a": 1}})
    assert api("POST", "/tasks", data=sent, content_type="application/json; charset=utf-8").status_code == 201


def test_a_body_that_is_too_large_is_413(api, settings):
    settings.DHARA = {"API_MAX_BODY_BYTES": 1000}
    problem(api.post("/tasks", {"type": ADD, "payload": {"a": "x" * 1000}}), 413)
    assert api.post("/tasks", {"type": ADD, "payload": {"a": "x" * 800}}).status_code == 201


def test_a_body_that_is_announced_too_large_is_not_read(api, settings):
    settings.DHARA = {"API_MAX_BODY_BYTES": 1000}
    read = []

    class Stream:
        def read(self, *size):
            read.append(size)
            return b""

        readline = read

    response = api.client.post(
        "/dhara/api/v1/tasks",
        content_type="application/json",
        headers=api.headers,
        **{"wsgi.input": Stream(), "CONTENT_LENGTH": "1000000000"},
    )
    problem(response, 413)
    assert read == []


def test_a_payload_above_the_backends_limit_is_413(api):
    problem(api.post("/tasks", {"type": ADD, "payload": {"a": "x" * 1_000_001}}), 413, "payload.a")


# Idempotency


def test_a_replay_is_answered_with_200_and_the_task_that_is_there(api):
    body = {"type": ADD, "payload": {"a": 1}, "idempotency_key": "k"}
    first, second = api.post("/tasks", body), api.post("/tasks", body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {**first.json(), "duplicate": True}
    assert second["Location"] == first["Location"]
    assert Task.objects.count() == 1


def test_a_replay_shows_what_became_of_it(api):
    body = {"type": ADD, "payload": {"a": 1}, "idempotency_key": "k"}
    task_id = api.post("/tasks", body).json()["id"]
    Task.objects.filter(id=task_id).update(state=State.COMPLETED, finished_at=datetime.now(UTC), result=3)
    assert api.post("/tasks", body).json()["result"] == 3
    hidden = Api(a_secret("enqueue")).post("/tasks", body).json()
    assert (hidden["status"], hidden["result"], hidden["errors"]) == ("COMPLETED", None, [])


def test_the_same_key_with_another_payload_is_409_and_names_both(api):
    first = api.post("/tasks", {"type": ADD, "payload": {"a": 1}, "idempotency_key": "k"})
    document = problem(
        api.post("/tasks", {"type": ADD, "payload": {"a": 2}, "idempotency_key": "k"}), 409, "idempotency_key"
    )
    assert document["existing"] == {"id": first.json()["id"], "payload": {"args": [], "kwargs": {"a": 1}}}
    assert document["given"] == {"payload": {"args": [], "kwargs": {"a": 2}}}
    assert Task.objects.count() == 1


def test_who_may_not_read_is_not_told_the_arguments_of_others(api):
    api.post("/tasks", {"type": ADD, "payload": {"a": "secret"}, "idempotency_key": "k"})
    response = Api(a_secret("enqueue")).post("/tasks", {"type": ADD, "payload": {"a": 2}, "idempotency_key": "k"})
    assert "existing" not in problem(response, 409)
    assert "secret" not in response.content.decode()


def test_a_key_is_of_its_function(api):
    for path in (ADD, awkward.receive.module_path):
        assert api.post("/tasks", {"type": path, "payload": {"a": 1}, "idempotency_key": "k"}).status_code == 201


# Bulk


def test_a_bulk_is_answered_in_its_order(api):
    bulk = [{"type": ADD, "payload": {"a": n}, "idempotency_key": f"k{9 - n}"} for n in range(10)]
    response = api.post("/tasks/bulk", {"tasks": bulk})
    assert response.status_code == 201
    assert [each["payload"]["kwargs"]["a"] for each in response.json()["tasks"]] == list(range(10))
    again = api.post("/tasks/bulk", {"tasks": [*bulk, {"type": ADD, "payload": {"a": 99}}]})
    assert [each["duplicate"] for each in again.json()["tasks"]] == [True] * 10 + [False]
    assert api.post("/tasks/bulk", {"tasks": bulk}).status_code == 200
    assert Task.objects.count() == 11


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"type": "os.system"}, "tasks[3].type"),
        ({"type": ADD, "payload": {"c": 1}}, "tasks[3].payload"),
        ({"type": ADD, "payload": {"a": "\0"}}, "tasks[3].payload.a"),
        ({"type": ADD, "payload": {"a": 1}, "priority": 1000}, "tasks[3].priority"),
        ({"type": ADD, "payload": {"a": 1}, "queue": "a,b"}, "tasks[3].queue"),
        ({"type": ADD, "payload": {"a": 1}, "odd": 1}, "tasks[3].odd"),
        ([], "tasks[3]"),
    ],
    ids=str,
)
def test_one_wrong_task_of_a_bulk_is_named_and_none_is_enqueued(api, bad, field):
    good = {"type": ADD, "payload": {"a": 1}}
    problem(api.post("/tasks/bulk", {"tasks": [good, good, good, bad, good]}), 400, field)
    assert Task.objects.count() == 0


def test_a_conflict_in_a_bulk_names_the_task_at_fault(api):
    api.post("/tasks", {"type": ADD, "payload": {"a": 1}, "idempotency_key": "k"})
    bulk = [{"type": ADD, "payload": {"a": n}, "idempotency_key": "k"} for n in (1, 1, 2)]
    document = problem(api.post("/tasks/bulk", {"tasks": bulk}), 409, "tasks[2].idempotency_key")
    assert document["existing"]["payload"]["kwargs"] == {"a": 1}
    assert Task.objects.count() == 1


def test_a_conflict_inside_a_bulk_leaves_nothing(api):
    bulk = [{"type": ADD, "payload": {"a": n}, "idempotency_key": "k"} for n in (1, 2)]
    document = problem(api.post("/tasks/bulk", {"tasks": bulk}), 409, "tasks[1].idempotency_key")
    assert "is the same as that of tasks[0], with other arguments" in document["detail"]
    assert "existing" not in document
    assert Task.objects.count() == 0


def test_all_values_that_are_wrong_in_themselves_are_told(api):
    body = {"type": ADD, "payload": {"a": 1}, "priority": 1000, "queue": "a,b"}
    document = problem(api.post("/tasks", body), 400)
    assert sorted(error["field"] for error in document["errors"]) == ["priority", "queue"]


def test_a_number_with_too_many_digits_says_the_limit_and_not_how_the_server_would_raise_it(api):
    data = json.dumps({"type": ADD, "payload": {"a": 0}}).replace("0", "1" * 5001)
    document = problem(api("POST", "/tasks", data=data), 400)
    assert document["detail"] == "A whole number in the body has more than 4,300 digits."


def test_a_bulk_is_bounded(api, settings):
    settings.DHARA = {"API_MAX_BULK": 2}
    before = rows()
    problem(api.post("/tasks/bulk", {"tasks": [{"type": ADD, "payload": {"a": 1}}] * 3}), 413, "tasks")
    problem(api.post("/tasks/bulk", {"tasks": []}), 400, "tasks")
    assert rows() == before


# Queues of a token


def test_a_token_of_some_queues_enqueues_into_no_other(api):
    restricted = Api(a_secret(queues=["mail"]))
    assert restricted.post("/tasks", {"type": ADD, "payload": {"a": 1}, "queue": "mail"}).status_code == 201
    problem(restricted.post("/tasks", {"type": ADD, "payload": {"a": 1}}), 403, "queue")
    bulk = [{"type": ADD, "payload": {"a": 1}, "queue": queue} for queue in ("mail", "other")]
    problem(restricted.post("/tasks/bulk", {"tasks": bulk}), 403, "tasks[1].queue")
    assert Task.objects.count() == 1


def test_a_replay_does_not_show_a_task_of_a_foreign_queue(api):
    api.post("/tasks", {"type": ADD, "payload": {"a": 1}, "queue": "other", "idempotency_key": "k"})
    restricted = Api(a_secret(queues=["mail"]))
    body = {"type": ADD, "payload": {"a": 1}, "queue": "mail", "idempotency_key": "k"}
    assert "task_id" not in problem(restricted.post("/tasks", body), 409, "idempotency_key")
    conflict = restricted.post("/tasks", {**body, "payload": {"a": 2}})
    assert "existing" not in problem(conflict, 409)


def test_the_settings_of_a_backend_bind_the_api_too(api, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "mail"]}}
    problem(api.post("/tasks", {"type": ADD, "payload": {"a": 1}, "queue": "other"}), 400, "queue")
