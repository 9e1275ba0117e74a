"""The admin's pages of queues and workers: what they tell, who may change what, and what it costs."""

import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote as percent
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connection, connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dhara import operations, stats
from django_dhara.admin import backlog, crew, spark
from django_dhara.models import Command, Queue, Task
from django_dhara.states import State
from tests import test_plans
from tests.minutes import a_crew, a_minute, an_afternoon
from tests.rows import OTHER_WORKER, WORKER, a_task, ago, ahead
from tests.test_admin import a_client, a_worker, is_not_pressed, messages, page_of, second_database, shown  # noqa: F401
from tests.test_plans import without_statistics  # noqa: F401

LIST, WORKERS = "/admin/dhara/queue/", "/admin/dhara/worker/"
ALL = ("view_task", "view_queue", "pause_queue", "view_worker", "drain_worker", "view_stacks")
#: A moment that has just been, on a machine that may be busy.
NOW = r"(now|\d+ s ago)"
NASTY = '<script>alert("x")</script>\u202emoc.live'


@pytest.fixture
def client(db):
    return a_client(*ALL)


def queue_page(queue, backend="default", verb="change"):
    return reverse(f"admin:dhara_queue_{verb}", args=[quote(backlog.key(backend, queue))])


def worker_page(worker, verb="change"):
    return f"{WORKERS}{worker.pk}/{verb}/"


# The list of queues


@pytest.mark.fast
def test_the_list_has_every_queue_that_is_known_from_anywhere(client, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["configured"]}}
    a_task(queue="waiting")
    a_task(queue="suspected", lost=1)
    a_task(State.RUNNING, queue="running")
    a_task(State.COMPLETED, queue="long ago")
    a_minute(90, queue="served")
    Queue.objects.create(backend="default", name="paused once")
    names = [row.row.queue for row in client.get(LIST).context["rows"]]
    assert names == ["configured", "paused once", "running", "served", "suspected", "waiting"]


@pytest.mark.fast
def test_a_line_tells_how_much_waits_how_fast_it_goes_and_who_serves_it(client):
    a_worker(queues=["mail"])
    for seconds in (40, 20):
        a_task(queue="mail", run_at=ago(seconds))
    a_task(queue="mail", run_at=ahead(60))
    a_task(State.RUNNING, queue="mail")
    a_minute(2, queue="mail", completed=30, failed=3, wait_histogram={"16": 33})
    a_minute(30, queue="mail", completed=60, wait_histogram={"20": 60})
    body = shown(client.get(LIST))
    assert re.search("mail ✓ Open 2 4. s 1 1", body)
    [line] = client.get(LIST).context["rows"]
    assert (line.recent.failed, line.hour.failed, line.row.past()[0].runs) == ("3", "3", 93)
    assert (line.recent.latency, line.hour.latency) == ("252 ms", "997 ms")
    assert line.recent.rate == "6.0" or 5 < float(line.recent.rate) <= 6.6
    assert len(line.row.servers) == 1


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({}, "Open"),
        ({"queues": ["mail"]}, "Open"),
        ({"queues": ["other"]}, "Not served"),
        ({"exclude_queues": ["mail"]}, "Not served"),
        ({"backend": "other"}, "Not served"),
        ({"draining_at": ago(1)}, "Not served"),
        ({"heartbeat_at": ago(31)}, "Not served"),
        ({"stopped_at": ago(1)}, "Not served"),
    ],
)
def test_a_queue_with_ready_tasks_that_nobody_serves_stands_out(client, worker, expected):
    a_worker(**worker)
    a_task(queue="mail")
    body = shown(client.get(LIST))
    assert f"mail {'✓' if expected == 'Open' else '!'} {expected}" in body
    assert ("has ready tasks, and no worker that is alive takes it" in body) is (expected == "Not served")


