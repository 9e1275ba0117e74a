"""The list of tasks: what it shows, how it is searched and paged, what is done to a selection or to all that match."""

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.urls import reverse
from django.utils.translation import override

from django_dhara import bulk, search
from django_dhara.admin import sidebar, tasklist, text
from django_dhara.models import BulkChange, Task, Worker
from django_dhara.search import finding
from django_dhara.states import State
from tests.rows import WORKER, a_task, ago, ahead, an_attempt, everything, fresh, row
from tests.test_admin import (
    ALL,
    LIST,
    a_client,
    a_worker,
    act,
    button,
    is_not_pressed,
    messages,
    page_of,
    queries,
    shown,
)
from tests.test_search import put

RIGHTS = (*ALL, "move_task", "snooze_task", "delete_task")
VERBS = {
    "retry": "revive_task",
    "copy": "revive_task",
    "cancel": "cancel_task",
    "run_now": "run_task_now",
    "snooze": "snooze_task",
    "change_priority": "move_task",
    "change_queue": "move_task",
    "delete_finished": "delete_task",
}
ARGUMENTS = {"snooze": "30m", "change_priority": "7", "change_queue": "mail"}


@pytest.fixture
def client(db):
    return a_client(*RIGHTS)


def functions(response):
    return [row.function for row in response.context["cl"].result_list]


def links(response):
    """The texts and addresses of all links, the last of each text."""
    body = response.content.decode()
    found = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', body, re.DOTALL)
    return {" ".join(unescape(re.sub(r"<[^>]+>", "", label)).split()): unescape(address) for address, label in found}


def searched(address):
    return parse_qs(urlsplit(address).query).get("q", [""])[0]


# What it shows


@pytest.mark.fast
def test_the_list_tells_state_function_error_queue_priority_attempts_and_times(client):
    task = a_task(
        State.DEAD,
        function="shop.tasks.send",
        queue="email",
        priority=7,
        failures=5,
        enqueued_at=ago(7200),
        finished_at=ago(610),
        error_class="smtplib.Refused",
    )
    an_attempt(task, message="the first one")
    an_attempt(task, message="mailbox full\nand more")
    seen = shown(client.get(LIST))
    assert "✕ Dead shop.tasks.send Refused: mailbox full email priority 7 5/5 ended 10 min ago 2 h old" in seen


@pytest.mark.fast
@pytest.mark.parametrize("state", State)
def test_a_state_is_told_by_a_word_and_not_by_colour_alone(client, state):
    a_task(state)
    assert f"{text.SIGNS[state]} {state.label} tests.app.tasks.add" in shown(client.get(LIST))


@pytest.mark.fast
@pytest.mark.parametrize(
    ("state", "columns", "expected"),
    [
        (State.PENDING, {"run_at": ahead(330)}, "runs in 5 min"),
        (State.PENDING, {"run_at": ago(300)}, "due 5 min ago"),
        (State.RUNNING, {"attempted_at": ago(130)}, "for 2 min"),
        (State.COMPLETED, {"finished_at": ago(90)}, "ended 1 min ago"),
    ],
)
def test_the_time_that_matters_depends_on_the_state(client, state, columns, expected):
    a_task(state, **columns)
    assert expected in shown(client.get(LIST))


def test_exact_times_are_in_titles(client):
    task = a_task(run_at=ahead(330))
    task.refresh_from_db()
    assert f'title="{task.run_at:%Y-%m-%d %H:%M:%S} UTC">in 5 min</time>' in client.get(LIST).content.decode()


@pytest.mark.fast
def test_the_newest_task_comes_first(client):
    put(seconds_ago=50, function="older.one")
    put(seconds_ago=5, function="newer.one")
    assert functions(client.get(LIST)) == ["newer.one", "older.one"]
    assert functions(client.get(LIST, {"o": "-2.3"})) == ["newer.one", "older.one"]


