"""The list of tasks in a real browser: searched, filtered, selected, changed in bulk, with the keyboard and narrow."""

import re
from time import monotonic

import pytest
from django.contrib.admin.models import LogEntry

from django_dhara import bulk
from django_dhara.models import BulkChange, Task
from django_dhara.search import parse
from django_dhara.sql import TooSlow
from django_dhara.states import State
from tests.browser.conftest import NARROW, WIDE
from tests.rows import a_task, ago, an_attempt, fresh

pytestmark = pytest.mark.browser

LIST = "/admin/dhara/task/"


@pytest.fixture
def hostile(shop):
    """Names that somebody else chose, beside an ordinary afternoon."""
    nasty = "shop.<script>document.title = 'run'</script>.שלום_עולם\u202e.gpj"
    large = {"args": ["x" * 1_000_000], "kwargs": {}}
    task = a_task(State.DEAD, function=nasty, queue="<b>q</b>", error_class="a" * 300, payload=large)
    an_attempt(task, message="e" * 10_000)
    return task


@pytest.fixture
def dead(transactional_db):
    return [a_task(State.DEAD, function="shop.orders.tasks.send_receipt", queue="email") for _ in range(150)]


@pytest.fixture
def steps_of(monkeypatch):
    """Lets each step change so many tasks."""
    defaults = bulk.step.__kwdefaults__
    return lambda batch: monkeypatch.setattr(bulk.step, "__kwdefaults__", {**defaults, "seconds": 0.0, "batch": batch})


def test_an_operator_searches_and_takes_a_term_away(browse, shop, picture):
    with browse() as page:
        page.goto(LIST)
        page.fill("#searchbar", "function:send_receipt state:dead")
        page.keyboard.press("Enter")
        page.wait_for_selector(".dhara-chips >> text=state:dead")
        assert page.locator("#result_list tbody tr").count() == 1
        page.click("[aria-label='Remove state:dead']")
        page.locator("#result_list tbody tr").nth(5).wait_for()
        assert page.input_value("#searchbar") == "function:send_receipt"


def test_what_was_not_understood_is_marked_and_one_click_mends_it(browse, shop, picture, accessible):
    with browse() as page:
        page.goto(LIST + "?q=functon:send_receipt+state:dead")
        page.wait_for_selector("mark >> text=functon:send_receipt")
        picture(page, "tasks-not-understood")
        accessible(page)
        page.click(".dhara-problems a")
        page.wait_for_selector(".dhara-chips >> text=function:send_receipt")
        assert page.locator("#result_list tbody tr").count() == 1


def test_a_filter_edits_the_search_and_a_form_takes_any_value(browse, shop):
    with browse() as page:
        page.goto(LIST)
        page.click(".dhara-filters >> text=Dead")
        page.wait_for_selector(".dhara-chips >> text=state:dead")
        page.click(".dhara-filters summary >> text=Attempts")
        page.fill(".dhara-filters [aria-label='Attempts']", ">3")
        page.keyboard.press("Enter")
        page.wait_for_selector(".dhara-chips >> text=attempts:>3")
        assert page.input_value("#searchbar") == "state:dead attempts:>3"
        assert page.locator("#result_list tbody tr").count() == 1


def test_a_selection_counts_itself_and_takes_ranges(browse, shop, picture):
    with browse() as page:
        page.goto(LIST)
        boxes = page.locator("input.dhara-select")
        boxes.nth(1).click()
        boxes.nth(4).click(modifiers=["Shift"])
        assert page.inner_text(".dhara-counter") == "4 selected"
        picture(page, "tasks-selected")
        page.check("#dhara-toggle")
        assert page.inner_text(".dhara-counter") == "20 selected"
        page.check("input[name=select_across]")
        assert page.inner_text(".dhara-counter") == "All that match"


def test_in_a_narrow_window_a_queue_has_the_width_that_its_name_needs(browse, shop):
    a_task("DEAD", queue="payments", enqueued_at=ago(66_000), finished_at=ago(1600))
    with browse(NARROW) as page:
        page.goto(f"{LIST}?q=queue:payments")
        assert page.locator(".field-queue_").first.bounding_box()["height"] < 30


def test_the_bar_stays_in_sight_while_the_list_is_long(browse, dead):
    with browse() as page:
        page.goto(LIST)
        box = page.locator(".dhara-bar").bounding_box()
        assert box["y"] + box["height"] <= WIDE["height"]