def test_a_queue_whose_tasks_wait_for_long_is_behind(client):
    a_worker()
    a_task(queue="mail", run_at=ago(90))
    assert "mail ▾ Behind" in shown(client.get(LIST))
    assert "It is behind: its oldest ready task waits for" in shown(client.get(queue_page("mail")))


def test_suspects_stand_beside_the_ready_ones(client):
    a_task(queue="mail", lost=2)
    assert "mail ! Not served 0 +1" in shown(client.get(LIST))
    assert "1 of its tasks was running when a worker died" in shown(client.get(queue_page("mail")))


def test_a_count_that_stopped_says_so(client, monkeypatch):
    for _ in range(5):
        a_task(queue="mail", run_at=ahead(60))
    real = stats.waiting
    monkeypatch.setattr(stats, "waiting", lambda *args: [w._replace(is_capped=True) for w in real(*args)])
    assert "mail ✓ Open 0 – 5+" in shown(client.get(LIST))


def test_what_cannot_be_read_in_time_is_said_and_the_rest_is_shown(client, monkeypatch):
    def slow(*args, **kwargs):
        raise stats.TooSlow

    a_task(queue="mail")
    for name in ("series", "totals", "workers"):
        monkeypatch.setattr(stats, name, slow)
    body = shown(client.get(LIST))
    assert "could not be read in time" in body
    assert "mail" in body


def test_numbers_lead_to_their_tasks_for_those_who_may_see_them(client):
    a_task(queue="m&m", run_at=ahead(60))
    address = f'href="/admin/dhara/task/?is=scheduled&amp;queue={percent("m&m")}"'
    assert address in client.get(LIST).content.decode()
    assert address in client.get(queue_page("m&m")).content.decode()
    blind = a_client("view_queue")
    for page in (LIST, queue_page("m&m")):
        assert "/admin/dhara/task/?" not in blind.get(page).content.decode()


# The page of a queue


@pytest.mark.fast
def test_the_page_of_a_queue_tells_all_of_it(client):
    an_afternoon()
    a_crew()
    body = shown(client.get(queue_page("email")))
    for told in ("3 living workers serve it.", "Ready 60", "shop.orders.tasks.send_receipt", "box7:4001", "p50 / p95"):
        assert told in body
    assert client.get(queue_page("email")).content.decode().count("dhara-plot") == 3


def test_a_queue_that_nobody_knows_has_no_page(client):
    for key in ("default:nobody", "nonsense", "default:", "gone%3A:x"):
        response = client.get(f"{LIST}{quote(key)}/change/", follow=True)
        assert "There is no queue" in messages(response)[0]


@pytest.mark.parametrize("queue", ["a/b", "a:b", "ü_3A", "100%", "a b?c=d#e", NASTY, "x" * 255])
def test_any_name_has_a_page_a_pause_and_a_resume(client, queue):
    a_task(queue=queue)
    assert client.get(LIST).status_code == 200
    for verb, paused in (("pause", True), ("resume", False)):
        response = client.post(queue_page(queue, verb=verb), follow=True)
        assert response.redirect_chain[-1][0] == queue_page(queue)
        assert "<script>alert" not in response.content.decode()
        assert "\u202e" not in response.content.decode()
        assert (Queue.objects.get().name, Queue.objects.get().paused_at is not None) == (queue, paused)
    entry = LogEntry.objects.first()
    assert client.get(entry.get_admin_url()).status_code == 200


# Pause and resume


@pytest.mark.fast
def test_a_pause_tells_since_when_and_by_whom(client):
    a_task(queue="mail")
    response = client.post(queue_page("mail", verb="pause"), {"list": "1"}, follow=True)
    assert messages(response) == ["Queue mail is paused: workers claim nothing more of it."]
    assert re.search(rf"Queue mail has been paused for \d+ s by {client.user.username}", shown(response))
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_repr, entry.change_message) == (client.user, "mail", "Paused.")
    assert entry.action_time == Queue.objects.get().paused_at
    response = client.post(queue_page("mail", verb="resume"), follow=True)
    assert messages(response) == ["Queue mail is resumed."]
    assert re.search(rf"Resumed\. {NOW}, {client.user.username}", shown(response))