@pytest.mark.fast
def test_within_a_final_state_what_ended_last_comes_first(client):
    put(State.DEAD, 50, function="ended.last", finished_at=ago(1))
    put(State.DEAD, 5, function="ended.first", finished_at=ago(4))
    assert functions(client.get(LIST, {"q": "state:dead"})) == ["ended.last", "ended.first"]


# Searching


@pytest.mark.fast
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"state": "DEAD"}, "dead"),
        ({"state": "RUNNING"}, "running"),
        ({"state": "PENDING"}, "pending suspect"),
        ({"state": "COMPLETED"}, "completed"),
        ({"queue": "email"}, "completed"),
        ({"function": "shop.dead"}, "dead"),
        ({"function": "dead"}, ""),
        ({"function": "shop.dead", "queue": "email"}, ""),
        ({"errors": "yes"}, "dead"),
        ({"errors": "no", "state": "PENDING"}, "pending suspect"),
        ({"worker": str(WORKER)}, "running"),
        ({"q": "shop.pend"}, "pending"),
        ({"q": "hop.de"}, "dead"),
        ({"q": "a0a0"}, "pending"),
        ({"q": "a0a00000-0000-0000-0000-000000000000"}, "pending"),
        ({"q": "a0a1"}, ""),
        ({"q": "%"}, ""),
        ({"q": "state:dead,running -queue:email"}, "dead running"),
        ({"q": "state:dead", "queue": "email"}, ""),
        ({"field": "key", "value": "k 1"}, "suspect"),
        ({"q": "state:pending", "field": "attempts", "value": "1"}, "suspect"),
        ({"field": "", "value": "x"}, "pending suspect running dead completed"),
    ],
)
def test_parameters_and_words_find_what_they_say(client, parameters, expected):
    a_task(id=UUID("a0a0".ljust(32, "0")), function="shop.pending")
    a_task(id=UUID("c" * 32), function="shop.suspect", lost=1, idempotency_key="k 1")
    a_task(State.RUNNING, id=UUID("d" * 32), function="shop.running")
    a_task(State.DEAD, id=UUID("e" * 32), function="shop.dead", error_class="shop.Boom")
    a_task(State.COMPLETED, id=UUID("f" * 32), function="shop.completed", queue="email")
    assert sorted(functions(client.get(LIST, parameters))) == sorted(f"shop.{name}" for name in expected.split())


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("dead", "state:dead"),
        ("state=dead", "state:dead"),
        ("-failed queue:payments", "-state:dead queue:payments"),
        ("queue:paymnts", "queue:payments"),
        ("function:chargee", "function:charge"),
        ("chagre", "charge"),
        ("error:Timeot after:2h", "error:Timeout after:2h"),
        ('queue:"paymnts"', None),
        ("queue:payments key:no", None),
        ("nothing.like.it", None),
    ],
)
def test_a_search_that_finds_nothing_says_what_may_have_been_meant(client, text, meant):
    a_task("DEAD", function="shop.orders.charge", queue="payments", error_class="shop.errors.Timeout")
    changelist = client.get(LIST, {"q": text}).context["cl"]
    assert changelist.rows is not None
    assert (changelist.hint and changelist.hint[0]) == meant
    if meant:
        assert "Did you mean" in shown(client.get(LIST, {"q": f"{text} key:none"}))


@pytest.mark.fast
def test_a_search_that_is_not_understood_finds_nothing_and_says_why_and_what_instead(client):
    a_task(State.DEAD)
    response = client.get(LIST, {"q": "stat:dead <b>x</b>"})
    assert response.context["cl"].result_list == []
    seen = shown(response)
    assert "not understood, and so nothing was searched for" in seen
    assert "There is no field “stat”. Did you mean state?" in seen
    assert "<mark>stat:dead</mark> &lt;b&gt;x&lt;/b&gt;" in response.content.decode()
    assert searched(links(response)["state:dead <b>x</b>"]) == "state:dead <b>x</b>"


