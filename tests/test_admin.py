"""The admin: what an operator sees, what they may do, and that it stays cheap whatever is in the table."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry, LogEntryManager
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dhara import tokens
from django_dhara.admin import databases, operations, text
from django_dhara.admin.crew import NAMED_ON_PAGE
from django_dhara.models import BulkChange, Queue, Task, Worker
from django_dhara.states import State
from tests.rows import WORKER, a_task, ago, ahead, an_attempt, everything, fresh

LIST = "/admin/dhara/task/"
ALL = ("view_task", "cancel_task", "revive_task", "run_task_now", "view_worker")
VERBS = {"cancel": "cancel_task", "retry": "revive_task", "run_now": "run_task_now"}


@contextmanager
def queries():
    with CaptureQueriesContext(connection) as captured:
        captured.texts = []
        yield captured.texts
    captured.texts += [query["sql"] for query in captured.captured_queries]


def a_client(*permissions, superuser=False):
    """A client logged in as a member of the staff with these permissions."""
    user = User.objects.create_user(f"user{uuid4().hex[:8]}", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    client.user = user
    return client


@pytest.fixture
def client(db):
    return a_client(*ALL)


def page_of(task):
    return reverse("admin:dhara_task_change", args=[task.pk])


def button(verb, task):
    return reverse(f"admin:dhara_task_{verb}", args=[task.pk])


def act(client, verb, tasks, *, address=LIST, **more):
    """Post the action of the list, confirmed, and follow to its answer."""
    data = {"action": verb, "_selected_action": [str(task.pk) for task in tasks], "confirmed": "yes", **more}
    return client.post(address, data, follow=True)


def is_not_pressed(client, address, page):
    """A GET of a button's address changes nothing and leads to its page; other methods are refused."""
    return (client.get(address).get("Location"), client.put(address).status_code) == (page, 405)


def messages(response):
    return [str(message) for message in response.context["messages"]]


def shown(response):
    """What a reader sees of a page: its text, without tags."""
    assert response.status_code == 200
    body = re.sub(r"</?(a|bdi|code|time|wbr)\b[^>]*>", "", response.content.decode())
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def a_worker(**columns):
    values = {"id": WORKER, "backend": "default", "name": "w1", "host": "box7", "pid": 4711, "version": "0.1.0"}
    values |= {"concurrency": 10, "lease_seconds": 30.0}
    return Worker.objects.create(**{**values, **columns})


def about(sentence):
    """What a page says, where a slow machine may need some seconds more."""
    return re.compile(
        re.sub(r"\bnow\b", r"(now|\\d+ s ago)", re.sub(r"\b\d+( |\\ )s\b", r"\\d+ s", re.escape(sentence)))
    )


# The page of one task


@pytest.mark.fast
def test_the_page_shows_payload_result_attempts_and_timeline(client):
    a_worker()
    task = a_task(
        State.COMPLETED,
        payload={"args": [17], "kwargs": {"name": "x"}},
        result={"sum": 19},
        failures=1,
        worker_id=WORKER,
        enqueued_at=ago(100),
        started_at=ago(90),
        attempted_at=ago(5),
    )
    an_attempt(task, started_at=ago(90), ended_at=ago(80), message="no route\nto host", traceback="Traceback: line 7")
    seen = shown(client.get(page_of(task)))
    for part in ('"args": [17]', '"name": "x"', '{"sum": 19}', "no route to host", "Traceback: line 7", "2/5"):
        assert part in seen
    steps = [
        "Enqueued 1 min ago",
        "Attempt 1: failed after 10 s",
        "Attempt 2 started 5 s ago w1 box7:4711",
        "Completed now",
    ]
    places = [about(step).search(seen, seen.index("Timeline")).start() for step in steps]
    assert places == sorted(places)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("state", "columns", "sentence"),
    [
        (State.PENDING, {}, "Ready: waits for a worker of queue default."),
        (State.PENDING, {"run_at": ahead(300)}, "Scheduled: runs in 5 min"),
        (State.PENDING, {"run_at": ahead(40), "failures": 1}, "Waits for its retry: attempt 2 of 5 in 40 s"),
        (State.PENDING, {"failures": 1}, "Ready for attempt 2 of 5: waits for a worker of queue default"),
        (State.PENDING, {"run_at": ahead(40), "snoozed": 1}, "Snoozed: runs again in 40 s"),
        (State.RUNNING, {"attempted_at": ago(180)}, "Running on w1 box7:4711 for 3 min, attempt 1 of 5."),
        (State.RUNNING, {}, "Its lease ends in 1 min"),
        (State.RUNNING, {"lease_until": ago(20)}, "Its lease ran out 20 s ago"),
        (State.RUNNING, {"cancel_requested_at": ago(5)}, "Asked to stop 5 s ago"),
        (State.DEAD, {"failures": 5, "error_class": "a.B"}, "Dead for 0 s: 5 of 5 attempts were used."),
        (State.COMPLETED, {"attempted_at": ago(30)}, "Completed now, after 30 s"),
        (State.CANCELED, {}, "Canceled now"),
    ],
)
def test_the_page_says_in_words_what_the_task_waits_for(client, state, columns, sentence):
    a_worker()
    assert about(sentence).search(shown(client.get(page_of(a_task(state, **columns)))))


