"""The page of the API's description in a real browser: under a strict policy, for everybody, and by a keyboard."""

import pytest

from django_dhara.api.openapi import document, operations, schemas
from tests.browser.conftest import NARROW, WIDE

pytestmark = pytest.mark.browser

PAGE, BASE = "/dhara/api/v1/docs", "/dhara/api/v1/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_page_of_the_api_fits_its_window(browse, picture, accessible, size, scheme):
    with browse(size, scheme) as page:
        answer = page.goto(PAGE)
        assert answer.status == 200
        assert "content-security-policy" in answer.headers
        assert page.evaluate("getComputedStyle(document.querySelector('section')).borderTopWidth") == "1px"
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        assert "`" not in page.locator("main").inner_text()
        accessible(page)
        name = f"api-{'wide' if size == WIDE else 'narrow'}-{scheme}"
        picture(page, name, whole=False)
        page.goto(f"{PAGE}#list_tasks")
        picture(page, f"{name}-call", whole=False)


def test_every_link_of_the_page_leads_somewhere(browse):
    described = document(BASE)
    named = {each.id for each in operations(described)} | {name for name, *_ in schemas(described)}
    with browse() as page:
        page.goto(PAGE)
        targets = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
        inner = {target[1:] for target in targets if target.startswith("#")}
        missing = [name for name in inner if page.locator(f"[id='{name}']").count() != 1]
        assert missing == []
        assert {each.id for each in operations(described)} <= inner <= named
        assert {target for target in targets if not target.startswith("#")} == {"openapi.json"}
        answer = page.goto(f"{BASE}openapi.json")
        assert (answer.status, answer.json()["openapi"]) == (200, "3.1.0")


def test_the_keyboard_alone_reaches_a_call(browse):
    with browse() as page:
        page.goto(PAGE)
        for _ in range(2):  # the document for programs, then the first call
            page.keyboard.press("Tab")
        first = page.evaluate("document.activeElement.hash")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{first}")
        assert page.evaluate("document.querySelector(':target').getBoundingClientRect().top") < 200


def test_without_a_login_the_page_is_a_problem_document(browse):
    with browse() as page:
        page.context.clear_cookies()
        answer = page.goto(PAGE)
        assert answer.status == 401
        assert answer.headers["content-type"].startswith("application/problem+json")
    assert all("401" in problem for problem in browse.problems)
    browse.problems.clear()