@pytest.mark.fast
@pytest.mark.parametrize(
    "parameters",
    [
        {"state": "x"},
        {"worker": "x"},
        {"queue": "a\x00"},
        {"q": '"'},
        {"q": "x" * 3000},
        {"p": "x"},
        {"cursor": "x"},
        {"cursor": f"older~{uuid4()}", "q": "state:dead"},
    ],
)
def test_a_parameter_that_makes_no_sense_never_ends_in_an_error(client, parameters):
    a_task()
    assert client.get(LIST, parameters, follow=True).status_code == 200


@pytest.mark.fast
@pytest.mark.parametrize("lookup", ["payload__contains", "function__icontains", "id__in", "worker_id"])
def test_a_lookup_of_the_readers_own_making_is_refused(client, lookup):
    assert client.get(LIST, {lookup: "1"}).status_code == 400


@pytest.mark.fast
def test_a_filter_edits_the_search_and_the_search_shows_in_the_filters(client):
    a_task(queue="email", function="shop.tasks.send")
    Worker.objects.create(id=WORKER, name="box7-1", host="box7", pid=1, concurrency=1, lease_seconds=30)
    response = client.get(LIST, {"q": "attempts:3..5 -queue:gone"})
    found = links(response)
    assert searched(found["Dead"]) == "attempts:3..5 -queue:gone state:dead"
    assert searched(found["email"]) == "attempts:3..5 queue:email"
    assert searched(found["shop.tasks.send"]) == 'attempts:3..5 -queue:gone function:"shop.tasks.send"'
    assert searched(found["last hour"]) == "attempts:3..5 -queue:gone after:1h"
    assert searched(found["box7-1"]) == "attempts:3..5 -queue:gone worker:box7-1"
    groups = {group.title: [c.label for c in group.choices if c.selected] for group in response.context["cl"].groups}
    assert groups["Queue"] == ["-gone"]
    assert groups["Attempts"] == ["3..5"]
    assert groups["State"] == ["All"]
    again = client.get(LIST, {"q": "queue:email"})
    groups = {group.title: [c.label for c in group.choices if c.selected] for group in again.context["cl"].groups}
    assert groups["Queue"] == ["email"]


@pytest.mark.fast
def test_each_term_is_a_chip_that_can_be_taken_away(client):
    a_task(State.DEAD)
    response = client.get(LIST, {"state": "DEAD", "queue": "a b"})
    chips = {chip.label: searched(chip.address) for chip in response.context["cl"].chips}
    assert chips == {"state:dead": 'queue:"a b"', 'queue:"a b"': "state:dead"}
    assert 'value="state:dead queue:&quot;a b&quot;"' in response.content.decode()


def test_a_queue_whose_tasks_are_all_old_is_offered_while_some_are_pending(client, monkeypatch):
    sql = sidebar._KNOWN.replace("LIMIT 3000", "LIMIT 1").replace("LIMIT 2000", "LIMIT 1")
    monkeypatch.setattr(sidebar, "_KNOWN", sql)
    for number, queue in enumerate(["old", "older", "oldest", "newest"]):
        a_task(id=UUID(int=number << 80), queue=queue)
    assert sidebar.known("default").queue == ["newest", "old", "older", "oldest"]


# Paging


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(tasklist, "SIZE", 3)


@pytest.mark.fast
@pytest.mark.parametrize("asked", ["", "state:dead"])
def test_pages_go_on_from_a_cursor_and_back(client, small_pages, asked):
    for number in range(8):
        put(State.DEAD, 100 - number, function=f"f{number}", finished_at=ago(50 - number))
    pages, address = [], f"{LIST}?q={asked}"
    while address:
        response = client.get(address)
        pages.append(functions(response))
        address = response.context["cl"].older and LIST + response.context["cl"].older
    assert pages == [["f7", "f6", "f5"], ["f4", "f3", "f2"], ["f1", "f0"]]
    back = client.get(LIST + response.context["cl"].newer)
    assert functions(back) == pages[1]
    assert functions(client.get(LIST + back.context["cl"].newer)) == pages[0]
    assert searched(links(back)["Newest"]) == asked