def test_the_page_says_why_nobody_takes_a_ready_task(client):
    task = a_task()
    assert "No worker that is alive now takes this queue" in shown(client.get(page_of(task)))
    assert 'class="dhara-alert dhara-dead"' in client.get(page_of(task)).content.decode()
    worker = a_worker(queues=["email"])
    assert "No worker that is alive" in shown(client.get(page_of(task)))
    Worker.objects.filter(pk=worker.pk).update(queues=[], heartbeat_at=ago(31))
    assert "No worker that is alive" in shown(client.get(page_of(task)))
    Worker.objects.filter(pk=worker.pk).update(heartbeat_at=Now())
    assert "No worker that is alive" not in shown(client.get(page_of(task)))
    Queue.objects.create(backend="default", name="default", paused_at=ago(3600))
    assert "Its queue has been paused for 1 h:" in shown(client.get(page_of(task)))


def test_parent_and_children_are_linked(client):
    parent = a_task(State.COMPLETED, function="shop.parent", started_at=ago(5))
    child = a_task(function="shop.child", parent_id=parent.pk, id=UUID(int=(1 << 127) + 1))
    orphan = a_task(parent_id=UUID(int=5))
    assert page_of(child) in client.get(page_of(parent)).content.decode()
    assert page_of(parent) in client.get(page_of(child)).content.decode()
    assert f"{UUID(int=5)} (deleted)" in shown(client.get(page_of(orphan)))


@pytest.mark.fast
def test_a_payload_of_5_mb_is_cut_and_the_pages_stay_below_1_mb(client):
    for _ in range(3):
        task = a_task(payload={"args": ["<&\"'" * 1_250_000], "kwargs": {}})
    an_attempt(task, traceback="<" * 900_000 + "THE END", message="m" * 900_000)
    response = client.get(page_of(task))
    assert len(response.content) < 1_000_000
    assert "Only the beginning is shown" in shown(response)
    assert "THE END" in shown(response)
    assert len(client.get(LIST).content) < 1_000_000


def test_a_hundred_attempts_are_counted_and_the_last_twenty_shown(client):
    task = a_task(State.DEAD, max_attempts=100, failures=100)
    for number in range(1, 101):
        an_attempt(task, number=number, traceback="t" * 1000)
    seen = shown(client.get(page_of(task)))
    assert "Attempt 100 Failed" in seen
    assert "Attempt 80 Failed" not in seen
    assert "80 earlier attempts are not shown" in seen


@pytest.mark.fast
@pytest.mark.parametrize(
    ("payload", "part"),
    [
        ("'\"just a string\"'", '"just a string"'),
        ("'[1, [2]]'", "[2]"),
        ("'null'", "null"),
        ("""'{"args": 5, "kwargs": []}'""", '"args": 5'),
        ("('[' || repeat('9', 6000) || ']')", "9999"),
        ("(repeat('[', 3000) || repeat(']', 3000))", "[ [ ["),
    ],
)
def test_a_payload_of_another_shape_is_shown_as_it_is(client, payload, part):
    task = a_task()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE dhara_task SET payload = ({payload})::jsonb")
    assert part in shown(client.get(page_of(task)))
    assert client.get(LIST).status_code == 200


@pytest.mark.fast
def test_a_function_a_queue_or_a_backend_that_is_unknown_here_is_shown_and_never_imported(client, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["other"]}}
    task = a_task(State.DEAD, function="tests.app.explosive.run", queue="gone", backend="removed")
    assert "tests.app.explosive.run" in shown(client.get(LIST))
    assert "There is no backend removed in TASKS" in shown(client.get(page_of(task)))
    act(client, "retry", [task])
    client.post(button("cancel", task))
    assert fresh(task).state == State.CANCELED
    assert "tests.app.explosive" not in sys.modules


