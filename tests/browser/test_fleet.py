"""Queues and workers in a real browser: pause and resume, drain, stacks; and how each screen looks."""

from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry

from django_dhara import operations
from django_dhara.models import Command, Queue, Worker
from tests.browser.conftest import NARROW, WIDE
from tests.minutes import a_crew, an_afternoon
from tests.rows import a_task, ago

pytestmark = pytest.mark.browser

QUEUES, WORKERS = "/admin/dhara/queue/", "/admin/dhara/worker/"
BUSY = UUID(int=1)
STACK = """  File "/usr/lib/python3.13/threading.py", line 1044, in _bootstrap
    self._bootstrap_inner()
  File "/srv/shop/.venv/lib/python3.13/site-packages/django_dhara/worker/executors.py", line 221, in _serve
    run.outcome = call(run)
  File "/srv/shop/images/tasks.py", line 31, in shrink
    image.thumbnail((size, size))
"""
IDLE = """  File "/usr/lib/python3.13/threading.py", line 1044, in _bootstrap
    self._bootstrap_inner()
  File "/srv/shop/.venv/lib/python3.13/site-packages/django_dhara/worker/executors.py", line 210, in _next
    self._tickets.get()
"""


@pytest.fixture
def fleet(transactional_db):
    """An afternoon of a shop, with a queue that nobody serves, and workers that drain, were killed and stopped."""
    an_afternoon()
    a_crew()
    Worker.objects.update(queues=["email", "default", "images", "reports"], memory_bytes=187_000_000)
    for pid, columns in {
        21: {"draining_at": ago(9), "version": "0.1.9"},
        22: {"heartbeat_at": ago(45)},
        23: {"heartbeat_at": ago(90_00)},
        24: {"stopped_at": ago(600), "heartbeat_at": ago(610)},
    }.items():
        values = {"backend": "default", "version": "0.2.0", "concurrency": 4, "lease_seconds": 30.0}
        Worker.objects.create(
            **{**values, "name": f"box5-{pid}", "host": "box5", "pid": pid, "queues": ["email"], **columns}
        )
    for _ in range(3):
        a_task(queue="exports", function="shop.reports.tasks.export_everything", run_at=ago(400))
    stacks = {f"dhara-thread_{n} 1400{n}": IDLE for n in range(7)} | {"dhara-thread_8 14008": STACK}
    Command.objects.create(worker_id=BUSY, verb="STACKS", created_at=ago(31), answered_at=ago(30), answer=stacks)


def test_an_operator_pauses_a_queue_and_resumes_it(browse, fleet, picture):
    with browse() as page:
        page.goto(QUEUES)
        page.get_by_role("button", name="Pause images").click()
        assert page.locator(".messagelist").inner_text() == "Queue images is paused: workers claim nothing more of it."
        page.wait_for_selector(".dhara-alert >> text=/Queue images has been paused for .* by operator/")
        page.click("th a >> text=images")
        page.wait_for_selector("text=/It has been paused for .* by operator/")
        page.get_by_role("button", name="Resume").click()
        assert page.locator(".messagelist").inner_text() == "Queue images is resumed."
        page.wait_for_selector("text=Resumed.")
    assert Queue.objects.get(name="images").paused_at is None
    assert LogEntry.objects.count() == 2


def test_a_page_that_is_out_of_date_pauses_nothing_twice(browse, fleet):
    with browse() as page:
        page.goto(QUEUES)
        operations.pause("images")
        page.get_by_role("button", name="Pause images").click()
        assert page.locator(".messagelist").inner_text() == "Queue images was paused already."
    assert not LogEntry.objects.exists()


def test_an_operator_drains_one_worker_and_looks_at_its_threads(browse, fleet, picture):
    with browse() as page:
        page.goto(WORKERS)
        page.click("#result_list a >> text=box7-41")
        page.wait_for_selector("text=7 threads do the same")
        page.get_by_role("button", name="Drain").click()
        page.wait_for_selector("h1 >> text=Drain 1 worker?")
        page.get_by_role("button", name="Yes, drain").click()
        assert page.locator(".messagelist").inner_text() == "1 worker asked to drain."
        assert page.get_by_role("button", name="Drain").is_disabled()
        page.get_by_role("button", name="Show stacks").click()
        page.wait_for_selector("text=no answer yet")
    assert sorted(Command.objects.filter(answered_at=None).values_list("verb", flat=True)) == ["DRAIN", "STACKS"]


def test_the_keyboard_alone_drains_selected_workers(browse, fleet, picture, accessible):
    with browse() as page:
        page.goto(WORKERS)
        page.focus("#action-toggle")
        page.keyboard.press("Space")
        page.focus("select[name=action]")
        page.keyboard.press("ArrowDown")
        page.focus("button[name=index]")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1 >> text=Drain 6 workers?")
        picture(page, "drain-confirm")
        accessible(page)
        page.focus("button.default")
        page.keyboard.press("Enter")
        said = page.locator(".messagelist").inner_text()
        assert said == "5 workers asked to drain, 1 drains already or is gone."
    assert Command.objects.filter(verb="DRAIN").count() == LogEntry.objects.count() == 5


