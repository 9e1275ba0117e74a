"""Tokens of the HTTP API in a real browser: made, shown once, revoked."""

import pytest
from django.contrib.admin.models import LogEntry

from django_dhara import tokens
from django_dhara.models import Token
from tests.browser.conftest import NARROW, WIDE
from tests.rows import ago

pytestmark = pytest.mark.browser

LIST, ADD = "/admin/dhara/token/", "/admin/dhara/token/add/"
HOSTILE = "<script>document.title='owned'</script> \u05e9\u05dc\u05d5\u05dd"


@pytest.fixture
def known(transactional_db):
    """One in use, one that expired, one that was revoked, one with a name of somebody else's making."""
    tokens.create("shop front", ["read", "enqueue"], queues=["email", "default"], created_by="operator")
    tokens.create("the deploy of last year", ["operate"], created_by="operator")
    tokens.create("left the company", ["read"], created_by="eve")
    tokens.create(HOSTILE, ["read"], queues=["q" * 60])
    Token.objects.filter(name="shop front").update(used_at=ago(40))
    Token.objects.filter(scopes=["operate"]).update(expires_at=ago(86_400), created_at=ago(90 * 86_400))
    Token.objects.filter(created_by="eve").update(revoked_at=ago(9))


def is_in_its_window(page):
    table = "document.querySelector('.results')"
    fits = page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    return fits and not page.evaluate(f"{table} && {table}.scrollWidth - {table}.clientWidth > 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_of_tokens_fits_its_window(browse, known, picture, accessible, size, scheme):
    where = f"{'wide' if size is WIDE else 'narrow'}-{scheme}"
    with browse(size, scheme) as page:
        page.goto(LIST)
        assert page.title() != "owned"
        picture(page, f"tokens-{where}")
        assert is_in_its_window(page)
        accessible(page)
        page.goto(ADD)
        picture(page, f"token-add-{where}")
        assert is_in_its_window(page)
        accessible(page)
        page.click("input[type=submit].default")
        page.fill("#id_name", "\u2067" + "x" * 20)
        page.fill("#id_expires_at_0", "nonsense")
        page.click("input[type=submit].default")
        page.wait_for_selector(".errorlist >> nth=0")
        picture(page, f"token-errors-{where}")
        assert is_in_its_window(page)
        accessible(page)
        page.fill("#id_name", "a" * 100)
        page.fill("#id_expires_at_0", "")
        page.check("input[name=scopes][value=read]")
        page.click("input[type=submit].default")
        page.wait_for_selector("text=This is the token of")
        picture(page, f"token-made-{where}")
        assert is_in_its_window(page)
        accessible(page)


def test_a_token_is_made_shown_once_and_revoked_by_the_keyboard_alone(browse, transactional_db, picture, accessible):
    with browse() as page:
        page.goto(LIST)
        page.focus("a.addlink >> text=Add token")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1 >> text=Add a token")
        page.focus("#id_name")
        page.keyboard.type("shop front")
        page.focus("input[name=scopes][value=enqueue]")
        page.keyboard.press("Space")
        page.focus("#id_queues")
        page.keyboard.type("email, default")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Copy it now")
        secret = page.inner_text("#dhara-secret")
        row = tokens.find(tokens.Secret(secret))
        assert (row.name, row.scopes, row.queues) == ("shop front", ["enqueue"], ["default", "email"])
        page.focus("text=I have it")
        page.keyboard.press("Enter")
        page.wait_for_selector("#result_list >> text=shop front")
        assert secret not in page.content()
        page.focus("#result_list input.action-select")
        page.keyboard.press("Space")
        page.focus("select[name=action]")
        page.keyboard.type("Revoke")
        page.focus("button[name=index]")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1 >> text=Revoke 1 token?")
        picture(page, "token-revoke")
        accessible(page)
        page.focus("button.dhara-danger")
        page.keyboard.press("Enter")
        page.wait_for_selector(".messagelist >> text=1 token revoked.")
        page.wait_for_selector("#result_list >> text=Revoked")
        accessible(page)
    assert tokens.find(tokens.Secret(secret)) is None
    assert LogEntry.objects.count() == 2


def test_the_secret_is_copied_by_a_button(browse, transactional_db):
    with browse() as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(ADD)
        page.fill("#id_name", "shop front")
        page.check("input[name=scopes][value=read]")
        page.click("input[type=submit].default")
        page.locator("button >> text=Copy").click()
        page.locator("button >> text=✓").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#dhara-secret")
