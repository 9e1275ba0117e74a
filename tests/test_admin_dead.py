"""Dead letters: grouped by function and error, at a bounded cost, and never more than may be shown."""

import re
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.utils import timezone

from django_dhara import search
from django_dhara.admin import databases, dead, letters
from django_dhara.models import Attempt, BulkChange, Task
from django_dhara.states import State
from tests.rows import a_task, ago, an_attempt, fresh
from tests.test_admin import a_client, is_not_pressed, messages, page_of, queries, shown
from tests.test_admin_onetask import TRACE

DEAD = "/admin/dhara/task/dead/"
GROUP = "/admin/dhara/task/dead/group/"
REFUSED = {"function": "orders.tasks.send_receipt", "error_class": "smtplib.Refused", "error_fingerprint": "f00"}


@pytest.fixture
def client(db):
    return a_client("view_task")


def a_dead(**columns):
    return a_task(State.DEAD, **{**REFUSED, "failures": 5, **columns})


def group_of(task, **more):
    names = {"backend": task.backend, "function": task.function}
    names |= {"error": task.error_class} if task.error_class is not None else {}
    names |= {"place": task.error_fingerprint} if task.error_fingerprint is not None else {}
    return f"{GROUP}?{urlencode({**names, **more})}"


def test_dead_tasks_are_grouped_by_function_and_error_with_a_sample(client):
    for age in (7250, 6000, 1850):
        task = a_dead(finished_at=ago(age))
    an_attempt(task, message="an older one", traceback="")
    an_attempt(task, message="451 Try again\nlater", traceback=TRACE)
    a_dead(error_fingerprint="f01", finished_at=ago(2450))
    a_task(State.CANCELED)
    seen = shown(client.get(DEAD))
    assert "4 dead tasks in 2 groups" in seen
    assert (
        "3 smtplib.Refused orders.tasks.send_receipt 451 Try again shop/orders/tasks.py:41, send_receipt "
        "Last 30 min ago First 2 h ago"
    ) in seen
    assert seen.index("Last 30 min ago") < seen.index("Last 40 min ago")


@pytest.mark.parametrize(
    ("order", "counts"),
    [("last", [1, 3, 2]), ("count", [3, 2, 1]), ("first", [1, 2, 3])],
    ids=["last", "count", "first"],
)
def test_the_order_is_the_readers_choice(client, order, counts):
    for place, ages in (("f1", [5]), ("f2", [60, 55]), ("f3", [900, 800, 50])):
        for age in ages:
            a_dead(error_fingerprint=place, finished_at=ago(age))
    assert [group["count"] for group in client.get(DEAD, {"o": order}).context["groups"]] == list(map(str, counts))


def test_another_order_is_a_bad_request(client):
    assert client.get(DEAD, {"o": "last; DROP"}).status_code == 400


def test_no_dead_task_is_said(client):
    assert "No task is dead." in shown(client.get(DEAD))


@pytest.mark.parametrize("error_class", [None, "a.B"])
@pytest.mark.parametrize("place", [None, "f"])
def test_a_group_without_a_class_or_a_place_is_a_group_too(client, error_class, place):
    task = a_dead(error_class=error_class, error_fingerprint=place)
    an_attempt(task, message="told")
    [group] = dead.letters("default").groups
    assert (group.task, group.message, group.count) == (task.pk, "told", 1)
    address = re.search(r'href="(/admin/dhara/task/dead/group/[^"]+)"', client.get(DEAD).content.decode())[1]
    assert page_of(task) in client.get(address.replace("&amp;", "&")).content.decode()


def test_who_does_not_retry_a_group_is_led_back_to_it(db):
    client = a_client(superuser=True)
    a_dead()
    address = unescape(re.search(r'href="(/admin/dhara/task/dead/group/[^"]+)"', client.get(DEAD).content.decode())[1])
    body = client.get(address).content.decode()
    form = re.search(r'<form method="post" action="(/admin/dhara/task/\?[^"]+)">(.*?)</form>', body, re.DOTALL)
    hidden = r'<input type="hidden" name="(\w+)" value="([^"]*)"'
    fields = {name: unescape(value) for name, value in re.findall(hidden, form[2])}
    asked = client.post(unescape(form[1]), fields).content.decode()
    assert unescape(re.search(r'dhara-back" href="([^"]+)"', asked)[1]) == address
    # Asked once more, because something was wrong, it still knows the way.
    assert ("back", address) in [(name, unescape(value)) for name, value in re.findall(hidden, asked)]