def test_the_keyboard_alone_searches_selects_and_puts_off(browse, shop, picture, accessible):
    with browse() as page:
        page.goto(LIST)
        page.focus("#searchbar")
        page.keyboard.type("state:pending")
        page.keyboard.press("Enter")
        page.wait_for_selector(".dhara-chips >> text=state:pending")
        page.focus("input.dhara-select >> nth=0")
        assert page.locator(".dhara-keys").is_visible()
        page.keyboard.press("Space")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.name") == "action"
        page.keyboard.type("Snooze")
        page.focus(".dhara-bar button")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1 >> text=Put 1 task off?")
        picture(page, "tasks-snooze")
        accessible(page)
        page.focus("#id_argument")
        page.keyboard.press("Control+A")
        page.keyboard.type("2h")
        page.keyboard.press("Enter")
        page.wait_for_selector(".messagelist >> text=1 put off.")


@pytest.mark.parametrize("verb", ["change_queue", "change_priority", "copy", "delete_finished"])
def test_each_action_asks_and_is_made(browse, shop, picture, accessible, verb):
    asked = {"change_queue": "state:pending", "change_priority": "state:pending"}.get(verb, "state:dead")
    said = {"change_queue": "1 moved.", "change_priority": "1 has the new priority.", "copy": "1 enqueued anew."}
    with browse() as page:
        page.goto(f"{LIST}?q={asked}")
        page.check("input.dhara-select >> nth=0")
        page.select_option("select[name=action]", verb)
        page.click(".dhara-bar button")
        page.wait_for_selector("#id_reason")
        if page.locator("#id_argument").count():
            page.fill("#id_argument", {"change_queue": "mail", "change_priority": "42"}[verb])
        page.fill("#id_reason", "because")
        picture(page, f"tasks-{verb}")
        accessible(page)
        page.click(".dhara-confirmation button")
        page.wait_for_selector(f".messagelist >> text={said.get(verb, '1 deleted.')}")
    assert LogEntry.objects.get().change_message.endswith("because")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_all_that_match_are_retried_while_the_page_is_open(browse, dead, picture, accessible, steps_of, size, scheme):
    steps_of(10)
    where = f"{'wide' if size is WIDE else 'narrow'}-{scheme}"
    with browse(size, scheme) as page:
        page.goto(LIST + "?q=state:dead")
        page.check("input[name=select_across]")
        page.select_option("select[name=action]", "retry")
        page.click(".dhara-bar button")
        page.wait_for_selector("h1 >> text=Retry 150 tasks?")
        accessible(page)
        picture(page, f"tasks-all-{where}")
        page.fill("#id_reason", "the deploy of 14:00 broke receipts")
        page.click(".dhara-confirmation button")
        page.wait_for_selector("text=Under way")
        picture(page, f"bulk-under-way-{where}")
        page.wait_for_selector("text=150 retried.", timeout=60_000)
        page.wait_for_selector(".dhara-completed >> text=Done")
        picture(page, f"bulk-done-{where}")
        accessible(page)
        page.goto("/admin/dhara/bulkchange/")
        picture(page, f"bulk-list-{where}")
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert not Task.objects.filter(state=State.DEAD).exists()
    assert LogEntry.objects.filter(change_message__startswith="Put back").count() == 150


def test_a_bulk_change_is_stopped_by_its_button(browse, dead, steps_of):
    steps_of(1)
    with browse() as page:
        page.goto(LIST + "?q=state:dead")
        page.check("input[name=select_across]")
        page.select_option("select[name=action]", "retry")
        page.click(".dhara-bar button")
        page.click(".dhara-confirmation button")
        page.wait_for_selector("text=/[1-9]\\d* retried/")
        page.click("text=Stop")
        page.wait_for_selector(".dhara-canceled >> text=Stopped")
    change = BulkChange.objects.get()
    assert 0 < change.counts["revived"] < 150
    assert Task.objects.filter(state=State.PENDING).count() == change.counts["revived"]