def test_a_second_click_changes_nothing_and_leaves_no_entry(client):
    a_task(queue="mail")
    for expected in ("Queue mail is paused: workers claim nothing more of it.", "Queue mail was paused already."):
        assert messages(client.post(queue_page("mail", verb="pause"), follow=True)) == [expected]
    for expected in ("Queue mail is resumed.", "Queue mail was not paused."):
        assert messages(client.post(queue_page("mail", verb="resume"), follow=True)) == [expected]
    assert LogEntry.objects.count() == 2


def test_a_queue_that_nothing_else_knows_is_forgotten_when_it_is_resumed(client):
    operations.pause("mial")
    response = client.post(queue_page("mial", verb="resume"), follow=True)
    assert response.redirect_chain[-1][0].partition("?")[0] == LIST
    assert messages(response) == ["Queue mial is resumed, and on no list any more: nothing else knows it."]
    assert not Queue.objects.exists()
    assert LogEntry.objects.get().change_message == "Resumed."


def test_a_queue_of_a_backend_that_tasks_does_not_know_stays(client):
    Queue.objects.create(backend="gone", name="mail", paused_at=Now())
    response = client.post(queue_page("mail", backend="gone", verb="resume"), follow=True)
    assert messages(response) == ["Queue mail is resumed."]
    assert Queue.objects.get().paused_at is None


def test_a_pause_from_elsewhere_has_no_author(client):
    a_task(queue="mail")
    client.post(queue_page("mail", verb="pause"))
    operations.resume("mail")
    operations.pause("mail")
    assert re.search(r"has been paused for \d+ s: workers", shown(client.get(LIST)))


def test_two_people_who_pause_at_once_make_one_change_and_one_entry(transactional_db):
    a_task(queue="mail")
    clients = [a_client(*ALL) for _ in range(4)]

    def press(client):
        try:
            return client.post(queue_page("mail", verb="pause")).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(press, clients)] == [302] * 4
    assert LogEntry.objects.get().action_time == Queue.objects.get().paused_at


@pytest.mark.parametrize("right", ["view_queue", "pause_queue"])
def test_who_may_not_pause_sees_no_button_and_is_refused(db, right):
    a_task(queue="mail")
    client = a_client(right)
    if right == "view_queue":
        for page in (LIST, queue_page("mail")):
            body = client.get(page).content.decode()
            assert "/pause/" not in body
            assert "csrfmiddlewaretoken" not in body.split('id="content-main"')[1]
    for verb in ("pause", "resume"):
        assert client.post(queue_page("mail", verb=verb)).status_code == 403
    assert not Queue.objects.exists()


def test_nobody_looks_without_the_right_to_and_nothing_is_posted_to_a_page(db):
    a_task(queue="mail")
    stranger = a_client("view_task")
    assert [stranger.get(page).status_code for page in (LIST, queue_page("mail"))] == [403, 403]
    client = a_client(*ALL)
    assert [client.post(page).status_code for page in (LIST, queue_page("mail"))] == [403, 403]
    assert is_not_pressed(client, queue_page("mail", verb="pause"), queue_page("mail"))


def test_a_pause_needs_the_token_against_forgery(client):
    a_task(queue="mail")
    client.handler.enforce_csrf_checks = True
    assert client.post(queue_page("mail", verb="pause")).status_code == 403


# Where else a pause is told


def test_a_pause_says_since_when_and_by_whom_wherever_it_is_told(client):
    task = a_task(queue="mail", run_at=ago(5))
    client.post(queue_page("mail", verb="pause"))
    for address in (LIST, queue_page("mail"), "/admin/dhara/task/", page_of(task)):
        assert re.search(rf"paused for \d+ s by {client.user.username}:", shown(client.get(address))), address
    assert re.search(rf"1 task waits\. since \d+ s by {client.user.username}", shown(client.get("/admin/dhara/")))
    Task.objects.all().delete()
    overview = shown(client.get("/admin/dhara/"))
    assert re.search(rf"mail is paused; no task of it is due\. since \d+ s by {client.user.username}", overview)
    assert "its tasks wait" not in shown(client.get("/admin/dhara/task/"))