def test_the_admin_never_asks_the_registry(client, monkeypatch):
    for name in ("resolve", "discover", "paths"):
        monkeypatch.setattr(f"django_dhara.registry.{name}", lambda *a: pytest.fail("asked the registry"))
    task = a_task(State.DEAD)
    client.get(LIST)
    client.get(page_of(task))
    act(client, "retry", [task])


@pytest.mark.fast
def test_control_characters_and_markup_in_names_are_written_out(client):
    nasty = "shop.<script>alert(1)</script>\n\x1b[31mfake\u202etxt"
    task = a_task(State.DEAD, function=nasty, queue="q\x1b\n", error_class="E\x1b\n", worker_id=WORKER)
    an_attempt(task, error_class=nasty, message="m\x1b[2J\u202e", traceback="line 1\n\x1b[31mline 2", ended="ODD\x1b")
    a_worker(name=nasty, host=nasty, version=nasty, queues=[nasty])
    act(client, "retry", [task])
    history = reverse("admin:dhara_task_history", args=[task.pk])
    pages = [LIST, page_of(task), history, "/admin/dhara/worker/", f"/admin/dhara/worker/{WORKER}/change/", "/admin/"]
    for address in pages:
        body = client.get(address).content.decode()
        assert "\x1b" not in body, (address, body[body.index("\x1b") - 100 :][:200])
        assert "\u202e" not in body
        assert "<script>alert" not in body
    assert "shop.<script>alert(1)</script>\\n\\x1b[31mfake\\u202etxt" in unescape(shown(client.get(LIST)))
    assert LogEntry.objects.get().object_repr.startswith("shop.<script>alert(1)</script>\\n\\x1b")


def test_an_id_that_is_gone_or_none_leads_back_to_the_list(client):
    for address in (f"{LIST}{uuid4()}/change/", f"{LIST}x%00y/change/"):
        response = client.get(address, follow=True)
        assert response.redirect_chain == [(LIST, 302)]
        assert "There is no task" in messages(response)[0]


# Nobody edits


@pytest.mark.fast
@pytest.mark.parametrize("superuser", [False, True])
def test_a_post_to_the_page_changes_nothing(db, superuser):
    client = a_client(*ALL, "change_task", "delete_task", "add_task", superuser=superuser)
    task = a_task(State.RUNNING)
    before = everything()
    posts = [
        page_of(task),
        f"{LIST}add/",
        f"{LIST}{task.pk}/delete/",
        LIST,
        f"/admin/dhara/worker/{a_worker().pk}/change/",
    ]
    for address in posts:
        response = client.post(address, {"state": "PENDING", "lease": "0", "_save": "Save", "post": "yes"})
        assert response.status_code == (403 if address != LIST else 302)
    assert everything() == before


def test_nobody_sees_a_form_an_add_or_a_delete_button(client):
    task = a_task()
    for address in (LIST, page_of(task)):
        body = client.get(address).content.decode()
        assert "addlink" not in body
        assert "deletelink" not in body
        assert 'name="_save"' not in body


# Permissions


@pytest.mark.fast
@pytest.mark.parametrize("verb", VERBS)
def test_each_action_takes_a_permission_of_its_own(db, verb):
    others = set(ALL) - {VERBS[verb]}
    without, with_ = a_client(*others), a_client("view_task", VERBS[verb])
    task = a_task(State.DEAD) if verb == "retry" else a_task(run_at=ahead(60))
    before = everything()
    assert act(without, verb, [task]).status_code == 403
    assert without.post(button(verb, task)).status_code == 403
    assert f'value="{verb}"' not in without.get(LIST).content.decode()
    assert button(verb, task) not in without.get(page_of(task)).content.decode()
    assert everything() == before
    assert f'value="{verb}"' in with_.get(LIST).content.decode()
    assert button(verb, task) in with_.get(page_of(task)).content.decode()
    assert with_.post(button(verb, task)).status_code == 302
    assert everything() != before


def test_who_may_not_see_tasks_may_do_nothing(db):
    client = a_client("cancel_task", "revive_task", "run_task_now")
    task = a_task()
    assert client.get(LIST).status_code == 403
    assert client.get(page_of(task)).status_code == 403
    assert client.post(button("cancel", task)).status_code == 403
    assert act(client, "cancel", [task]).status_code == 403
    assert fresh(task).state == State.PENDING


