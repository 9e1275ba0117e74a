"""A headless Chromium on a live server. Playwright's own loop runs in this thread, hence DJANGO_ALLOW_ASYNC_UNSAFE."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import override_settings

from tests.browser.shop import shop  # noqa: F401

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
#: Nothing but our own files: no inline script or style, no other host.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "connect-src 'self'"
)


@pytest.fixture(scope="session", autouse=True)
def _strict_policy():
    """The live server loads its middleware once, when it starts."""
    with override_settings(MIDDLEWARE=[*django_settings.MIDDLEWARE, "tests.browser.policy.StrictPolicy"]):
        yield


@pytest.fixture(scope="session")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`")
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def operator(transactional_db):
    return User.objects.create_superuser("operator", password="let me in")


@pytest.fixture
def browse(chromium, _strict_policy, live_server, operator):
    """Opens a page that is logged in; afterwards no page may have had an error or met the content policy."""
    problems = []

    @contextmanager
    def open_page(size=WIDE, scheme="light"):
        context = chromium.new_context(base_url=live_server.url, viewport=size, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        answer = page.goto("/admin/login/?next=/admin/")
        assert answer.headers["content-security-policy"] == POLICY
        page.fill("#id_username", "operator")
        page.fill("#id_password", "let me in")
        page.click("input[type=submit]")
        yield page
        context.close()

    #: A test that breaks something on purpose empties it.
    open_page.problems = problems
    yield open_page
    assert problems == []


@pytest.fixture
def picture(tmp_path):
    """Writes a screenshot into the folder SCREENSHOTS, or into the test's own; of the whole page, or of the window."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def take(page, name, whole=True):
        path, window = folder / f"{name}.png", page.viewport_size
        if whole:
            # In a window as high as the page: what sticks to the edge of a lower one would cover the middle.
            page.set_viewport_size({**window, "height": page.evaluate("document.documentElement.scrollHeight")})
        page.screenshot(path=path, full_page=whole)
        page.set_viewport_size(window)
        _with_a_palette(path)

    return take


def _with_a_palette(path):
    """Half the size, and nobody sees a difference: a page has few colours."""
    images = pytest.importorskip("PIL.Image", reason="needs `pip install pillow`")
    with images.open(path) as image:
        few = image.convert("RGB").quantize(128, images.Quantize.MAXCOVERAGE, kmeans=2)
    few.save(path, optimize=True)


#: Of what axe-core finds, what keeps somebody out; "moderate" and "minor" are matters of taste, often Django's own.
SERIOUS = ("serious", "critical")


@pytest.fixture
def accessible():
    """Asserts that axe-core finds nothing serious on a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()

    def check(page):
        found = axe.run(page).response["violations"]
        told = [
            f"{each['id']}: {each['help']}: {node['html'][:200]}"
            for each in found
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]
        assert told == []

    return check