@pytest.mark.fast
def test_the_count_is_exact_up_to_a_bound_and_an_estimate_above(client, small_pages, monkeypatch):
    for _ in range(3):
        put()
    assert "3 tasks" in shown(client.get(LIST))
    for _ in range(3):
        put(State.DEAD)
    assert "6 tasks" in shown(client.get(LIST))
    monkeypatch.setattr(search.count, "__kwdefaults__", {**search.count.__kwdefaults__, "most": 5})
    monkeypatch.setattr(finding, "_estimate", lambda *arguments: 5_012_345)
    assert "about 5,012,345 tasks" in shown(client.get(LIST))
    monkeypatch.setattr(finding, "_estimate", lambda *arguments: None)
    assert "at least 5 tasks" in shown(client.get(LIST, {"q": "priority:0"}))


@pytest.mark.fast
def test_a_search_through_a_part_says_which_and_goes_on_from_there(client, monkeypatch):
    monkeypatch.setattr(finding, "WINDOWS", (2,))
    tasks = [put(seconds_ago=100 - number, function=f"shop.f{number}") for number in range(5)]
    response = client.get(LIST, {"q": "f0 queue:default"})
    seen = shown(response)
    assert "No task matches. The newest 2 tasks were looked through, back to" in seen
    assert "without queue:default" in seen
    while "Look further back" in links(response):
        response = client.get(LIST + links(response)["Look further back"])
    assert functions(response) == ["shop.f0"]
    assert tasks


@pytest.mark.fast
def test_an_empty_list_helps(client):
    assert "There are no tasks." in shown(client.get(LIST))
    a_task()
    seen = shown(client.get(LIST, {"q": "state:dead"}))
    assert "No task matches. All tasks that could match were looked through." in seen


# What it costs


@pytest.mark.fast
@pytest.mark.parametrize(
    "asked", ["", "state:dead", "state:pending", "queue:default", "tests", "error:none", "worker:box7", "key:k"]
)
def test_the_list_counts_no_whole_table_and_makes_few_queries(client, small_pages, asked):
    for state in State:
        a_task(state)
    with queries() as made:
        client.get(LIST, {"q": asked})
    reads = [query for query in made if "dhara_" in query]
    assert len(reads) <= 12, reads
    for query in reads:
        if "count(" in query.lower() and "dhara_task" in query:
            assert "LIMIT" in query


@pytest.mark.fast
def test_the_list_reads_no_payload_no_result_and_no_traceback(client):
    an_attempt(a_task(State.DEAD), traceback="secret")
    with queries() as made:
        client.get(LIST)
    rows = [query for query in made if not query.startswith("/* dhara:search */")]
    assert rows
    for column in ("payload", "result", "progress", "checkpoint", "metadata", "traceback"):
        assert not [query for query in rows if f'"{column}"' in query]


def test_a_list_that_takes_too_long_is_stopped_and_says_so(client, monkeypatch):
    a_task()

    def slow(*arguments, **named):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(2)")

    monkeypatch.setattr("django_dhara.admin.readonly.PATIENCE", 0.3)
    monkeypatch.setattr(tasklist.search, "page", slow)
    response = client.get(LIST, {"q": "slow"})
    assert response.url == LIST
    monkeypatch.undo()
    assert "was stopped" in messages(client.get(LIST))[0]


# What is done to a selection


@pytest.mark.fast
@pytest.mark.parametrize("verb", VERBS)
def test_each_action_takes_a_permission_of_its_own(db, verb):
    others = set(RIGHTS) - {VERBS[verb]}
    without, with_ = a_client(*others), a_client("view_task", VERBS[verb])
    task = a_task(State.DEAD if verb in ("retry", "copy", "delete_finished") else State.PENDING, run_at=ahead(60))
    more = {"argument": ARGUMENTS.get(verb, "")}
    before = everything()
    assert act(without, verb, [task], **more).status_code == 403
    assert act(without, verb, [], select_across="1", **more).status_code == 403
    assert without.post(button(verb, task), {"confirmed": "yes", **more}).status_code == 403
    assert f'<option value="{verb}"' not in without.get(LIST).content.decode()
    assert button(verb, task) not in without.get(page_of(task)).content.decode()
    assert everything() == before
    assert not BulkChange.objects.exists()
    assert f'<option value="{verb}"' in with_.get(LIST).content.decode()
    assert button(verb, task) in with_.get(page_of(task)).content.decode()
    assert act(with_, verb, [task], **more).status_code == 200
    assert everything() != before