def test_the_chart_counts_by_hour(client):
    for age in (5, 10, 3700, 3800, 3900, 23.5 * 3600, 25 * 3600):
        a_dead(finished_at=ago(age))
    [group] = dead.letters("default").groups
    assert (group.hours[0], group.hours[1], group.hours[23], sum(group.hours)) == (2, 3, 1, 6)
    heights = [bar.height for bar in letters.bars(group.hours)]
    assert (heights[-2], max(heights), heights[0] > 0) == (letters.HEIGHT, letters.HEIGHT, True)
    assert "6 in the last 24 hours" in shown(client.get(DEAD))


def test_a_function_can_be_chosen(client):
    a_dead()
    other = a_dead(function="shop.other")
    seen = shown(client.get(DEAD, {"function": "shop.other"}))
    assert "1 dead task in 1 group" in seen
    assert other.function in seen
    assert REFUSED["function"] not in seen


def test_beyond_the_cap_each_function_has_its_share_and_the_page_says_so(client, monkeypatch):
    monkeypatch.setattr(dead, "MOST", 10)
    for _ in range(14):
        a_dead(function="a.loud")
    a_dead(function="z.quiet")
    found = dead.letters("default")
    assert {group.function: group.count for group in found.groups} == {"a.loud": 5, "z.quiet": 1}
    assert found.is_cut
    assert "the counts are the least there are" in shown(client.get(DEAD))
    [chosen] = dead.letters("default", function="a.loud").groups
    assert chosen.count == 10
    assert "more than 10 dead tasks" in shown(client.get(group_of(Task.objects.filter(function="a.loud").first())))


def test_a_group_shows_its_tasks_newest_first_page_by_page(client, monkeypatch):
    monkeypatch.setattr(dead, "TASKS", 3)
    now = timezone.now()
    # Three of them died at the same moment, as tasks do that one sweep finds.
    ages = [10, 20, 30, 30, 30, 40, 50]
    tasks = [a_dead(id=UUID(int=n), finished_at=now - timedelta(seconds=age)) for n, age in enumerate(ages, 1)]
    a_dead(error_fingerprint="other")
    order = sorted(tasks, key=lambda task: (task.finished_at, task.pk), reverse=True)
    found, address = [], group_of(tasks[0])
    while address:
        response = client.get(address)
        found += [task["id"] for task in response.context["tasks"]]
        address = response.context["older"]
    assert found == [task.pk for task in order]


def test_a_group_shows_the_traceback_and_the_arguments_of_its_newest_task(client):
    a_dead(finished_at=ago(90), payload={"args": ["older"], "kwargs": {}})
    task = a_dead(payload={"args": [48213], "kwargs": {}})
    an_attempt(task, message="451 Try again", traceback=TRACE)
    response = client.get(group_of(task))
    seen = shown(response)
    assert "2 dead tasks of orders.tasks.send_receipt." in seen
    assert "451 Try again" in seen
    assert "48213" in seen
    assert "older" not in seen
    assert 'class="dhara-own"' in response.content.decode()


def test_the_arguments_of_a_group_are_redacted(client, settings):
    task = a_dead(payload={"args": [7], "kwargs": {"card": "4111 1111"}})
    settings.DHARA = {"REDACT": "tests.test_admin_onetask.without_cards"}
    assert b"4111" not in client.get(group_of(task)).content
    settings.DHARA = {"REDACT": "tests.test_admin_onetask.broken"}
    response = client.get(group_of(task))
    assert b"4111" not in response.content
    assert "The arguments are hidden" in shown(response)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"backend": "default"},
        {"backend": "default", "function": "a\x00b"},
        {"backend": "default", "function": "a", "before": "soon", "id": str(UUID(int=1))},
        {"backend": "default", "function": "a", "before": "2026-01-01T00:00:00+00:00", "id": "x"},
        {"backend": "default", "function": "a", "before": "2026-01-01T00:00:00", "id": str(UUID(int=1))},
        {"backend": "default", "function": "a", "before": "2026-13-01T00:00:00+00:00", "id": str(UUID(int=1))},
    ],
    ids=str,
)
def test_an_address_that_names_no_group_is_a_bad_request(client, parameters):
    assert client.get(GROUP, parameters).status_code == 400


