"""Tasks by the API: lists of any size in bounded steps, one task, cancel and retry, one by one and by a filter."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from django.db import connection

from django_dhara import bulk
from django_dhara.api import finding
from django_dhara.models import Queue, Task
from django_dhara.states import State
from tests.api.conftest import Api, a_secret, problem
from tests.rows import OTHER_WORKER, a_task, ago, ahead, an_attempt, fresh

pytestmark = pytest.mark.fast


def ids(response):
    assert response.status_code == 200, response.content
    return [task["id"] for task in response.json()["tasks"]]


def all_pages(api, query, limit=2):
    """Every task of a list, page by page."""
    found, cursor = [], ""
    for _ in range(1000):
        page = api.get(f"/tasks?limit={limit}&{query}{cursor}")
        found += ids(page)
        if page.json()["next"] is None:
            return found
        cursor = f"&cursor={page.json()['next']}"
    raise AssertionError("it never ends")


def a_row(number, state=State.PENDING, **columns):
    """A task whose id has a place in the order."""
    return a_task(state, id=UUID(int=number << 80), **columns)


# Lists


def test_a_list_has_the_newest_first_and_no_payloads(api):
    rows = [a_row(number) for number in (1, 3, 2)]
    [first, *_] = api.get("/tasks").json()["tasks"]
    assert "payload" not in first
    assert ids(api.get("/tasks")) == [str(rows[index].id) for index in (1, 2, 0)]


@pytest.mark.parametrize("state", State)
def test_a_status_lists_all_tasks_in_it_page_by_page(api, state):
    wanted = {str(a_row(number, state).id) for number in range(1, 8)}
    if state == State.PENDING:
        wanted |= {str(a_row(number, lost=1, priority=number).id) for number in range(20, 25)}
        wanted |= {str(a_row(number, queue="mail", priority=-5, run_at=ahead(60)).id) for number in range(30, 33)}
    if state == State.RUNNING:
        wanted |= {str(a_row(number, state, worker_id=OTHER_WORKER).id) for number in range(30, 33)}
    for number, other in enumerate(State, start=50):
        if other != state:
            a_row(number, other)
    found = all_pages(api, f"status={state}")
    assert len(found) == len(wanted)
    assert set(found) == wanted


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("type=shop.pay", {2}),
        ("queue=mail", {3, 4}),
        ("queue=mail&status=PENDING", {3}),
        ("queue=mail&status=DEAD", {4}),
        ("retrying=true", {3}),
        ("retrying=false", {1, 2, 4}),
        ("retrying=true&status=DEAD", set()),
        ("type=nobody", set()),
        ("queue=mail&type=shop.pay", set()),
    ],
)
def test_filters(api, query, wanted):
    a_row(1)
    a_row(2, State.RUNNING, function="shop.pay")
    a_row(3, queue="mail", failures=1)
    a_row(4, State.DEAD, queue="mail", failures=5)
    assert {UUID(found).int >> 80 for found in all_pages(api, query)} == wanted


def test_a_range_of_time_goes_by_the_enqueue(api):
    now = datetime.now(UTC)
    for hours in range(6):
        at = now - timedelta(hours=hours)
        a_task(id=UUID(int=int(at.timestamp() * 1000) << 80), enqueued_at=at, function=f"hour.{hours}")
    query = f"created_after={(now - timedelta(hours=3, minutes=1)):%Y-%m-%dT%H:%M:%SZ}"
    query += f"&created_before={(now - timedelta(minutes=59)):%Y-%m-%dT%H:%M:%SZ}"
    found = api.get(f"/tasks?{query}").json()["tasks"]
    assert [task["type"] for task in found] == ["hour.1", "hour.2", "hour.3"]


def test_a_clock_that_is_wrong_by_some_minutes_hides_no_task(api):
    now = datetime.now(UTC)
    task = a_task(id=UUID(int=int((now - timedelta(minutes=9)).timestamp() * 1000) << 80), enqueued_at=now)
    assert ids(api.get(f"/tasks?created_after={(now - timedelta(minutes=1)):%Y-%m-%dT%H:%M:%SZ}")) == [str(task.id)]


def test_an_offset_leaves_out_what_a_cursor_passes(api):
    rows = [str(a_row(number).id) for number in range(10)][::-1]
    assert ids(api.get("/tasks?limit=3&offset=4")) == rows[4:7]
    page = api.get("/tasks?limit=3&offset=4").json()["next"]
    assert ids(api.get(f"/tasks?limit=3&cursor={page}")) == rows[7:]
    assert ids(api.get("/tasks?offset=100")) == []


def test_a_page_of_a_rare_task_is_short_and_goes_on(api, monkeypatch):
    monkeypatch.setattr(finding.search.finding, "WINDOWS", (4,))
    rows = [a_row(number, function="rare.one" if number in (1, 2, 17) else "many.of_them") for number in range(20)]
    first = api.get("/tasks?type=rare.one&limit=2").json()
    assert [task["id"] for task in first["tasks"]] == [str(rows[17].id)]
    assert first["next"]
    assert all_pages(api, "type=rare.one") == [str(rows[number].id) for number in (17, 2, 1)]
    problem(api.get("/tasks?type=rare.one&offset=2"), 400, "offset")


@pytest.mark.parametrize(
    "query",
    [
        "state=DEAD", "status=dead", "status=", "limit=0", "limit=201", "limit=x", "offset=-1", "offset=10001",
        "queue=", "queue=%00", "type=%00", "queue=%ff%fe", "retrying=maybe", "created_after=yesterday",
        "created_after=2030-01-01", "created_before=9" + "9" * 400, "backend=other", "backend=%00", "cursor=",
        "cursor=x", "cursor=%00", "cursor=bnVsbA", "cursor=" + "W" * 3000, "created_after=2030-01-01T00:00:00",
        "limit=" + "9" * 5000,
    ],
)  # fmt: skip
def test_a_wrong_query_is_400_and_names_the_parameter(api, query):
    response = api.get(f"/tasks?{query}")
    if query == "queue=%ff%fe":  # what is no UTF-8 becomes U+FFFD: a name like another
        assert ids(response) == []
    else:
        problem(response, 400, query.partition("=")[0])


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00%2B14:00"])
@pytest.mark.parametrize("name", ["created_after", "created_before"])
def test_what_no_id_can_hold_is_no_time(api, name, moment):
    problem(api.get(f"/tasks?{name}={moment}"), 400, name)


@pytest.mark.parametrize("moment", ["1970-01-01T00:00:00Z", "9000-12-31T23:59:59-11:00"])
def test_the_ends_of_time_are_times(api, moment):
    a_row(1)
    assert len(ids(api.get(f"/tasks?created_after={moment}")) + ids(api.get(f"/tasks?created_before={moment}"))) == 1


def test_a_cursor_is_of_its_list(api):
    for number in range(5):
        a_row(number, State.DEAD)
    cursor = api.get("/tasks?limit=1&status=DEAD").json()["next"]
    problem(api.get(f"/tasks?limit=1&status=PENDING&cursor={cursor}"), 400, "cursor")


# One task


def test_one_task_is_shown_with_its_failed_runs(api):
    task = a_task(State.DEAD, failures=2, error_class="tests.Boom", result=None, progress={"done": 5})
    an_attempt(task, number=1, message="first", traceback="T1")
    an_attempt(task, number=2, message="second", ended="LOST")
    shown = api.get(f"/tasks/{task.id}").json()
    assert (shown["status"], shown["attempts"], shown["error"]) == ("DEAD", 2, "tests.Boom")
    assert (shown["payload"], shown["progress"]) == ({"args": [1], "kwargs": {}}, {"done": 5})
    assert [(run["attempt"], run["ended"], run["message"]) for run in shown["errors"]] == [
        (1, "FAILED", "first"),
        (2, "LOST", "second"),
    ]


def test_a_task_that_did_not_change_is_304(api):
    task = a_task()
    first = api.get(f"/tasks/{task.id}")
    assert first["Cache-Control"] == "private, no-cache"
    again = api.get(f"/tasks/{task.id}", **{"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    Task.objects.filter(pk=task.pk).update(priority=5)
    assert api.get(f"/tasks/{task.id}", **{"If-None-Match": first["ETag"]}).status_code == 200


def test_head_is_get_without_a_body(api):
    task = a_task()
    response = api("HEAD", f"/tasks/{task.id}")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    "path", [f"/tasks/{UUID(int=0)}", "/tasks/nobody", "/nothing", "/", "/tasks/", "/tasks/1/retry"]
)
def test_what_does_not_exist_is_404(api, path):
    problem(api.get(path), 404)


def test_what_python_cannot_read_is_shown_as_null(api):
    task = a_task()
    with connection.cursor() as cursor:
        statement = "UPDATE dhara_task SET payload = %s::jsonb, result = %s::jsonb, metadata = '5' WHERE id = %s"
        cursor.execute(statement, [f'{{"args": [{"9" * 5000}], "kwargs": {{}}}}', "[" * 5000 + "]" * 5000, task.id])
    shown = api.get(f"/tasks/{task.id}")
    assert shown.status_code == 200
    assert [shown.json()[name] for name in ("payload", "result", "metadata")] == [None, None, None]


def redact(function, payload):
    return {"args": ["***"], "kwargs": {}}


def test_payloads_are_shown_as_the_project_redacts_them(api, settings):
    settings.DHARA = {"REDACT": f"{__name__}.redact"}
    made = api.post("/tasks", {"type": "tests.app.tasks.add", "payload": {"a": 4711}, "idempotency_key": "k"})
    shown = api.get(f"/tasks/{made.json()['id']}")
    conflict = api.post("/tasks", {"type": "tests.app.tasks.add", "payload": {"a": 4712}, "idempotency_key": "k"})
    for response in (made, shown, conflict):
        assert "471" not in response.content.decode().replace(made.json()["id"], "")
    assert shown.json()["payload"]["args"] == ["***"]


def test_payloads_are_hidden_while_the_hook_does_not_work(api, settings):
    settings.DHARA = {"REDACT": "tests.nobody.redact"}
    assert api.get(f"/tasks/{a_task().id}").json()["payload"] is None


# Cancel and retry


@pytest.mark.parametrize(
    ("state", "answer", "becomes"),
    [
        (State.PENDING, "canceled", State.CANCELED),
        (State.RUNNING, "requested", State.RUNNING),
        (State.COMPLETED, "finished", State.COMPLETED),
        (State.DEAD, "finished", State.DEAD),
        (State.CANCELED, "finished", State.CANCELED),
    ],
)
def test_delete_cancels_and_answers_the_truth(api, state, answer, becomes):
    task = a_task(state)
    response = api.delete(f"/tasks/{task.id}")
    assert (response.status_code, response.json()) == (200, {"id": str(task.id), "answer": answer})
    assert fresh(task).state == becomes
    assert (fresh(task).cancel_requested_at is not None) == (answer != "finished")


@pytest.mark.parametrize("state", State)
def test_retry_takes_a_task_that_is_dead_or_canceled(api, state):
    task = a_task(state, failures=1)
    response = api.post(f"/tasks/{task.id}/retry")
    if state in (State.DEAD, State.CANCELED):
        assert response.json() == {"id": str(task.id), "answer": "retried"}
        assert (fresh(task).state, fresh(task).failures) == (State.PENDING, 0)
    else:
        problem(response, 409)
        assert fresh(task).state == state


def test_neither_finds_a_task_that_is_not_there(api):
    problem(api.delete(f"/tasks/{uuid4()}"), 404)
    problem(api.post(f"/tasks/{uuid4()}/retry"), 404)


def changed(api, path, body):
    """What a change came to, continued to its end."""
    answer = api.post(path, body)
    while answer.json().get("more"):
        answer = api.post(f"/changes/{answer.json()['id']}/continue")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_tasks_of_a_filter_are_canceled(api, monkeypatch):
    monkeypatch.setattr(bulk, "SECONDS", 0)
    mail = [a_row(number, queue="mail") for number in range(1, 8)]
    others = [a_row(20), a_row(21, State.RUNNING, queue="mail"), a_row(22, State.DEAD, queue="mail")]
    answer = changed(api, "/tasks/cancel", {"status": "PENDING", "queue": "mail"})
    assert (answer["verb"], answer["counts"]) == ("cancel", {"canceled": 7})
    assert answer["finished_at"]
    assert api.get(f"/changes/{answer['id']}").json() == answer
    assert {fresh(task).state for task in mail} == {State.CANCELED}
    assert [fresh(task).state for task in others] == [State.PENDING, State.RUNNING, State.DEAD]
    assert changed(api, "/tasks/cancel", {"status": "RUNNING", "queue": "mail"})["counts"] == {"requested": 1}


def test_the_tasks_of_a_filter_are_retried(api):
    dead = [a_row(number, State.DEAD, function="shop.pay", finished_at=ago(number)) for number in range(1, 8)]
    other = a_row(20, State.DEAD)
    answer = changed(api, "/tasks/retry", {"status": "DEAD", "type": "shop.pay"})
    assert (answer["verb"], answer["counts"]) == ("retry", {"retried": 7})
    assert {fresh(task).state for task in dead} == {State.PENDING}
    assert fresh(other).state == State.DEAD


def test_a_change_goes_on_call_by_call_and_can_be_stopped(api, monkeypatch):
    monkeypatch.setattr(finding.search.finding, "WINDOWS", (3,))
    step = bulk.step
    monkeypatch.setattr(bulk, "step", lambda alias, pk: step(alias, pk, seconds=0, batch=3))
    rows = [a_row(number, State.DEAD) for number in range(1, 10)]
    first = api.post("/tasks/retry", {"status": "DEAD"}).json()
    assert (first["counts"], first["more"]) == ({"retried": 3}, True)
    assert api.post(f"/changes/{first['id']}/continue").json()["counts"] == {"retried": 6}
    stopped = api.delete(f"/changes/{first['id']}").json()
    assert (stopped["more"], bool(stopped["stopped_at"])) == (False, True)
    assert api.post(f"/changes/{first['id']}/continue").json()["counts"] == {"retried": 6}
    assert sum(fresh(task).state == State.DEAD for task in rows) == 3


def test_a_change_of_the_admins_other_verbs_is_shown_and_not_made(api):
    task = a_task(State.DEAD)
    change = bulk.create("default", "delete", finding.search.parse("state:dead"))
    assert api.get(f"/changes/{change.pk}").json()["verb"] == "delete"
    problem(api.post(f"/changes/{change.pk}/continue"), 403)
    problem(api.delete(f"/changes/{change.pk}"), 403)
    problem(api.get(f"/changes/{uuid4()}"), 404)
    assert fresh(task).state == State.DEAD


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tasks/cancel", {}, "status"),
        ("/tasks/cancel", {"status": "DEAD"}, "status"),
        ("/tasks/retry", {"status": "RUNNING"}, "status"),
        ("/tasks/retry", {"status": "DEAD", "ids": []}, "ids"),
        ("/tasks/retry", {"status": "DEAD", "created_after": "0001-01-01T00:00:00Z"}, "created_after"),
        ("/tasks/cancel", {"status": "PENDING", "queue": "\0"}, "queue"),
        ("/tasks/cancel", {"status": "PENDING", "backend": "x"}, "backend"),
    ],
)
def test_a_wrong_change_changes_nothing(api, path, body, field):
    rows = [a_task(state) for state in State]
    problem(api.post(path, body), 400, field)
    assert [fresh(task).state for task in rows] == list(State)


def test_a_locked_task_is_busy_and_the_others_are_changed(api, other_session):
    locked, free = a_task(State.DEAD), a_task(State.DEAD)
    other_session.set_autocommit(False)
    with other_session.cursor() as cursor:
        cursor.execute("SELECT FROM dhara_task WHERE id = %s FOR UPDATE", [locked.id])
        answer = api.post("/tasks/retry", {"status": "DEAD"}).json()
        other_session.rollback()
    other_session.set_autocommit(True)
    assert answer["counts"] == {"retried": 1, "busy": 1}
    assert fresh(free).state == State.PENDING


def test_a_task_that_stays_locked_is_503_after_a_while(api, other_session, settings):
    settings.DHARA = {"API_STATEMENT_SECONDS": 0.2}
    task = a_task()
    other_session.set_autocommit(False)
    with other_session.cursor() as cursor:
        cursor.execute("SELECT FROM dhara_task WHERE id = %s FOR UPDATE", [task.id])
        response = api.delete(f"/tasks/{task.id}")
        other_session.rollback()
    other_session.set_autocommit(True)
    assert response["Retry-After"] == "2"
    problem(response, 503)
    assert fresh(task).state == State.PENDING


def test_a_key_that_somebody_is_taking_is_503_after_a_while(api, other_session, settings):
    settings.DHARA = {"API_STATEMENT_SECONDS": 0.2}
    body = {"type": "tests.app.tasks.add", "payload": {"a": 1}, "idempotency_key": "k"}
    made = api.post("/tasks", body).json()["id"]
    row = Task.objects.filter(id=made).values("payload", "run_at").get()
    Task.objects.all().delete()
    other_session.set_autocommit(False)
    with other_session.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dhara_task (id, backend, function, queue, run_at, payload, idempotency_key)"
            " VALUES (%s, 'default', 'tests.app.tasks.add', 'default', %s, '{}', 'k')",
            [made, row["run_at"]],
        )
        problem(api.post("/tasks", body), 503)
        other_session.rollback()
    other_session.set_autocommit(True)
    assert api.post("/tasks", body).status_code == 201


# Queues


def test_a_pause_of_a_queue_that_nothing_knows_says_so_and_a_resume_forgets_it(api):
    paused = api.post("/queues/nope/pause").json()
    assert paused == {"name": "nope", "backend": "default", "paused": True, "changed": True, "known": False}
    assert "nope" in [queue["name"] for queue in api.get("/queues").json()["queues"]]
    assert api.post("/queues/nope/resume").json()["changed"] is True
    assert "nope" not in [queue["name"] for queue in api.get("/queues").json()["queues"]]
    assert not Queue.objects.exists()
    a_row(1, queue="mail")
    assert api.post("/queues/mail/pause").json()["known"] is True


# Queues of a token


def test_a_token_of_some_queues_has_to_do_with_their_tasks_only(api):
    mine, other = a_row(1, queue="mail"), a_row(2, queue="other")
    dead = a_row(3, State.DEAD, queue="other")
    restricted = Api(a_secret(queues=["mail"]))
    assert ids(restricted.get("/tasks")) == [str(mine.id)]
    assert ids(restricted.get("/tasks?queue=other")) == []
    problem(restricted.get(f"/tasks/{other.id}"), 404)
    problem(restricted.delete(f"/tasks/{other.id}"), 404)
    problem(restricted.post(f"/tasks/{dead.id}/retry"), 404)
    assert restricted.post("/tasks/cancel", {"status": "PENDING"}).json()["counts"] == {"canceled": 1}
    change = restricted.post("/tasks/retry", {"status": "DEAD"}).json()
    assert change["counts"] == {}
    problem(restricted.post("/tasks/retry", {"status": "DEAD", "queue": "other"}), 403, "queue")
    assert restricted.get(f"/changes/{change['id']}").status_code == 200
    problem(Api(a_secret(queues=["mail"])).get(f"/changes/{change['id']}"), 404)
    assert (fresh(other).state, fresh(dead).state) == (State.PENDING, State.DEAD)


@pytest.mark.parametrize("offset", ["+22:45", "-23:59", "+15:59"])
def test_an_offset_that_postgresql_does_not_read_is_still_a_time(api, offset):
    when = f"5123-03-16T22:52:49{offset}"
    for status in ("CANCELED", "PENDING"):
        assert api.get(f"/tasks?status={status}&created_before={when.replace('+', '%2B')}").status_code == 200
    assert api.post("/tasks/retry", {"status": "CANCELED", "created_after": when}).status_code == 200
    assert api.post("/tasks/cancel", {"status": "PENDING", "created_after": when}).status_code == 200