@pytest.mark.fast
def test_who_may_only_look_sees_no_boxes_and_no_actions(db):
    a_task()
    body = a_client("view_task").get(LIST).content.decode()
    assert "_selected_action" not in body
    assert '<select name="action"' not in body


@pytest.mark.fast
@pytest.mark.parametrize(
    ("verb", "state", "said", "logged"),
    [
        ("snooze", State.PENDING, "1 put off.", "Put off for 1800.0 s."),
        ("change_priority", State.PENDING, "1 has the new priority.", "Priority changed to 7."),
        ("change_queue", State.PENDING, "1 moved.", "Moved to queue mail."),
        ("copy", State.DEAD, "1 enqueued anew.", "Enqueued anew."),
        ("delete_finished", State.COMPLETED, "1 deleted.", "Deleted."),
    ],
)
def test_a_verb_with_an_argument_asks_for_it_and_the_log_keeps_it_and_the_reason(client, verb, state, said, logged):
    a_worker()
    task = a_task(state)
    asked = client.post(LIST, {"action": verb, "_selected_action": [str(task.pk)]})
    assert ('name="argument"' in asked.content.decode()) is (verb in ARGUMENTS)
    response = act(client, verb, [task], argument=ARGUMENTS.get(verb, ""), reason="bad <deploy>")
    assert messages(response) == [said]
    entry = LogEntry.objects.get()
    assert (entry.change_message, entry.object_id) == (f"{logged} bad <deploy>", str(task.pk))
    assert entry.action_flag == (DELETION if verb == "delete_finished" else CHANGE)
    assert entry.object_repr.startswith("tests.app.tasks.add")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("verb", "argument", "said"),
    [
        ("snooze", "soon", "Write a time such as 30m, 2h or 1d."),
        ("snooze", "", "Write a time such as"),
        ("snooze", "99999w", "A time to put off is between 0 and"),
        ("change_priority", "x", "A priority is a whole number between -100 and 100, not &#x27;x&#x27;."),
        ("change_queue", "a,b\x1b", "Queue"),
        ("change_queue", "", "Queue"),
    ],
)
def test_an_argument_of_no_use_is_told_and_asked_for_again(client, verb, argument, said):
    task = a_task()
    before = everything()
    response = act(client, verb, [task], argument=argument)
    assert response.status_code == 200
    body = response.content.decode()
    assert said in body
    assert 'class="errornote"' in body
    assert "\x1b" not in body
    assert everything() == before


@pytest.mark.fast
def test_without_a_selection_or_an_action_nothing_happens_and_it_says_so(client):
    task = a_task()
    before = everything()
    for data in ({"action": "cancel"}, {"action": "", "_selected_action": [str(task.pk)]}, {"action": "nonsense"}):
        assert "Nothing was changed" in messages(client.post(LIST, data, follow=True))[0]
    assert everything() == before


@pytest.mark.fast
def test_a_button_with_an_argument_asks_for_it_and_one_that_deletes_is_confirmed(client):
    task = a_task()
    assert 'name="argument"' in client.post(button("snooze", task)).content.decode()
    answer = client.post(button("snooze", task), {"confirmed": "yes", "argument": "1h"}, follow=True)
    assert messages(answer) == ["1 put off."]
    dead = a_task(State.DEAD)
    assert "Delete 1 task, if it has finished?" in shown(client.post(button("delete_finished", dead)))
    gone = client.post(button("delete_finished", dead), {"confirmed": "yes"}, follow=True)
    assert (messages(gone), gone.redirect_chain) == (["1 deleted."], [(LIST, 302)])
    other = a_task(State.DEAD)
    copied = client.post(button("copy", other))
    assert copied.url == page_of(Task.objects.get(parent_id=other.pk))