def test_the_list_of_tasks_and_the_page_of_one_tell_of_a_pause(client):
    task = a_task(queue="mail")
    a_task(queue="other")
    operations.pause("mail")
    tasks = "/admin/dhara/task/"
    for query in ("", "?q=state:pending", "?q=queue:mail", "?q=-queue:other"):
        assert "Queue mail has been paused for" in shown(client.get(tasks + query)), query
    for query in ("?q=queue:other", "?q=state:dead"):
        assert "has been paused for" not in shown(client.get(tasks + query)), query
    body = client.get(page_of(task)).content.decode()
    assert '<strong class="dhara-alert' in body
    assert queue_page("mail") in body


# Workers


@pytest.mark.fast
def test_the_list_of_workers_tells_slots_memory_and_what_was_settled(client):
    worker = a_worker(memory_bytes=210_000_000, concurrency=2)
    for _ in range(3):
        a_task(State.RUNNING)
    a_minute(1, worker_id=WORKER, completed=40, failed=2)
    body = shown(client.get(WORKERS))
    assert "2/2 +1" in body
    assert "200.3\xa0MB" in body or "200.3 MB" in body
    assert "42 runs 2 failed" in body
    page = shown(client.get(worker_page(worker)))
    for told in ("It lives: it said so", "Slots busy 2/2 +1", "42 runs 2 failed", "Memory 200.3"):
        assert told in page


@pytest.mark.parametrize(
    ("columns", "status", "says"),
    [
        ({"heartbeat_at": ago(31)}, None, "longer than its lease of 30 s: it died"),
        ({"draining_at": ago(3)}, None, "It drains: it claims"),
        ({"heartbeat_at": ago(301)}, "lost", "It is lost: silent for 5 min"),
        ({"heartbeat_at": ago(301)}, "lost_lately", "It is lost: silent for 5 min"),
        ({"stopped_at": ago(301), "heartbeat_at": ago(310)}, "stopped", "It stopped 5 min ago"),
    ],
)
def test_who_is_gone_stands_behind_a_filter(client, columns, status, says):
    worker = a_worker(**columns)
    assert ("box7:4711" in shown(client.get(WORKERS))) is (status is None)
    for query in (status, "all") if status else ("all",):
        assert "box7:4711" in shown(client.get(WORKERS, {"status": query}))
    assert says in shown(client.get(worker_page(worker)))
    assert client.get(WORKERS, {"status": "x"}).status_code == 302


def test_workers_are_found_by_host_name_and_version(client):
    a_worker()
    a_worker(id=OTHER_WORKER, host="other", name="second", pid=5, version="9.9")
    for term, pid in (("box", 4711), ("second", 5), ("9.9", 5)):
        assert [worker.pid for worker in client.get(WORKERS, {"q": term}).context["cl"].result_list] == [pid]


def test_a_worker_is_called_by_its_name_everywhere_with_its_process_where_that_does_not_say_it(client):
    worker = a_worker(name="smooth")
    task = a_task(State.RUNNING, queue="mail", lease_until=ahead(30))
    for address in (WORKERS, worker_page(worker), queue_page("mail"), page_of(task), "/admin/dhara/"):
        assert "smooth box7:4711" in shown(client.get(address)) or address == worker_page(worker), address
    page = shown(client.get(worker_page(worker)))
    assert "smooth ✓ Alive" in page
    assert "Process box7:4711" in page
    worker.name = "box7:4711"
    worker.save()
    assert "box7:4711 box7:4711" not in shown(client.get(WORKERS))