@pytest.mark.parametrize("before", ["2126-01-01T00:00:00+23:59", "2126-01-01T00:00:00-16:00"])
def test_a_place_in_a_group_may_have_any_offset_that_python_knows(client, before):
    task = a_dead()
    response = client.get(group_of(task, before=before, id=str(UUID(int=1))))
    assert [each["id"] for each in response.context["tasks"]] == [task.pk]


def test_without_use_tz_a_group_is_shown_page_by_page(client, settings, monkeypatch):
    settings.USE_TZ = False
    test_a_group_shows_its_tasks_newest_first_page_by_page(client, monkeypatch)


def test_a_group_that_is_gone_says_so(client):
    task = a_dead()
    address = group_of(task)
    Task.objects.all().delete()
    assert "There are none (any more)." in shown(client.get(address))


def test_hostile_names_run_nothing_and_turn_nothing_around(client):
    hostile = "<script>alert(1)</script>\u202e" + "é" * 10_000
    task = a_dead(function=hostile[:300], error_class="<b>\u202eB", error_fingerprint="<i>")
    an_attempt(task, message=hostile, traceback=hostile)
    for address in (DEAD, group_of(task)):
        body = client.get(address).content.decode()
        assert "<script>alert" not in body
        assert "\u202e" not in body
        assert "&lt;script&gt;" in body
    assert len(client.get(DEAD).content) < 30_000


def test_who_may_not_see_tasks_sees_no_dead_letters(db):
    stranger, task = a_client("view_worker"), a_dead()
    assert stranger.get(DEAD).status_code == 403
    assert stranger.get(group_of(task)).status_code == 403


def test_a_page_that_takes_too_long_is_stopped_and_says_so(client, monkeypatch):
    def slow(*args, **named):
        with databases.time_limit("default", 0.1), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")

    monkeypatch.setattr(dead, "letters", slow)
    assert "was stopped" in messages(client.get(DEAD, follow=True))[0]


# What is done to a whole group


def all_dead(number, **columns):
    return [a_dead(**columns) for _ in range(number)]


def follow(client, response):
    """From the bulk change that was begun to its end, as the script of its page does."""
    [change] = BulkChange.objects.all()
    assert response["Location"] == f"/admin/dhara/bulkchange/{change.pk}/change/"
    while not BulkChange.objects.get().finished_at:
        assert client.post(f"/admin/dhara/bulkchange/{change.pk}/step/").status_code == 302
    return BulkChange.objects.get()


def in_list(client, task):
    return client.get(group_of(task)).context["in_list"]


def test_a_group_is_retried_all_at_once_and_nothing_else_is(db):
    client = a_client("view_task", "revive_task")
    wanted = all_dead(7)
    others = all_dead(2, error_fingerprint="f01") + all_dead(2, function="shop.orders.tasks.send_receipt")
    others += all_dead(2, error_class="smtplib.RefusedTwice")
    page = client.get(group_of(wanted[0]))
    assert "Discard all" not in shown(page)
    asked = client.post(in_list(client, wanted[0]), {"action": "retry", "select_across": "1"})
    assert "Retry 7 tasks?" in shown(asked)
    posted = {"action": "retry", "select_across": "1", "confirmed": "yes", "reason": "deployed 1.4.2"}
    change = follow(client, client.post(in_list(client, wanted[0]), posted))
    assert (change.counts, change.reason) == ({"revived": 7}, "deployed 1.4.2")
    assert {fresh(task).state for task in wanted} == {State.PENDING}
    assert {fresh(task).state for task in others} == {State.DEAD}


def test_a_group_is_discarded_for_a_reason_that_the_log_keeps(db):
    client = a_client("view_task", "delete_task")
    wanted, other = all_dead(3), a_dead(error_fingerprint="f01")
    an_attempt(wanted[0])
    address = client.get(group_of(wanted[0])).context["discard"]
    refused = client.post(address, {"reason": "  "}, follow=True)
    assert messages(refused) == ["Say why: nothing was discarded."]
    assert not BulkChange.objects.exists()
    change = follow(client, client.post(address, {"reason": "the shop has closed"}))
    assert change.counts == {"deleted": 3}
    assert list(Task.objects.values_list("pk", flat=True)) == [other.pk]
    assert not Attempt.objects.exists()
    entries = LogEntry.objects.filter(content_type__model="task")
    assert entries.count() == 3
    assert all("the shop has closed" in entry.change_message for entry in entries)