def test_who_is_not_of_the_staff_is_sent_to_the_login(db):
    assert Client().get(LIST).url.startswith("/admin/login/")
    assert Client().post(button("cancel", a_task())).url.startswith("/admin/login/")


def test_whoever_had_to_log_in_for_a_button_is_led_back_to_it(client):
    task, user = a_task(), client.user
    client.logout()
    login = client.post(button("cancel", task))
    client.force_login(user)
    page = client.get(parse_qs(urlsplit(login.url).query)["next"][0], follow=True)
    assert messages(page) == ["Nothing was changed. If you had to log in, press the button once more."]
    assert button("cancel", task) in page.content.decode()
    task.refresh_from_db()
    assert task.state == State.PENDING


def test_a_button_takes_a_post_with_a_csrf_token(client):
    task = a_task()
    assert is_not_pressed(client, button("cancel", task), reverse("admin:dhara_task_change", args=[task.pk]))
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(client.user)
    assert strict.post(button("cancel", task)).status_code == 403
    assert fresh(task).state == State.PENDING


# Actions


@pytest.mark.fast
def test_each_changed_task_gets_a_log_entry_with_who_and_what(client):
    dead, done = a_task(State.DEAD), a_task(State.COMPLETED)
    act(client, "retry", [dead, done])
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.change_message) == (client.user, str(dead.pk), "Put back to run again.")
    assert about(f"Put back to run again. now by {client.user.username}").search(shown(client.get(page_of(dead))))
    assert "Put back to run again." in shown(client.get(reverse("admin:dhara_task_history", args=[dead.pk])))


@pytest.mark.fast
def test_the_key_of_a_user_may_be_of_any_type(db, monkeypatch):
    client, logged = a_client(superuser=True), []
    dead, running = a_task(State.DEAD, error_class="x.E", error_fingerprint="f00"), a_task(State.RUNNING)
    token, _ = tokens.create("ci", ["read"])
    monkeypatch.setattr(User, "pk", property(lambda user: f"user-{user.id}"))
    monkeypatch.setattr(LogEntryManager, "log_actions", lambda self, user_id, *more, **named: logged.append(user_id))
    group = f"{LIST}dead/group/discard/?backend=default&function={dead.function}&error=x.E&place=f00"
    assert client.post(group, {"reason": "old"}).status_code == 302
    assert client.post(f"{LIST}{running.id}/stack/").status_code == 302
    revoke = {"action": "revoke", "_selected_action": token.id, "confirmed": "yes"}
    assert client.post("/admin/dhara/token/", revoke).status_code == 302
    assert logged == [f"user-{client.user.id}"] * 3
    assert BulkChange.objects.get().user_id == f"user-{client.user.id}"


def test_a_button_of_what_is_gone_leads_back_to_the_list_and_says_so(db):
    client, gone = a_client(superuser=True), uuid4()
    for verb in ("retry", "stack", "snooze"):
        response = client.post(f"{LIST}{gone}/{verb}/", follow=True)
        assert (response.redirect_chain, messages(response)) == (
            [(LIST, 302)],
            [f"There is no task {gone} (any more)."],
        )
    for verb in ("drain", "stacks"):
        response = client.post(f"/admin/dhara/worker/{gone}/{verb}/", follow=True)
        assert response.redirect_chain == [("/admin/dhara/worker/", 302)]
        assert messages(response)[0].startswith(f"There is no worker {gone} (any more)")


def test_a_bulk_action_asks_first_and_changes_nothing_before_the_answer(client):
    tasks = [a_task(), a_task(State.DEAD)]
    data = {"action": "cancel", "index": "0", "_selected_action": [str(task.pk) for task in tasks]}
    response = client.post(LIST + "?queue=default", data)
    seen = shown(response)
    assert "Cancel 2 tasks?" in seen
    assert "○ Pending 1 ✕ Dead 1" in seen
    assert 'action="/admin/dhara/task/?queue=default"' in response.content.decode()
    assert fresh(tasks[0]).state == State.PENDING


