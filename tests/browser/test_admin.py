"""The admin in a real browser: an operator logs in, looks, retries and cancels."""

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now

from django_dhara.models import Task, Worker
from django_dhara.states import State
from tests.browser.conftest import NARROW, WIDE
from tests.rows import WORKER, fresh

pytestmark = pytest.mark.browser


def test_an_operator_retries_a_dead_task(browse, shop, picture):
    with browse() as page:
        page.click("text=Tasks")
        page.click(".dhara-filters >> text=Dead")
        page.click("#result_list a >> text=send_receipt")
        page.wait_for_selector("text=Dead for")
        page.click("button >> text=Retry")
        assert page.locator(".messagelist").inner_text() == "1 retried."
        page.wait_for_selector("text=Ready: waits for a worker of queue email.")
        picture(page, "retried")
    assert fresh(shop).state == State.PENDING
    assert LogEntry.objects.get().user.username == "operator"


def test_an_operator_cancels_several_tasks_at_once(browse, shop, picture):
    with browse() as page:
        page.goto("/admin/dhara/task/")
        page.check("#dhara-toggle")
        page.select_option("select[name=action]", "cancel")
        picture(page, "selected")
        page.click("button[name=index]")
        page.wait_for_selector("h1 >> text=Cancel 20 tasks?")
        picture(page, "confirm")
        page.click("button.default")
        said = page.locator(".messagelist").inner_text()
        assert said == "4 canceled, 2 running: asked to stop, 14 had already finished."
        picture(page, "canceled")
    assert Task.objects.filter(state=State.PENDING).count() == 0


def test_the_keyboard_alone_reaches_a_button(browse, shop):
    with browse() as page:
        page.goto(f"/admin/dhara/task/{shop.pk}/change/")
        page.focus(".dhara-buttons button")
        page.keyboard.press("Enter")
        assert page.locator(".messagelist").inner_text() == "1 retried."


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_fits_its_window(browse, shop, picture, accessible, size, scheme):
    running = Task.objects.filter(state=State.RUNNING).first()
    Worker.objects.filter(pk=WORKER).update(heartbeat_at=Now())
    addresses = {
        "list": "/admin/dhara/task/",
        "filtered": "/admin/dhara/task/?state=DEAD&errors=yes",
        "dead": f"/admin/dhara/task/{shop.pk}/change/",
        "running": f"/admin/dhara/task/{running.pk}/change/",
        "workers": "/admin/dhara/worker/",
        "worker": f"/admin/dhara/worker/{WORKER}/change/",
    }
    with browse(size, scheme) as page:
        for name, address in addresses.items():
            page.goto(address)
            picture(page, f"{name}-{'wide' if size is WIDE else 'narrow'}-{scheme}")
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, name
            accessible(page)
            table = "document.querySelector('.results')"
            assert not page.evaluate(f"{table} && {table}.scrollWidth - {table}.clientWidth > 1"), name