@pytest.mark.parametrize(
    "names",
    [
        {"function": 'odd "name"\\ with: all, of*it'},
        {"error_class": None},
        {"error_class": "none"},
        {"error_class": "any*thing"},
        {"error_fingerprint": "-f"},
    ],
    ids=str,
)
def test_a_search_means_exactly_its_group(client, names):
    task, _other = a_dead(**names), a_dead(function="another", error_class="anything")
    asked = letters.meant((task.backend, task.function, task.error_class, task.error_fingerprint))
    assert search.page("default", asked).ids == [task.pk]


def test_a_group_that_no_search_means_has_no_buttons(db):
    client, task = a_client(superuser=True), a_dead(error_fingerprint=None)
    assert "in_list" not in client.get(group_of(task)).context
    assert client.post(group_of(task).replace("group/?", "group/discard/?"), {"reason": "x"}).status_code == 400


def test_who_may_not_sees_no_button_and_gets_403(client):
    task = a_dead()
    page = client.get(group_of(task))
    for word in ("Retry all", "Discard all"):
        assert word not in shown(page)
    assert client.post(page.context["discard"], {"reason": "x"}).status_code == 403
    assert client.post(page.context["in_list"], {"action": "retry", "select_across": "1"}).status_code == 403
    assert is_not_pressed(client, page.context["discard"], page.context["discard"].replace("discard/", ""))
    assert not BulkChange.objects.exists()


def test_two_who_retry_a_group_at_once_make_one_retry_of_each(db):
    client, tasks = a_client(superuser=True), all_dead(4)
    posted = {"action": "retry", "select_across": "1", "confirmed": "yes"}
    addresses = [client.post(in_list(client, tasks[0]), posted)["Location"] for _ in range(2)]
    for address in addresses * 2:
        client.post(address.replace("/change/", "/step/"))
    counted = [change.counts for change in BulkChange.objects.order_by("created_at")]
    assert [counts.get("revived", 0) for counts in counted] == [4, 0]
    assert LogEntry.objects.filter(content_type__model="task").count() == 4


_MANY = """
INSERT INTO dhara_task (id, backend, function, queue, payload, state, lease, finished_at, error_class,
                        error_fingerprint)
SELECT gen_random_uuid(), 'default', 'shop.tasks.f' || n %% 20, 'q', '{"args": [1], "kwargs": {}}', %(state)s, 1,
       now() - make_interval(secs => n), 'a.B' || n %% 3, 'f' || n %% 7
FROM generate_series(1, %(number)s) AS n
"""


@pytest.mark.parametrize("before", [None, "ANALYZE dhara_task"])
@pytest.mark.parametrize("after", [None, "ANALYZE dhara_task", "VACUUM dhara_task"])
def test_each_query_goes_by_the_index_of_dead_letters(commits, before, after):
    """Whatever the planner knows of the table, even that nothing in it is dead."""
    with connection.cursor() as cursor:
        cursor.execute(_MANY, {"state": "COMPLETED", "number": 100_000})
        cursor.execute(before or "SELECT 1")
        cursor.execute(_MANY, {"state": "DEAD", "number": 5000})
        cursor.execute(after or "SELECT 1")
    plans = []

    def explain(execute, sql, params, many, context):
        if "dhara_task" in sql and "set_config" not in sql:
            with connection.cursor() as cursor:
                cursor.cursor.execute(f"EXPLAIN {sql}", params)
                plans.append("\n".join(row[0] for row in cursor.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        group = dead.letters("default").groups[0]
        dead.letters("default", function="shop.tasks.f3")
        members = dead.members("default", group.key)
        dead.count(members)
        dead.newest(members, None, None)
        dead.newest(members, group.place, (group.last, UUID(int=2**127)))
        dead.sample("default", members)
    assert len(plans) == 9
    for plan in plans:
        assert "Seq Scan on dhara_task" not in plan, plan
        assert "Bitmap Heap Scan on dhara_task" not in plan, plan
        assert "dhara_task_finished" not in plan, plan


def test_a_page_of_groups_takes_few_queries(client):
    for number in range(30):
        an_attempt(a_dead(error_fingerprint=f"f{number}"))
    with queries() as made:
        client.get(DEAD)
    assert len([query for query in made if "dhara_task" in query or "dhara_attempt" in query]) == 2


def test_the_overview_leads_to_the_dead_letters(client):
    assert 'href="/admin/dhara/task/dead/"' in client.get("/admin/dhara/").content.decode()