def test_while_another_browser_makes_a_step_this_one_does_not_ask_all_the_time(browse, dead, other_session):
    change, times = bulk.create("default", "revive", parse("state:dead")), []
    other_session.set_autocommit(False)
    with other_session.cursor() as cursor:
        cursor.execute("SELECT FROM dhara_bulk_change FOR UPDATE")
    with browse() as page:
        page.on("request", lambda request: times.append(monotonic()) if request.url.endswith("/step/") else None)
        page.goto(f"/admin/dhara/bulkchange/{change.pk}/change/")
        while len(times) < 4:
            page.wait_for_event("request")
        other_session.rollback()
        page.wait_for_selector(".dhara-completed >> text=Done")
    assert times[3] - times[1] > 0.9
    assert Task.objects.filter(state=State.PENDING).count() == 150


def test_why_a_bulk_change_stands_still_is_said_where_it_is_looked_at(browse, dead, monkeypatch):
    def slow(*arguments, **named):
        raise TooSlow

    monkeypatch.setattr(bulk.search, "walk", slow)
    change = bulk.create("default", "revive", parse("state:dead"))
    with browse() as page:
        page.goto(f"/admin/dhara/bulkchange/{change.pk}/change/")
        page.wait_for_selector("#dhara-failed:has-text('The search takes too long')")
    assert ["409" in problem for problem in browse.problems] == [True]
    browse.problems.clear()


def test_without_a_script_everything_works(browse, dead):
    with browse() as page:
        page.route(re.compile(r"/dhara/.*\.js"), lambda route: route.abort("aborted"))
        page.context.on("requestfailed", lambda request: None)
        page.goto(LIST + "?q=state:dead")
        page.check("input[name=select_across]")
        page.select_option("select[name=action]", "retry")
        page.click(".dhara-bar button")
        page.click(".dhara-confirmation button")
        page.click("text=Continue")
        page.wait_for_selector("text=150 retried.")


def test_hostile_names_look_right_and_run_nothing(browse, hostile, picture, accessible):
    for size in (WIDE, NARROW):
        with browse(size) as page:
            page.goto(LIST)
            assert page.title() != "run"
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
            picture(page, f"tasks-hostile-{'wide' if size is WIDE else 'narrow'}")
            accessible(page)
            page.click("#result_list tbody tr:first-child a")
            page.wait_for_selector("h1")
            assert page.title() != "run"
    assert fresh(hostile).state == State.DEAD


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_list_fits_its_window(browse, shop, picture, accessible, size, scheme):
    where = f"{'wide' if size is WIDE else 'narrow'}-{scheme}"
    addresses = {
        "tasks": "",
        "tasks-filtered": "?q=state:dead,pending+function:send_receipt+after:2h",
        "tasks-nothing": "?q=state:dead+queue:nothing+priority:>50",
    }
    with browse(size, scheme) as page:
        for name, query in addresses.items():
            page.goto(LIST + query)
            picture(page, f"{name}-{where}")
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name
            table = "document.querySelector('.results')"
            assert not page.evaluate(f"{table} && {table}.scrollWidth - {table}.clientWidth > 1"), name
            accessible(page)
        page.click(".dhara-help summary")
        picture(page, f"tasks-help-{where}")
        accessible(page)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_long_queue_pushes_no_column_out(browse, shop, picture, size):
    a_task(queue="q" * 255)
    with browse(size) as page:
        for name, address, height in (("tasks", LIST, 120), ("queues", "/admin/dhara/queue/", 230)):
            page.goto(address)
            picture(page, f"{name}-long-queue-{'wide' if size is WIDE else 'narrow'}")
            row = page.locator(".results tbody tr", has_text="qqqq").bounding_box()
            frame = page.locator(".results").bounding_box()
            assert row["x"] + row["width"] <= frame["x"] + frame["width"] + 1, name
            assert row["height"] <= height, name


def test_the_docs_have_their_pictures_of_tasks(browse, shop, picture):
    """`SCREENSHOTS=docs/images python -m pytest tests/browser -m browser -k docs_have` makes those of docs/how-to."""
    with browse() as page:
        page.goto(LIST + "?q=after:2h+-queue:reports")
        picture(page, "tasks")
        why = {"reason": "receipts work again", "user_name": "operator"}
        change = bulk.create("default", "revive", parse("state:completed"), **why)
        BulkChange.objects.update(search="state:dead", counts={"revived": 31, "busy": 2}, looked_at=33)
        Task.objects.filter(state=State.COMPLETED).update(state=State.DEAD)
        page.set_viewport_size({"width": 1280, "height": 640})
        page.route("**/step/", lambda route: None)
        page.goto(f"/admin/dhara/bulkchange/{change.pk}/change/")
        picture(page, "bulk-change")