def test_a_worker_that_died_was_up_until_its_last_sign_of_life(client):
    a_worker(started_at=ago(4000), heartbeat_at=ago(400))
    assert "was up 1 h" in shown(client.get(WORKERS, {"status": "lost"}))
    assert "0.1.0, up" not in shown(client.get(WORKERS, {"status": "lost"}))


def test_the_overview_leads_to_exactly_the_workers_of_which_it_speaks(client):
    for number, silent in enumerate((1, 40, 310, 3000, 4000)):
        a_worker(id=uuid4(), pid=number, name=f"w{number}", heartbeat_at=ago(silent))
    body = client.get("/admin/dhara/").content.decode()
    told = {"late": [1], "lost_lately": [2, 3]}
    for status, pids in told.items():
        address = f"{WORKERS}?status={status}"
        assert f'href="{address}"' in body
        assert sorted(one.pid for one in client.get(address).context["cl"].result_list) == pids
    seen = shown(client.get("/admin/dhara/"))
    assert "1 worker is late, silent for longer than its lease: w1." in seen
    assert "2 workers are lost" in seen


@pytest.mark.fast
def test_one_worker_is_drained_once_with_an_entry(client):
    worker = a_worker()
    asked = client.post(worker_page(worker, "drain"))
    assert "Drain 1 worker?" in shown(asked)
    assert f'href="{worker_page(worker)}"' in asked.content.decode(), "the way back"
    assert not Command.objects.exists()
    response = client.post(worker_page(worker, "drain"), {"confirmed": "yes"}, follow=True)
    assert messages(response) == ["1 worker asked to drain."]
    body = shown(response)
    assert re.search(f"Drain {NOW}, no answer yet", body)
    assert re.search(rf"Asked to drain\. {NOW}, {client.user.username}", body)
    assert messages(client.post(worker_page(worker, "drain"), {"confirmed": "yes"}, follow=True)) == [
        "0 workers asked to drain, 1 drains already or is gone."
    ]
    assert Command.objects.get().verb == "DRAIN"
    assert LogEntry.objects.count() == 1


def test_selected_workers_are_drained_after_a_question(client):
    one, gone = a_worker(), a_worker(id=OTHER_WORKER, stopped_at=ago(1))
    selected = {"action": "drain", "_selected_action": [str(one.pk), str(gone.pk)]}
    asked = shown(client.post(f"{WORKERS}?status=all", selected))
    assert "Drain 2 workers?" in asked
    assert "A supervisor" in asked
    assert not Command.objects.exists()
    response = client.post(f"{WORKERS}?status=all", {**selected, "confirmed": "yes"}, follow=True)
    assert messages(response) == ["1 worker asked to drain, 1 drains already or is gone."]
    assert Command.objects.get().worker_id == one.pk


def test_stacks_are_shown_by_what_threads_do_the_same(client):
    worker = a_worker()
    assert messages(client.post(worker_page(worker, "stacks"), follow=True)) == [
        "Asked: the answer stands below in a moment."
    ]
    answer = {f"idle {n}": "in get" for n in range(5)} | {"busy 9": f"in shrink\nin {NASTY}\n" + "x" * 9000}
    Command.objects.update(answer=answer, answered_at=ago(3))
    body = client.get(worker_page(worker)).content.decode()
    assert "5 threads do the same" in shown(client.get(worker_page(worker)))
    assert "in get" in body
    assert "<script>alert" not in body
    assert body.count("x" * 5000) == 1
    assert "x" * (crew.STACK + 1) not in body


def test_of_the_threads_the_one_in_the_projects_code_stands_first_and_says_where(client):
    """A function that hangs is what one looks for; the control loop has the longest stack."""
    ours = '  File "/x/site-packages/django_dhara/worker/loop.py", line 9, in _serve\n    wait()\n'
    answer = {
        "MainThread 1": '  File "/srv/shop/manage.py", line 9, in <module>\n    main()\n' + 20 * ours,
        "dhara-run 2": 9 * ours,
        "dhara-run 3": ours + '  File "/srv/shop/stock.py", line 17, in fetch_all\n    get()\n' + ours,
    }
    worker = a_worker()
    Command.objects.create(worker_id=worker.pk, verb="STACKS", answer=answer, answered_at=ago(3))
    stacks = client.get(worker_page(worker)).context["stacks"]
    assert [stack.names for stack in stacks] == ["dhara-run 3", "dhara-run 2", "MainThread 1"]
    assert "1 thread srv/shop/stock.py:17, fetch_all dhara-run 3" in shown(client.get(worker_page(worker)))


