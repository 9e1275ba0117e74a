"""The overview in a real browser: it fits, it tells, it refreshes without moving anything, and says when it is
stale."""

import pytest
from django.db import connection

from django_dhara.models import Minute, Queue
from tests.browser.conftest import NARROW, WIDE
from tests.minutes import CHARGE, MAIL, a_crew, a_minute, an_afternoon
from tests.rows import a_task, ago

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OVERVIEW = "/admin/dhara/"


@pytest.fixture
def afternoon(transactional_db):
    an_afternoon(days=7)
    a_crew()


def quickly(page, milliseconds=300):
    """Opens the overview, which then refreshes itself more often than people need it to."""
    faster = f"const set = window.setInterval; window.setInterval = (f) => set(f, {milliseconds});"
    page.add_init_script(faster)
    page.goto(OVERVIEW)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_overview_fits_its_window(browse, afternoon, picture, accessible, size, scheme):
    with browse(size, scheme) as page:
        for key in ("1h", "7d", "5m"):
            page.goto(f"{OVERVIEW}?range={key}")
            picture(page, f"overview-{key}-{'wide' if size is WIDE else 'narrow'}-{scheme}")
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, key
            accessible(page)


def test_the_docs_have_their_picture_of_the_overview(browse, afternoon, picture):
    with browse() as page:
        page.goto(OVERVIEW)
        picture(page, "overview", whole=False)


def test_a_number_stays_within_its_tile(browse, transactional_db, picture):
    for minutes in range(0, 60, 20):
        a_minute(minutes, completed=25)
    with browse({"width": 1300, "height": 800}) as page:
        page.goto(f"{OVERVIEW}?range=7d")
        picture(page, "overview-tiles", whole=False)
        wide = (
            "[...document.querySelectorAll('.dhara-cards > div')].filter((tile) => tile.scrollWidth > tile.clientWidth)"
        )
        assert page.evaluate(f"{wide}.map((tile) => tile.innerText)") == []


def test_a_quiet_queue_and_an_empty_one_look_right_too(browse, transactional_db, picture, accessible):
    with browse() as page:
        page.goto(OVERVIEW)
        assert "Nothing. Queues are served, nothing fails." in page.locator(".dhara-attention").inner_text()
        picture(page, "overview-empty")
        accessible(page)


def test_the_keyboard_alone_reaches_ranges_what_needs_a_person_and_the_table_of_values(browse, afternoon):
    with browse() as page:
        page.goto(OVERVIEW)
        page.focus(".dhara-ranges a >> text=24 h")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?range=24h")
        page.focus(".dhara-values summary")
        page.keyboard.press("Enter")
        assert page.locator(".dhara-values tbody tr").count() == 97
        assert page.locator(".dhara-values tbody tr").first.is_visible()
        page.focus(".dhara-attention a >> text=Failed tasks")
        page.keyboard.press("Enter")
        page.wait_for_selector(f".dhara-chips >> text={CHARGE}")
        assert page.locator(".dhara-chips >> text=error:any").count() == 1


def test_the_pointer_is_told_the_values_of_a_step(browse, afternoon):
    with browse() as page:
        page.goto(OVERVIEW)
        page.hover("#dhara-chart-latency rect.dhara-hit >> nth=30")
        told = page.locator("#dhara-chart-latency .dhara-readout").inner_text()
        assert told.count("·") == 3
        assert "p99" in told
        assert page.locator("#dhara-chart-latency rect.dhara-hit title").nth(30).inner_html() == told
        page.mouse.move(5, 5)
        assert page.locator("#dhara-chart-latency .dhara-readout").inner_text() == ""