@pytest.mark.fast
def test_the_summary_tells_what_happened_to_each(transactional_db, other_session):
    client = a_client(*ALL)
    pending = [a_task() for _ in range(3)]
    running, busy = a_task(State.RUNNING), a_task()
    finished = [a_task(State.COMPLETED), a_task(State.DEAD)]
    gone = [Task(pk=uuid4()), Task(pk=uuid4())]
    with other_session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM dhara_task WHERE id = %s FOR UPDATE", [busy.pk])
        response = act(client, "cancel", [*pending, running, busy, *finished, *gone])
        cursor.execute("ROLLBACK")
    [summary] = messages(response)
    assert summary == (
        "3 canceled, 1 running: asked to stop, 2 had already finished, 1 is being changed right now: try again, "
        "2 no longer exist."
    )
    assert fresh(busy).state == State.PENDING
    assert LogEntry.objects.count() == 4


@pytest.mark.parametrize(
    ("verb", "counts", "expected"),
    [
        ("cancel", {"canceled": 12, "refused": 3}, "12 canceled, 3 had already finished."),
        ("cancel", {"requested": 1}, "1 running: asked to stop."),
        ("cancel", {"missing": 1}, "0 canceled, 1 no longer exists."),
        ("retry", {"revived": 2, "refused": 1}, "2 retried, 1 was neither dead nor canceled."),
        ("retry", {"refused": 2}, "0 retried, 2 were neither dead nor canceled."),
        ("retry", {"busy": 2}, "0 retried, 2 are being changed right now: try again."),
        ("retry", {"revived": 50_012}, "50,012 retried."),
        ("run_now", {"hastened": 1, "refused": 2}, "1 due now, 2 did not wait for a later time."),
        ("snooze", {"snoozed": 3}, "3 put off."),
        ("change_queue", {"moved": 1}, "1 moved."),
        ("delete_finished", {"deleted": 2, "refused": 1}, "2 deleted, 1 had not finished."),
    ],
)  # fmt: skip
def test_a_summary_is_honest(verb, counts, expected):
    assert operations.summary(operations.VERBS[verb], counts) == expected


@pytest.mark.fast
def test_a_retry_that_is_posted_twice_changes_the_task_once(client):
    task = a_task(State.DEAD, failures=5)
    assert messages(act(client, "retry", [task])) == ["1 retried."]
    assert messages(act(client, "retry", [task])) == ["0 retried, 1 was neither dead nor canceled."]
    second = client.post(button("retry", task), follow=True)
    assert messages(second) == ["0 retried, 1 was neither dead nor canceled."]
    assert LogEntry.objects.count() == 1


def test_two_who_retry_a_task_at_the_same_time_make_one_retry(transactional_db):
    clients = [a_client(*ALL) for _ in range(4)]
    task = a_task(State.DEAD)

    def press(client):
        try:
            return client.post(button("retry", task)).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(press, clients)] == [302] * 4
    assert fresh(task).state == State.PENDING
    assert LogEntry.objects.count() == 1


def test_a_retry_keeps_the_history_and_starts_the_budget_anew(client):
    task = a_task(State.DEAD, failures=5, error_class="tests.Boom")
    an_attempt(task, number=5, message="the old error", ended_at=ago(60), started_at=ago(61))
    client.post(button("retry", task))
    seen = shown(client.get(page_of(task)))
    assert "the old error" in seen
    assert "0/5" in seen
    assert f"by {client.user.username}" in seen


@pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED, State.PENDING])
def test_a_task_that_is_neither_dead_nor_canceled_is_not_retried(client, state):
    task = a_task(state)
    before = everything()
    assert messages(act(client, "retry", [task])) == ["0 retried, 1 was neither dead nor canceled."]
    assert everything() == before


def test_run_now_makes_a_scheduled_task_due(client):
    task = a_task(run_at=ahead(3600))
    assert messages(act(client, "run_now", [task])) == ["1 due now."]
    assert "Ready: waits" in shown(client.get(page_of(task)))


def test_500_rows_of_mixed_states_are_changed_and_counted_by_reason(client):
    states = [State.DEAD, State.PENDING, State.RUNNING, State.COMPLETED, State.CANCELED]
    tasks = [a_task(states[number % 5]) for number in range(500)]
    assert messages(act(client, "retry", tasks)) == ["200 retried, 300 were neither dead nor canceled."]
    assert Task.objects.filter(state=State.PENDING).count() == 300
    assert LogEntry.objects.count() == 200