@pytest.mark.parametrize("answer", ["draining", [1, 2], 5, None, {"a": {"b": None}}])
def test_an_answer_of_another_shape_breaks_nothing(client, answer):
    worker = a_worker()
    Command.objects.create(worker_id=worker.pk, verb="STACKS", answer=answer, answered_at=ago(3))
    assert client.get(worker_page(worker)).status_code == 200


def test_an_order_that_was_never_answered_is_told(client):
    worker = a_worker(heartbeat_at=ago(400))
    Command.objects.create(worker_id=worker.pk, verb="DRAIN", created_at=ago(500))
    body = shown(client.get(worker_page(worker)))
    assert "never answered: it was gone" in body
    assert "/drain/" not in client.get(worker_page(worker)).content.decode()


@pytest.mark.parametrize(("verb", "right"), [("drain", "drain_worker"), ("stacks", "view_stacks")])
def test_who_may_not_sees_no_button_and_is_refused(db, verb, right):
    worker = a_worker()
    Command.objects.create(worker_id=worker.pk, verb="STACKS", answer={"t": "secret stack"}, answered_at=ago(3))
    client = a_client("view_worker", *{"drain_worker", "view_stacks"} - {right})
    body = client.get(worker_page(worker)).content.decode()
    assert f"/{verb}/" not in body
    assert ("secret stack" in body) is (verb == "drain")
    assert client.post(worker_page(worker, verb)).status_code == 403
    assert a_client(right).post(worker_page(worker, verb)).status_code == 403
    assert not Command.objects.filter(answered_at=None).exists()


def test_the_action_is_refused_without_its_right(db):
    worker = a_worker()
    client = a_client("view_worker")
    selected = {"action": "drain", "_selected_action": [str(worker.pk)], "confirmed": "yes"}
    assert client.post(WORKERS, selected).status_code == 403
    assert not Command.objects.exists()


def test_a_worker_that_is_gone_has_no_page(client):
    response = client.get(f"{WORKERS}{WORKER}/change/", follow=True)
    assert "its row goes a day after its last word" in messages(response)[0]
    assert client.post(f"{WORKERS}{WORKER}/drain/").url == WORKERS
    assert is_not_pressed(client, f"{WORKERS}{WORKER}/drain/", f"{WORKERS}{WORKER}/change/")


def test_hostile_rows_look_right(client):
    worker = a_worker(name=NASTY, host=NASTY, version=NASTY, queues=[NASTY], exclude_queues=[1, NASTY])
    a_task(State.RUNNING, function=NASTY, queue=NASTY)
    a_minute(1, queue=NASTY, function=NASTY, worker_id=WORKER, completed=1)
    for page in (LIST, queue_page(NASTY), WORKERS, worker_page(worker)):
        body = client.get(page).content.decode()
        assert "<script>alert" not in body
        assert "\u202e" not in body


# Several databases


def test_queues_of_another_database_are_paused_there(second_database, settings):
    client = a_client(*ALL)
    a_task(queue="near")
    Task.objects.using("queue").create(backend="far", queue="away", function="f", payload={})
    assert "near" in shown(client.get(LIST))
    body = shown(client.get(LIST, {"database": "queue"}))
    assert "away" in body
    assert "near" not in body
    response = client.post(queue_page("away", "far", "pause"), {"list": "1"}, follow=True)
    assert messages(response) == ["Queue away is paused: workers claim nothing more of it."]
    assert response.redirect_chain[-1][0] == f"{LIST}?database=queue"
    assert Queue.objects.using("queue").get().paused_at is not None
    assert not Queue.objects.exists()