# What is done to all that match


def begun(client, verb, query="?q=state:dead", **more):
    """Confirm an action on all that match; the page of the bulk change."""
    response = client.post(LIST + query, {"action": verb, "select_across": "1", "confirmed": "yes", **more})
    assert response.status_code == 302, response.content.decode()
    return BulkChange.objects.order_by("-created_at").first(), response.url


def address(view, change):
    return reverse(f"admin:dhara_bulkchange_{view}", args=[change.pk])


@pytest.mark.fast
def test_all_that_match_are_asked_for_first(client):
    for _ in range(4):
        put(State.DEAD)
    response = client.post(LIST + "?q=state:dead", {"action": "retry", "select_across": "1"})
    seen = shown(response)
    assert "Retry 4 tasks?" in seen
    assert "All tasks that match state:dead now" in seen
    assert not BulkChange.objects.exists()
    assert "All tasks there are: no search narrows them." in shown(
        client.post(LIST, {"action": "retry", "select_across": "1"})
    )


@pytest.mark.parametrize(
    ("verb", "argument", "is_told"),
    [
        ("cancel", "", True),
        ("change_priority", "7", True),
        ("change_queue", "email", True),
        ("snooze", "1h", False),
        ("delete_finished", "", False),
    ],
)
def test_a_bulk_change_that_is_done_leads_to_what_it_changed_where_a_search_can_say_that(
    client, verb, argument, is_told
):
    task = put(State.PENDING, function="shop.pay", queue="default")
    put(State.PENDING, function="shop.other", queue="email", priority=7)
    change, url = begun(client, verb, "?q=function:pay state:pending queue:default priority:0", argument=argument)
    assert "Changed tasks" not in shown(client.get(url))
    client.post(address("step", change))
    body = client.get(url).content.decode()
    links = re.findall(r'<a href="([^"]+)">Changed tasks', body)
    assert bool(links) is is_told
    for link in links:
        assert [one.pk for one in client.get(unescape(link)).context["cl"].result_list] == [task.pk]
    assert f'<a href="{reverse("admin:dhara_bulkchange_changelist")}">Bulk changes</a>' in body


@pytest.mark.parametrize("given", ["https://evil.example/", "//evil.example", "javascript:alert(1)", ""])
def test_the_way_back_never_leads_to_another_site(client, given):
    put(State.DEAD)
    asked = {"action": "retry", "select_across": "1", "back": given}
    body = client.post(LIST + "?q=state:dead", asked).content.decode()
    assert "evil" not in body
    assert "javascript:" not in body
    assert f'href="{LIST}?q=state:dead"' in body


def test_a_long_queue_is_cut_and_its_title_has_all_of_it(db):
    client = a_client("view_task", "view_queue")
    put(State.PENDING, queue="q" * 255)
    for page in (LIST, "/admin/dhara/queue/"):
        body = client.get(page).content.decode()
        assert re.search(rf'<bdi class="dhara-name" title="{"q" * 255}">q{{32,60}}…</bdi>', body), page


@pytest.mark.fast
def test_a_bulk_change_is_made_step_by_step_and_sums_up_what_it_did(client):
    dead = [put(State.DEAD, n) for n in range(5)]
    others = put(State.COMPLETED)
    change, url = begun(client, "retry", "?q=state:dead", reason="the deploy of today")
    assert url == address("change", change)
    seen = shown(client.get(url))
    assert "Under way 0 retried." in seen
    assert "left: 5" in seen
    assert fresh(dead[0]).state == State.DEAD
    answer = client.post(address("step", change), headers={"accept": "application/json"}).json()
    assert answer["goes_on"] is False
    assert "5 retried." in answer["html"]
    again = client.post(address("step", change), headers={"accept": "application/json"}).json()
    assert again["stand"] == answer["stand"], "no step was made"
    seen = shown(client.get(url))
    assert "✓ Done 5 retried." in seen
    assert "the deploy of today" in seen
    assert {fresh(task).state for task in dead} == {State.PENDING}
    assert fresh(others).state == State.COMPLETED
    own = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(BulkChange)).order_by("pk")
    assert [(entry.action_flag, entry.change_message) for entry in own] == [
        (ADDITION, "Began: Retry, all that match. the deploy of today"),
        (CHANGE, "Ended: 5 retried."),
    ]
    each = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(Task))
    assert each.count() == 5
    assert each[0].change_message == f"Put back to run again. the deploy of today (bulk change {change.pk})"