def test_a_large_selection_is_changed_in_chunks(client, monkeypatch):
    monkeypatch.setattr(operations, "CHUNK", 7)
    tasks = [a_task(State.DEAD) for _ in range(60)]
    assert messages(act(client, "retry", tasks)) == ["60 retried."]


@pytest.mark.parametrize("ids", [["x"], ["1", "' OR 1=1"]])
def test_a_selection_of_what_is_no_id_is_a_bad_request(client, ids):
    assert client.post(LIST, {"action": "cancel", "_selected_action": ids, "confirmed": "1"}).status_code == 400


@pytest.mark.parametrize(("model", "verb"), [("worker", "drain"), ("token", "revoke")])
@pytest.mark.parametrize("id_", ["", "x", "a\x00b", "-", "1" * 5000, "\u202e"])
def test_so_is_one_of_workers_or_tokens(db, model, verb, id_):
    posted = {"action": verb, "_selected_action": [id_], "confirmed": "1"}
    assert a_client(superuser=True).post(f"/admin/dhara/{model}/", posted).status_code == 400


def test_a_button_is_shown_only_where_it_would_change_something(db):
    client = a_client(superuser=True)
    moves = ["snooze", "change_priority", "change_queue"]
    useful = {
        a_task(): ["cancel", *moves],
        a_task(run_at=ahead(60)): ["run_now", "cancel", *moves],
        a_task(State.RUNNING): ["cancel"],
        a_task(State.RUNNING, cancel_requested_at=Now()): [],
        a_task(State.COMPLETED): ["delete_finished"],
        a_task(State.DEAD): ["retry", "copy", "delete_finished"],
        a_task(State.CANCELED): ["retry", "copy", "delete_finished"],
    }
    for task, verbs in useful.items():
        assert [shown.verb.name for shown in client.get(page_of(task)).context["buttons"]] == verbs


# Workers


@pytest.mark.fast
def test_the_list_of_workers_tells_who_lives_and_what_each_runs(client):
    worker = a_worker(queues=["email", "default"], started_at=ago(7200), heartbeat_at=ago(4))
    task = a_task(State.RUNNING, attempted_at=ago(9), function="shop.tasks.send")
    response = client.get("/admin/dhara/worker/")
    line = r"✓ Alive heard \d+ s ago w1 box7:4711 0\.1\.0, up 2 h email, default 1/10 send \d+ s ago 0 runs –"
    assert re.search(line, shown(response))
    assert page_of(task) in response.content.decode()
    assert "shop.tasks.send" in shown(client.get(f"/admin/dhara/worker/{worker.pk}/change/"))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, "Alive"),
        ({"heartbeat_at": ago(31)}, "Late"),
        ({"draining_at": ago(1)}, "Draining"),
        ({"stopped_at": ago(60)}, "Stopped"),
    ],
)
def test_a_worker_is_alive_late_draining_or_stopped(client, columns, expected):
    a_worker(**columns)
    body = shown(client.get("/admin/dhara/worker/?status=all"))
    assert re.search(rf"{expected} [\w ]+ w1 box7:4711", body)


def test_a_worker_that_runs_much_names_five_tasks_and_links_to_all(client):
    a_worker()
    for _ in range(8):
        a_task(State.RUNNING)
    with queries() as made:
        body = client.get("/admin/dhara/worker/").content.decode()
    assert body.count("/admin/dhara/task/") - body.count('"/admin/dhara/task/"') == 6
    address = f"/admin/dhara/task/?state=RUNNING&worker={WORKER}"
    assert address in unescape(body)
    assert len(client.get(address).context["cl"].result_list) == 8
    assert len(made) <= 18


# Databases