def test_a_queue_of_a_backend_that_tasks_does_not_know_has_a_page(client):
    a_task(queue="mail", backend="gone")
    address = f"{queue_page('mail', 'gone')}?database=default"
    assert address in client.get(LIST).content.decode()
    assert client.get(address).status_code == 200
    assert client.post(f"{queue_page('mail', 'gone', 'pause')}?database=default").status_code == 302
    assert Queue.objects.get().backend == "gone"


def test_a_router_that_reads_from_a_replica_is_not_asked(client, settings):
    settings.DATABASE_ROUTERS = ["tests.test_admin.Replica"]
    a_task(queue="mail")
    worker = a_worker()
    for page in (LIST, queue_page("mail"), WORKERS, worker_page(worker)):
        assert client.get(page).status_code == 200
    assert client.post(queue_page("mail", verb="pause")).status_code == 302
    assert client.post(worker_page(worker, "drain"), {"confirmed": "yes"}).status_code == 302


# What it costs


def test_many_queues_and_workers_cost_no_query_each(client):
    def made(page):
        with CaptureQueriesContext(connections["default"]) as found:
            assert client.get(page).status_code == 200
        return len(found)

    a_crew()
    pages = (LIST, queue_page("email"), WORKERS, f"{WORKERS}{WORKER}/change/")
    for page in pages:
        made(page)  # what a process asks once, such as the type of a model
    few = [made(page) for page in pages]
    for number in range(50):
        a_task(queue=f"queue {number}")
        a_minute(3, queue=f"queue {number}", completed=1)
        Queue.objects.create(backend="default", name=f"queue {number}", paused_at=ago(5))
        a_worker(id=uuid4(), pid=number)
    assert [made(page) for page in pages] == few


# Charts


@pytest.mark.fast
def test_a_small_chart_shows_what_is_small():
    drawn = spark.chart([(1000, 0), (1, 1), (0, 0)], "runs")
    assert drawn.count("dhara-up") == 2
    assert drawn.count("dhara-down") == 1
    assert drawn.count('height="5.0"') == 1
    assert "style" not in drawn
    assert spark.chart([], "nothing").count("<rect") == 0


# Plans: what a page reads of a large table


def statements_of(client, page):
    """The statements of a page that read tasks."""
    with CaptureQueriesContext(connection) as made:
        assert client.get(page).status_code == 200
    return [query["sql"] for query in made.captured_queries if "dhara_task" in query["sql"]]


def plan_of(statement):
    with connection.cursor() as cursor:
        cursor.execute("SET jit = off")
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}".replace("%", "%%"), [])
        [[[plan]]] = cursor.fetchall()
    return test_plans.Plan(plan["Plan"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["before ANALYZE", "after ANALYZE"])
def test_no_page_reads_more_of_a_large_table_than_it_shows(transactional_db, is_analyzed, without_statistics):
    fill = test_plans.fill
    fill(150_000, State.COMPLETED)
    fill(2_000, State.DEAD)
    fill(20_000, queue="'queue ' || n % 20", priority="n % 3")
    fill(20_000, run_at="now() + interval '1 day' + make_interval(secs => n)")
    fill(1_000, State.RUNNING)
    Task.objects.pending().filter(queue="queue 1").update(lost=1)
    if is_analyzed:
        test_plans.run("VACUUM ANALYZE dhara_task")
    client, worker = a_client(*ALL), a_worker()
    for page in (LIST, queue_page("default"), queue_page("queue 2"), WORKERS, worker_page(worker)):
        statements = statements_of(client, page)
        assert statements
        for statement in statements:
            plan = plan_of(statement)
            assert not plan.scans_whole, (page, statement)
            assert plan.rows < 60_000, (page, plan.rows, statement)
            assert plan.pages < 60_000, (page, plan.pages, statement)
    client.user.delete()  # only our own tables are emptied
