"""The pages in German and French: longer words than English, in the same places."""

import pytest

from tests.browser.conftest import NARROW, WIDE
from tests.browser.test_fleet import BUSY, fleet  # noqa: F401
from tests.rows import a_task

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

TITLES = {"de": "Übersicht", "fr": "Vue d\u2019ensemble"}


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("language", TITLES)
def test_every_page_fits_its_window(browse, fleet, settings, picture, accessible, language, size):
    settings.LANGUAGE_CODE = language
    dead = a_task("DEAD", function="shop.orders.tasks.send_receipt", failures=5, error_class="smtplib.SMTPException")
    waits = a_task(function="shop.orders.tasks.send_receipt", queue="email", priority=10)
    addresses = {
        "overview": "",
        "tasks": "task/",
        "task-dead": f"task/{dead.pk}/change/",
        "task-waits": f"task/{waits.pk}/change/",
        "dead-letters": "task/dead/",
        "queues": "queue/",
        "queue": "queue/default_3Aemail/change/",
        "workers": "worker/",
        "worker": f"worker/{BUSY}/change/",
    }
    with browse(size) as page:
        for name, address in addresses.items():
            page.goto(f"/admin/dhara/{address}")
            picture(page, f"{language}-{name}-{'wide' if size is WIDE else 'narrow'}")
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name
            table = "document.querySelector('.results')"
            assert not page.evaluate(f"{table} && {table}.scrollWidth - {table}.clientWidth > 1"), name
            accessible(page)
        page.goto("/admin/dhara/")
        assert page.locator("h1").last.inner_text() == TITLES[language]