@pytest.mark.fast
def test_whoever_looks_on_the_log_is_in_the_name_of_who_asked_while_there_is_such_a_user(client, monkeypatch):
    defaults = bulk.step.__kwdefaults__
    monkeypatch.setattr(bulk.step, "__kwdefaults__", {**defaults, "seconds": 0.0, "batch": 1})
    for n in range(2):
        put(State.DEAD, n)
    change, _ = begun(client, "retry")
    other = a_client(*RIGHTS)
    other.post(address("step", change))
    tasks = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(Task))
    assert [entry.user for entry in tasks.all()] == [client.user]
    client.user.delete()
    other.post(address("step", change))
    assert [entry.user for entry in tasks.all()] == [other.user]


@pytest.mark.fast
def test_without_a_script_a_button_makes_it_go_on(client, monkeypatch):
    monkeypatch.setattr("django_dhara.bulk.SECONDS", 0.0)
    put(State.DEAD)
    change, _ = begun(client, "delete_finished")
    response = client.post(address("step", change), follow=True)
    assert response.redirect_chain == [(address("change", change), 302)]
    assert "1 deleted." in shown(response)


@pytest.mark.fast
def test_the_log_is_english_whatever_the_reader_speaks(client):
    put(State.DEAD, 9)
    for view in ("step", "stop"):
        with override("de"):
            change, _ = begun(client, "retry", reason="a deploy\u202e")
            assert client.post(address(view, change)).status_code == 302
            assert "Wiederholen" in client.get(address("change", change)).content.decode()
    logged = LogEntry.objects.filter(content_type__model="bulkchange").order_by("pk")
    assert [entry.change_message for entry in logged] == [
        "Began: Retry, all that match. a deploy\\u202e",
        "Ended: 1 retried.",
        "Began: Retry, all that match. a deploy\\u202e",
        "Stopped: 0 retried.",
    ]


def test_it_can_be_stopped_and_says_what_it_had_done(client):
    put(State.DEAD)
    change, url = begun(client, "retry")
    seen = shown(client.post(address("stop", change), follow=True))
    assert "■ Stopped 0 retried." in seen
    answer = client.post(address("step", change), headers={"accept": "application/json"}).json()
    assert answer["goes_on"] is False
    assert Task.objects.get().state == State.DEAD
    assert LogEntry.objects.filter(change_message="Stopped: 0 retried.").count() == 1
    client.post(address("stop", change))
    assert LogEntry.objects.filter(change_message__startswith="Stopped").count() == 1
    assert "Continue" not in shown(client.get(url))


@pytest.mark.fast
def test_a_step_and_a_stop_take_the_right_of_the_verb_a_post_and_a_token(client):
    put(State.DEAD)
    change, url = begun(client, "retry")
    looker = a_client("view_task", "cancel_task")
    for view in ("step", "stop"):
        assert looker.post(address(view, change)).status_code == 403
        assert a_client("revive_task").post(address(view, change)).status_code == 403
        assert is_not_pressed(client, address(view, change), address("change", change))
        assert client.post(reverse(f"admin:dhara_bulkchange_{view}", args=[uuid4()])).status_code == 403
    seen = shown(looker.get(url))
    assert "goes on while somebody with the right to do so has this page open" in seen
    assert "Continue" not in seen
    assert a_client("view_worker").get(url).status_code == 403
    assert Task.objects.get().state == State.DEAD