@pytest.fixture
def second_database(transactional_db, settings):
    """An alias `queue`: the same database, but its Dhara tables are others, in a schema of their own."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA second")
        for table in ("task", "attempt", "worker", "queue", "command", "minute", "quarter"):
            cursor.execute(f"CREATE TABLE second.dhara_{table} (LIKE public.dhara_{table} INCLUDING ALL)")
    options = {**connection.settings_dict.get("OPTIONS", {}), "options": "-c search_path=second"}
    far = type(connections["default"])({**connection.settings_dict, "OPTIONS": options}, "queue")
    # Open before the alias is known: tests may not open a connection to an alias that they have not announced.
    far.ensure_connection()
    connections.settings["queue"], connections["queue"] = far.settings_dict, far
    backend = settings.TASKS["default"]
    settings.TASKS = {"default": backend, "far": {**backend, "OPTIONS": {"DATABASE": "queue"}}, "same": backend}
    yield "queue"
    far.close()
    del connections["queue"], connections.settings["queue"]
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA second CASCADE")


def far_task(alias, state, **columns):
    values = {"backend": "far", "function": "far.away", "queue": "q", "state": state, "payload": {}}
    values |= {"finished_at": Now()} if state in (State.DEAD, State.COMPLETED) else {}
    return Task.objects.using(alias).create(**values, **columns)


def test_each_database_that_holds_a_queue_has_a_list_and_its_tasks_their_pages(second_database):
    client = a_client(*ALL)
    near, far = a_task(function="near.by"), far_task(second_database, State.DEAD)
    assert databases.aliases() == ["default", "queue"]
    assert [row.pk for row in client.get(LIST).context["cl"].result_list] == [near.pk]
    response = client.get(LIST, {"database": "queue", "state": "DEAD"})
    assert [row.pk for row in response.context["cl"].result_list] == [far.pk]
    assert "Database default queue" in shown(response)
    assert "far.away" in shown(client.get(page_of(far)))
    assert messages(act(client, "retry", [far], address=LIST + "?database=queue")) == ["1 retried."]
    assert messages(client.post(button("cancel", far), follow=True)) == ["1 canceled."]
    assert Task.objects.using(second_database).get().state == State.CANCELED
    assert LogEntry.objects.using("default").count() == 2


def test_links_to_tasks_stay_in_their_database(second_database):
    client = a_client(superuser=True)
    waiting, dead = far_task(second_database, State.PENDING), far_task(second_database, State.DEAD)
    Worker.objects.using(second_database).create(
        id=WORKER, backend="far", name="w", host="h", pid=1, version="1", concurrency=1, lease_seconds=30.0
    )
    for _ in range(NAMED_ON_PAGE + 1):
        running = {
            "lease": 1,
            "lease_until": ahead(60),
            "worker_id": WORKER,
            "attempted_at": Now(),
            "started_at": Now(),
        }
        far_task(second_database, State.RUNNING, **running)
    pages = [
        page_of(waiting),
        page_of(dead),
        "/admin/dhara/queue/far_3Aq/change/",
        f"/admin/dhara/worker/{WORKER}/change/",
    ]
    for page in (*pages, "/admin/dhara/queue/?database=queue", "/admin/dhara/worker/?database=queue"):
        found = re.findall(r'href="(/admin/dhara/task/\?[^"]*)"', client.get(page).content.decode())
        assert found, page
        assert all("database=queue" in link for link in found), (page, found)


def test_an_action_never_reaches_into_the_other_database(second_database):
    client = a_client(*ALL)
    far = far_task(second_database, State.DEAD)
    assert messages(act(client, "retry", [far])) == ["0 retried, 1 no longer exists."]
    assert Task.objects.using(second_database).get().state == State.DEAD


def test_a_router_that_reads_from_a_replica_is_not_asked(client, settings):
    settings.DATABASE_ROUTERS = ["tests.test_admin.Replica"]
    task = a_task(State.DEAD)
    assert client.get(LIST).status_code == 200
    assert client.get(page_of(task)).status_code == 200
    assert messages(act(client, "retry", [task])) == ["1 retried."]


class Replica:
    """A router that sends every read of our models to an alias that does not exist."""

    def db_for_read(self, model, **hints):
        return "replica" if model._meta.app_label == "dhara" else None


def test_a_backend_with_mistakes_does_not_hide_the_others(settings):
    ours = settings.TASKS["default"]
    settings.TASKS = {
        "gone": {"BACKEND": "no.such.Backend"},
        "django": {"BACKEND": "django_dhara.compat.BaseTaskBackend"},
        "odd": {**ours, "OPTIONS": {"DATABASE": "nowhere"}},
        "wrong": {**ours, "OPTIONS": {"LEASE_SECONDS": "x"}},
        "default": ours,
    }
    assert databases.aliases() == ["default"]
    settings.TASKS = {}
    assert databases.aliases() == ["default"]


# Text


@pytest.mark.fast
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (0.0004, "0.001 s"),
        (0.25, "0.25 s"),
        (40.2, "40 s"),
        (59.6, "1 min"),
        (299.99, "5 min"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 90, "90 d"),
    ],
)
def test_a_span_is_short(seconds, expected):
    assert text.span(seconds) == expected


@pytest.mark.fast
@pytest.mark.parametrize(
    ("json", "expected"),
    [
        ("{}", "{}"),
        ('{"a": [1, 2], "b": {}}', '{\n  "a": [\n    1,\n    2\n  ],\n  "b": {}\n}'),
        ('{"args": [5]}', '{\n  "args": [5]\n}'),
        ('"[{,:}] \\" \\\\"', '"[{,:}] \\" \\\\"'),
        ('{"cut": "in the mid', '{\n  "cut": "in the mid'),
        ('"a\u202eb\x85"', '"a\\u202eb\\x85"'),
        ("", ""),
    ],
)
def test_json_is_indented_by_its_brackets_and_never_parsed(json, expected):
    assert text.pretty(json, 1000) == expected


def test_json_of_many_levels_or_items_stays_small():
    assert len(text.pretty("[" * 20_000, 20_000)) < 22_000
    assert len(text.pretty("[" + "1, " * 10_000, 20_000)) < 22_000


def test_names_lose_no_letter_that_can_be_read():
    assert text.visible("ünïcode שלום 👍 a\tb\r\n") == "ünïcode שלום 👍 a\\tb\\r\\n"
    assert text.visible_lines("a\n\tb\r\x00") == "a\n\tb\\r\\x00"


def test_times_far_apart_are_told_in_days():
    from django.utils import timezone

    now = timezone.now()
    assert text.relative(now + timedelta(days=3), now) == "in 3 d"
    assert text.relative(now - timedelta(seconds=0.4), now) == "now"


# Where one is


def trail(response):
    """The element of the breadcrumbs, and their words."""
    [(element, inside)] = re.findall(
        r'<(\w+) class="breadcrumbs">(.*?)</\1>', response.content.decode(), flags=re.DOTALL
    )
    return element, [unescape(word).strip() for word in re.split(r"<[^>]*>|&rsaquo;", inside) if word.strip()]


@pytest.mark.fast
def test_every_page_has_its_trail_as_djangos_own_pages_have(db):
    client, task, worker = a_client(superuser=True), a_task(State.DEAD, function="shop.pay"), a_worker()
    change = BulkChange.objects.create(verb="revive", search="state:dead")
    token, _secret = tokens.create("ci", ["read"])
    Queue.objects.create(backend="default", name="default", paused_at=ago(5))
    selected = {"_selected_action": str(task.pk), "action": "retry"}
    pages = {
        ("Tasks",): client.get(LIST),
        ("Tasks", f"shop.pay {task.pk}"): client.get(page_of(task)),
        ("Tasks", "Retry 1 task?"): client.post(LIST, selected),
        ("Tasks", "Dead letters"): client.get(LIST + "dead/"),
        ("Tasks", "Dead letters", "shop.pay"): client.get(LIST + "dead/group/?backend=default&function=shop.pay"),
        ("Queues",): client.get("/admin/dhara/queue/"),
        ("Queues", "default"): client.get("/admin/dhara/queue/default_3Adefault/change/"),
        ("Workers",): client.get("/admin/dhara/worker/"),
        ("Workers", worker.name): client.get(f"/admin/dhara/worker/{worker.pk}/change/"),
        ("Workers", "Drain 1 worker?"): client.post(
            "/admin/dhara/worker/", {"_selected_action": str(worker.pk), "action": "drain"}
        ),
        ("Workers", worker.name, "Drain 1 worker?"): client.post(f"/admin/dhara/worker/{worker.pk}/drain/"),
        ("Tasks", task.function, "Delete 1 task, if it has finished?"): client.post(
            f"/admin/dhara/task/{task.pk}/delete_finished/"
        ),
        ("Bulk changes",): client.get("/admin/dhara/bulkchange/"),
        ("Bulk changes", "Retry"): client.get(f"/admin/dhara/bulkchange/{change.pk}/change/"),
        ("Tokens",): client.get("/admin/dhara/token/"),
        ("Tokens", "Revoke 1 token?"): client.post(
            "/admin/dhara/token/", {"_selected_action": str(token.pk), "action": "revoke"}
        ),
        ("Tokens", "Add a token"): client.get("/admin/dhara/token/add/"),
        ("Tokens", "A new token"): client.post("/admin/dhara/token/add/", {"name": "shop", "scopes": ["read"]}),
    }
    django, _words = trail(client.get("/admin/auth/user/"))
    for words, response in pages.items():
        assert trail(response) == (django, ["Home", "Dhara task queue", *words])