def often(page, address, milliseconds=200):
    """Opens a page that then refreshes itself more often than people need it to."""
    page.add_init_script(f"const set = window.setInterval; window.setInterval = (f) => set(f, {milliseconds});")
    page.goto(address)


def test_the_list_of_queues_refreshes_itself(browse, fleet):
    with browse() as page:
        often(page, QUEUES)
        page.evaluate("window.untouched = true")
        a_task(queue="brand new")
        page.wait_for_selector("th a >> text=brand new")
        operations.pause("images")
        page.wait_for_selector("text=Queue images has been paused for")
        assert page.evaluate("window.untouched"), "it loaded the whole page anew"


def test_no_line_comes_under_a_hand_that_is_about_to_press(browse, fleet):
    with browse() as page:
        often(page, QUEUES)
        page.get_by_role("button", name="Pause images").focus()
        a_task(queue="a new one, before all others")
        page.wait_for_selector("th a >> text=a new one")
        assert page.evaluate("document.activeElement.innerText").split() == ["Pause", "images"], (
            "the hand lost its button"
        )
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Queue images is paused")
    assert not Queue.objects.filter(paused_at__isnull=False).exclude(name__in=["reports", "images"]).exists()


@pytest.mark.parametrize("address", [f"/admin/dhara/worker/{BUSY}/change/", f"{QUEUES}default_3Aimages/change/"])
def test_a_page_is_the_same_page_after_it_has_refreshed_itself(browse, fleet, address):
    """Django's sidebar has ids of its own; the two must not meet."""
    with browse() as page:
        often(page, address)
        with page.expect_response(f"**{address}"), page.expect_response(f"**{address}"):
            pass
        page.wait_for_timeout(400)
        assert page.locator(".dhara-standing").count() == 1
        assert page.locator(".dhara-facts dt").count() > 5
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids))


def test_what_a_reader_has_folded_stays_folded(browse, fleet):
    answer = {"MainThread": "  File a, line 1, in wait\n", "dhara-run": "  File b\n  File c\n"}
    Command.objects.create(
        worker_id=BUSY, verb=Command.Verb.STACKS, answer=answer, created_at=ago(5), answered_at=ago(4)
    )
    with browse() as page:
        often(page, f"/admin/dhara/worker/{BUSY}/change/")
        page.locator("#stacks summary").first.click()
        Worker.objects.filter(pk=BUSY).update(version="0.9.9")
        page.wait_for_selector("dd >> text=0.9.9")
        assert page.locator("#stacks details").first.get_attribute("open") is None


def test_the_list_of_workers_stands_still_while_some_are_selected(browse, fleet):
    with browse() as page:
        often(page, WORKERS)
        Worker.objects.filter(pid=21).update(stopped_at=ago(0))
        page.wait_for_selector("text=box5:21", state="detached")
        page.check("#result_list tr:has-text('box8:4002') input")
        Worker.objects.filter(pid=4003).update(stopped_at=ago(0))
        page.wait_for_timeout(1000)
        assert page.locator("text=box9:4003").is_visible()
        page.uncheck("#result_list tr:has-text('box8:4002') input")
        page.wait_for_selector("text=box9:4003", state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_of_the_fleet_fits_its_window(browse, fleet, picture, accessible, size, scheme):
    late = Worker.objects.get(pid=22)
    addresses = {
        "queues": QUEUES,
        "queue": f"{QUEUES}default_3Aemail/change/",
        "queue-paused": f"{QUEUES}default_3Areports/change/",
        "queue-unserved": f"{QUEUES}default_3Aexports/change/",
        "workers": WORKERS,
        "workers-lost": f"{WORKERS}?status=lost",
        "worker": f"{WORKERS}{BUSY}/change/",
        "worker-late": f"{WORKERS}{late.pk}/change/",
    }
    with browse(size, scheme) as page:
        for name, address in addresses.items():
            Worker.objects.filter(pid__gt=4000).update(heartbeat_at=ago(4))
            page.goto(address)
            picture(page, f"{name}-{'wide' if size is WIDE else 'narrow'}-{scheme}")
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, name
            accessible(page)
            table = "document.querySelector('.results')"
            assert not page.evaluate(f"{table} && {table}.scrollWidth - {table}.clientWidth > 1"), name


def test_the_docs_have_their_pictures_of_the_fleet(browse, fleet, picture):
    """`SCREENSHOTS=docs/images python -m pytest tests/browser -m browser -k docs_have` makes those of docs/how-to."""
    addresses = {
        "queues": QUEUES,
        "queue": f"{QUEUES}default_3Aemail/change/",
        "workers": WORKERS,
        "worker": f"{WORKERS}{BUSY}/change/",
    }
    with browse({"width": 1280, "height": 720}) as page:
        for name, address in addresses.items():
            Worker.objects.filter(pid__gt=4000).update(heartbeat_at=ago(4))
            page.goto(address)
            picture(page, name)