@pytest.mark.fast
def test_bulk_changes_are_listed_and_nobody_edits_them(client):
    put(State.DEAD)
    reason = "<script>alert(1)</script>\x1b"
    change, url = begun(client, "change_priority", "?q=state:pending", argument="9", reason=reason)
    response = client.get("/admin/dhara/bulkchange/")
    seen = shown(response)
    assert "Under way Change priority: 9 state:pending 0 have the new priority." in seen
    assert client.user.username in seen
    assert "<script>alert" not in response.content.decode()
    assert "\x1b" not in response.content.decode()
    for target in (url, "/admin/dhara/bulkchange/add/", f"/admin/dhara/bulkchange/{change.pk}/delete/"):
        assert a_client(superuser=True).post(target, {"post": "yes"}).status_code == 403
    assert client.get(f"/admin/dhara/bulkchange/{uuid4()}/change/").status_code == 404


def test_a_search_that_is_too_slow_for_a_step_says_so(client, monkeypatch):
    put(State.DEAD)
    change, _ = begun(client, "retry")

    def slow(*arguments, **named):
        raise tasklist.databases.TooSlow

    monkeypatch.setattr("django_dhara.search.walk", slow)
    monkeypatch.setattr("django_dhara.bulk.search.walk", slow)
    response = client.post(address("step", change), follow=True)
    assert "it stands still" in messages(response)[0]
    answer = client.post(address("step", change), headers={"accept": "application/json"})
    assert answer.status_code == 409
    assert "The search takes too long, and so it stands still." in answer.json()["told"]
    assert messages(client.get(LIST)) == [], "it is told once"


def no_cards(function, payload):
    return {"args": [], "kwargs": {}}


@pytest.mark.fast
def test_nobody_searches_by_arguments_while_the_project_redacts_them(client, settings):
    task = a_task(State.DEAD, function="shop.pay", payload={"args": [], "kwargs": {"card": "4111"}})
    asked = "?q=payload.card:4111"
    assert functions(client.get(LIST + asked)) == ["shop.pay"]
    change, url = begun(client, "retry", asked)
    settings.DHARA = {"REDACT": "tests.test_admin_tasks.no_cards"}
    before = row(task)
    for query in (asked, "?q=-payload.card:4111", "?field=payload.card&value=4111"):
        response = client.get(LIST + query)
        assert response.context["cl"].result_list == []
        assert "this project redacts them" in shown(response)
        data = {"action": "retry", "select_across": "1", "confirmed": "yes"}
        assert client.post(LIST + query, data).status_code == 400
    assert "payload" not in shown(client.get(LIST))
    # One that began before stands still, and can be stopped.
    assert "Under way" in shown(client.get(url))
    assert "Its search is refused now" in messages(client.post(address("step", change), follow=True))[0]
    assert "It was stopped." in shown(client.post(address("stop", change), follow=True))
    assert row(task) == before


@pytest.mark.fast
def test_a_bad_search_is_no_bulk_change(client):
    a_task()
    data = {"action": "cancel", "select_across": "1", "confirmed": "yes"}
    assert client.post(LIST + "?q=stat:dead", data).status_code == 400
    assert not BulkChange.objects.exists()


def test_tasks_that_are_moved_where_nobody_works_are_warned_of(client):
    """Without names in QUEUES any name is a queue, a misspelt one too."""
    task = put(State.PENDING)
    a_worker(queues=["mail"])
    warning = "No worker that is alive takes queue mial: its tasks wait. Is that its name?"
    form = {"action": "change_queue", "confirmed": "yes", "_selected_action": [str(task.pk)]}
    assert messages(client.post(LIST, {**form, "argument": "mial"}, follow=True)) == ["1 moved.", warning]
    assert messages(client.post(LIST, {**form, "argument": "mail"}, follow=True)) == ["1 moved."]
    everything = {**form, "select_across": "1", "argument": "mial"}
    assert messages(client.post(LIST, everything, follow=True)) == [warning]