def test_a_refresh_changes_what_differs_and_leaves_the_rest_alone(browse, afternoon):
    with browse() as page:
        quickly(page)
        page.locator(".dhara-values summary").click()
        page.focus("#dhara-table-functions a >> nth=0")
        scrolled = page.evaluate("window.scrollY")
        page.evaluate("""() => {
            window.link = document.activeElement;
            window.untouched = document.querySelector("#dhara-table-workers h2");
            window.changes = [];
            new MutationObserver((all) => window.changes.push(...all))
                .observe(untouched, { childList: true, characterData: true, subtree: true, attributes: true });
        }""")
        before = page.locator("#dhara-table-queues tbody tr >> nth=0").inner_text()
        for _ in range(7):
            a_task(function=MAIL, queue="email", run_at=ago(200))
        a_minute(0, queue="email", function=MAIL, completed=900, run_histogram={"20": 900}, wait_histogram={"3": 900})
        page.wait_for_selector(".dhara-attention >> text=67 ready")
        assert page.locator("#dhara-table-queues tbody tr >> nth=0").inner_text() != before
        assert page.evaluate("document.activeElement === window.link && window.link.isConnected")
        assert page.evaluate("window.scrollY") == scrolled > 0
        assert page.evaluate("document.querySelector('.dhara-values').open")
        assert page.evaluate("window.changes.length") == 0, "what did not change was written again"


def test_what_comes_and_goes_above_does_not_move_the_focus_to_another_line(browse, afternoon):
    function = "document.activeElement.getAttribute('href')"
    with browse() as page:
        quickly(page)
        page.locator(".dhara-attention a", has_text="Failed tasks").first.focus()
        before = page.evaluate(function)
        for _ in range(5):
            a_minute(0, function="aaa", queue="aaa", failed=200)
        page.wait_for_selector(".dhara-attention >> text=aaa")
        assert page.evaluate(function) == before
        Minute.objects.filter(function="aaa").delete()
        page.wait_for_selector(".dhara-attention >> text=aaa", state="detached")
        assert page.evaluate(function) == before


def test_a_pause_lasts_until_it_is_ended(browse, afternoon):
    with browse() as page:
        quickly(page)
        asked = []
        page.click("button >> text=Stop refreshing")
        page.wait_for_selector(".dhara-said >> text=Not refreshing")
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(1200)
        assert asked == []
        page.reload()
        page.wait_for_selector(".dhara-said >> text=Not refreshing")
        page.click("button >> text=Refresh again")
        with page.expect_request("**/admin/dhara/"):
            pass
        page.wait_for_selector(".dhara-said >> text=Live")


def test_a_hidden_tab_asks_nothing_and_asks_at_once_when_it_is_seen_again(browse, afternoon):
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with browse() as page:
        quickly(page)
        page.wait_for_selector(".dhara-said >> text=Live")
        with page.expect_response("**/admin/dhara/"):
            pass
        page.evaluate(hide, True)
        page.wait_for_timeout(500)  # what was on its way
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(1200)
        assert asked == []
        with page.expect_request("**/admin/dhara/"):
            page.evaluate(hide, False)


def test_a_page_that_cannot_be_refreshed_says_so_and_recovers(browse, afternoon, picture):
    with browse() as page:
        quickly(page)
        page.wait_for_selector(".dhara-said >> text=Live")
        page.route("**/admin/dhara/", lambda route: route.abort())
        page.wait_for_selector(".dhara-said >> text=The server cannot be reached. What you see is")
        picture(page, "overview-stale")
        page.unroute("**/admin/dhara/")
        page.route("**/admin/dhara/", lambda route: route.fulfill(status=503, body="no"))
        page.wait_for_selector(".dhara-said >> text=The server answers with an error (503)")
        page.unroute("**/admin/dhara/")
        page.wait_for_selector(".dhara-said >> text=Live")
        page.context.clear_cookies()
        page.wait_for_selector(".dhara-said >> text=You are no longer logged in")
    assert all(problem.startswith("Failed to load resource") for problem in browse.problems)
    browse.problems.clear()


HOSTILE = "<script>document.title='owned'</script>\u202ekcab \u05e9\u05dc\u05d5\u05dd"


def test_hostile_names_are_shown_and_run_nothing(browse, transactional_db, picture):
    for name in (HOSTILE, "x" * 300):
        a_minute(0, queue=name, function=name, completed=3, failed=9, run_histogram={"5": 12}, wait_histogram={"5": 12})
        a_task(queue=name, function=name, run_at=ago(500))
        Queue.objects.create(backend="default", name=name, paused_at=ago(5))
    with browse(NARROW) as page:
        quickly(page)
        picture(page, "overview-hostile")
        assert page.title().startswith("Dhara")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        assert "<script>" in page.locator(".dhara-attention").inner_text()
        with page.expect_response("**/admin/dhara/"):
            pass
        assert page.title().startswith("Dhara")
    connection.close()
