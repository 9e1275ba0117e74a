"""The page of one task and dead letters in a real browser: what moves by itself, folds, copies and can be pressed."""

import json
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.utils import timezone

from django_dhara.models import Command, Queue, Task, Worker
from django_dhara.states import State
from tests.browser.conftest import NARROW, WIDE
from tests.browser.shop import TRACEBACK
from tests.rows import WORKER, a_task, ago, an_attempt

pytestmark = pytest.mark.browser

STACK = """  File "/usr/lib/python3.13/threading.py", line 1012, in run
    self._target(*self._args, **self._kwargs)
  File "/srv/shop/.venv/lib/python3.13/site-packages/django_dhara/execution.py", line 318, in _call
    return function(*args, **kwargs)
  File "/srv/shop/stock/tasks.py", line 52, in sync_warehouse
    rows = client.fetch_all(warehouse.url)
  File "/srv/shop/stock/client.py", line 17, in fetch_all
    return self.session.get(url, timeout=30).json()
  File "/srv/shop/.venv/lib/python3.13/site-packages/requests/sessions.py", line 602, in get
    return self.request("GET", url, **kwargs)
  File "/usr/lib/python3.13/ssl.py", line 1138, in read
    return self._sslobj.read(len, buffer)
"""


MISTAKE = """Traceback (most recent call last):
  File "/srv/shop/.venv/lib/python3.13/site-packages/django_dhara/execution.py", line 318, in _call
    return function(*args, **kwargs)
           ~~~~~~~~^^^^^^^^^^^^^^^^^
  File "/srv/shop/orders/tasks.py", line 63, in charge
    rate = RATES[order.country]
           ~~~~~^^^^^^^^^^^^^^^
KeyError: 'CH'
"""


@pytest.fixture
def running(shop):
    """The task that syncs the warehouse, forty percent done."""
    task = Task.objects.get(state=State.RUNNING, function="shop.stock.tasks.sync_warehouse")
    Worker.objects.filter(pk=WORKER).update(heartbeat_at=Now())
    Task.objects.filter(pk=task.pk).update(
        progress={"done": 412, "of": 1030, "message": "warehouse Leipzig"},
        payload={
            "args": ["leipzig"],
            "kwargs": {"since": "2026-11-29", "options": {"full": False, "pages": [1, 2, 3]}},
        },
        checkpoint={"page": 4, "cursor": "eyJpZCI6NDEyfQ"},
        lease_until=ago(-28),
    )
    return task


@pytest.fixture
def letters(shop):
    """A bad evening: a mail server that is away, a bug since a deploy, and a task that kills its workers."""
    now = timezone.now()
    many = [
        ("shop.orders.tasks.send_receipt", "smtplib.SMTPRecipientsRefused", "a1", 60, 400, TRACEBACK),
        ("shop.orders.tasks.charge", "builtins.KeyError", "b2", 9, 300, MISTAKE),
        ("shop.images.tasks.shrink", "django_dhara.errors.WorkerLost", "WorkerLost", 3, 20_000, ""),
    ]
    for function, error, place, number, step, trace in many:
        for n in range(number):
            last = now - timedelta(seconds=40 + n * n * step / 60)
            columns = {"function": function, "error_class": error, "error_fingerprint": place, "queue": "email"}
            columns |= {"finished_at": last, "enqueued_at": last - timedelta(seconds=300), "failures": 5}
            a_task(State.DEAD, payload={"args": [48213 + n], "kwargs": {"language": "de"}}, **columns)
        newest = Task.objects.filter(function=function, error_fingerprint=place).latest("finished_at")
        an_attempt(newest, message=trace.rstrip().rpartition("\n")[2].partition(": ")[2], traceback=trace)
    return many


def page_of(task):
    return f"/admin/dhara/task/{task.pk}/change/"


def shape(size, scheme):
    return f"{'wide' if size is WIDE else 'narrow'}-{scheme}"


@pytest.fixture
def addresses(running, letters):
    """The screens, by name."""
    argument = {"task": str(running.pk), "lease": running.lease}
    answer = {"where": "thread", "stack": STACK}
    answered = Command.objects.create(
        worker_id=WORKER, verb="STACKS", argument=argument, answered_at=Now(), answer=answer
    )
    function, error, place, *_ = letters[1]
    return {
        "task-running": f"{page_of(running)}?stack={answered.pk}",
        "task-dead": page_of(Task.objects.get(state=State.DEAD, metadata__isnull=False)),
        "dead-letters": "/admin/dhara/task/dead/",
        "dead-group": f"/admin/dhara/task/dead/group/?backend=default&function={function}&error={error}&place={place}",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_fits_its_window(browse, addresses, picture, accessible, size, scheme):
    with browse(size, scheme) as page:
        for name, address in addresses.items():
            page.goto(address)
            page.wait_for_load_state()
            picture(page, f"{name}-{shape(size, scheme)}")
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name
            accessible(page)


def test_the_docs_have_their_pictures(browse, addresses, picture):
    """`SCREENSHOTS=docs/images python -m pytest tests/browser -m browser -k docs_have` makes those of docs/how-to."""
    rest = "#header, #nav-sidebar, #toggle-nav-sidebar, .dhara-document ~ .dhara-document"
    with browse({"width": 920, "height": 400}) as page:
        for name, address in addresses.items():
            page.goto(address)
            page.evaluate(f"document.querySelectorAll('{rest}').forEach((part) => part.remove())")
            picture(page, name)


def test_progress_moves_by_itself_and_stops_at_the_end(browse, running):
    with browse() as page:
        page.goto(page_of(running))
        assert page.locator("progress").get_attribute("value") == "40.0"
        Task.objects.filter(pk=running.pk).update(progress={"done": 1030, "of": 1030})
        page.wait_for_selector("text=1,030 of 1,030")
        Task.objects.filter(pk=running.pk).update(state=State.COMPLETED, finished_at=Now())
        page.wait_for_selector(".dhara-live >> text=Completed")
        assert page.locator("[data-dhara-refresh]").count() == 0


def test_the_page_of_a_retried_task_follows_it_to_its_end(browse, shop, running):
    """No badge, button or timeline of a state that is over stands beside the new one; what was folded stays so."""
    buttons = ".dhara-standing form button"
    with browse() as page:
        Task.objects.filter(pk=shop.pk).update(error_fingerprint="f00")
        page.goto(page_of(shop))
        page.locator(buttons, has_text="Retry").first.click()
        page.wait_for_selector("h1 >> text=Pending")
        page.locator(".dhara-attempt > summary").first.click()
        columns = {"worker_id": WORKER, "lease": 9, "lease_until": ago(-60), "attempted_at": Now()}
        Task.objects.filter(pk=shop.pk).update(state=State.RUNNING, **columns)
        page.wait_for_selector("h1 >> text=Running")
        assert page.locator(buttons).all_inner_texts() == ["Cancel", "Show stack"]
        ended = {"worker_id": None, "lease_until": None, "finished_at": Now(), "result": {"sent": True}}
        Task.objects.filter(pk=shop.pk).update(state=State.COMPLETED, **ended)
        page.wait_for_selector("h1 >> text=Completed")
        assert page.locator(buttons).all_inner_texts() == ["Delete…"]
        assert page.locator(".dhara-what").last.inner_text() == "Completed"
        assert page.locator("h2", has_text="Result").count() == 1
        assert page.locator(".dhara-attempt").first.get_attribute("open") is None
        assert page.locator(".dhara-attempt").first.locator("button").get_attribute("hidden") is None
        assert page.locator("[data-dhara-refresh]").count() == 0


def test_the_page_of_a_waiting_task_tells_when_its_queue_is_paused(browse, shop):
    task = Task.objects.filter(state=State.PENDING, queue="email").first()
    with browse() as page:
        page.goto(page_of(task))
        Queue.objects.create(backend="default", name="email", paused_at=Now())
        page.wait_for_selector(".dhara-live >> text=has been paused")


def test_nothing_is_fetched_while_the_tab_is_hidden(browse, running):
    with browse() as page:
        page.goto(page_of(running))
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.wait_for_timeout(4500)  # two looks' time
        assert asked == []
        with page.expect_request("**/live/"):
            page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")


def test_a_stack_appears_when_the_worker_answers(browse, running):
    with browse() as page:
        page.goto(page_of(running))
        page.focus("text=Show stack")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Its worker has been asked")
        Command.objects.update(answered_at=Now(), answer={"where": "thread", "stack": STACK})
        page.wait_for_selector("#dhara-frames .dhara-own >> text=fetch_all")
        assert page.locator("text=return self.session.get(url").is_visible()
        assert not page.locator("text=return self._sslobj.read").is_visible()
        page.click("summary >> text=2 frames of requests, ssl")
        assert page.locator("text=return self._sslobj.read").is_visible()


def test_a_worker_that_says_nothing_is_given_up(browse, running):
    with browse() as page:
        page.goto(page_of(running))
        page.click("text=Show stack")
        page.wait_for_selector("text=Its worker has not answered", timeout=8000)


def test_json_folds_and_copies_whole(browse, running):
    payload = {"args": ["x" * 300_000], "kwargs": {"last": "seen"}}
    Task.objects.filter(pk=running.pk).update(payload=payload)
    with browse() as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(page_of(running))
        section = page.locator("section.dhara-document").first
        assert section.locator("text=seen").first.is_visible()
        section.locator("summary", has_text="kwargs").focus()
        page.keyboard.press("Enter")
        assert not section.locator(".dhara-json >> text=seen").is_visible()
        section.locator("button").click()
        section.locator("button >> text=✓").wait_for()
        assert json.loads(page.evaluate("navigator.clipboard.readText()")) == payload


def test_where_the_clipboard_is_closed_the_text_is_selected(browse, shop):
    with browse() as page:
        page.goto(page_of(shop))
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.locator("text=Copy traceback").first.click()
        selected = page.evaluate("getSelection().toString()")
        assert "smtp.send_message(message)" in selected
        assert "raise SMTPRecipientsRefused(senderrs)" in selected  # folded until then


def test_an_operator_finds_what_died(browse, letters):
    with browse() as page:
        page.goto("/admin/dhara/task/dead/")
        assert page.locator(".dhara-group").count() >= 4
        page.click(".dhara-group a >> text=KeyError")
        page.wait_for_selector("text=9 dead tasks of")
        assert page.locator(".dhara-own >> text=in charge").is_visible()
        page.click("#dhara_members a >> nth=0")
        page.wait_for_selector("text=Dead for")


def test_an_operator_retries_a_group_after_a_deploy(browse, letters, picture):
    with browse() as page:
        page.goto("/admin/dhara/task/dead/")
        page.click(".dhara-group a >> text=KeyError")
        page.click("button >> text=Retry all")
        page.wait_for_selector("text=Retry 9 tasks?")
        picture(page, "dead-retry-asked")
        page.click("button.default")
        page.wait_for_selector("text=9 retried.")
        picture(page, "dead-retried")
    assert (
        Task.objects.filter(function="shop.orders.tasks.charge", error_fingerprint="b2", state=State.DEAD).count() == 0
    )


def test_a_group_is_discarded_by_keyboard_and_not_without_a_reason(browse, letters, picture, accessible):
    with browse(NARROW) as page:
        page.goto("/admin/dhara/task/dead/")
        page.click(".dhara-group a >> text=WorkerLost")
        page.focus("summary:has-text('Discard all')")
        page.keyboard.press("Enter")
        page.focus("#dhara-reason")
        page.keyboard.press("Enter")  # the browser asks for the reason
        assert "/dead/group/" in page.url
        page.keyboard.type("those pictures are gone")
        picture(page, "dead-discard-asked")
        accessible(page)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=3 deleted.")
    assert not Task.objects.filter(error_fingerprint="WorkerLost").exists()
    assert LogEntry.objects.filter(change_message__contains="those pictures are gone").count() >= 3


def test_hostile_rows_look_right_and_run_nothing(browse, shop, picture):
    task = a_task(
        State.DEAD,
        function="shop.<script>alert(1)</script>.\u202edaolpu",
        error_class="<img src=x onerror=alert(1)>",
        payload={"args": ["<script>alert(1)</script>", "\u202eabc", "é" * 3000], "kwargs": {}},
    )
    an_attempt(
        task, message="<b>" + "m" * 10_000, traceback='  File "/x/<script>.py", line 1, in <lambda>\n' + "w" * 9000
    )
    with browse(NARROW) as page:
        page.on("dialog", lambda dialog: pytest.fail("something ran"))
        for name, address in {"hostile": page_of(task), "hostile-letters": "/admin/dhara/task/dead/"}.items():
            page.goto(address)
            picture(page, name)
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_waiting_task_is_put_off_moved_and_canceled_and_then_copied_and_deleted(
    browse, transactional_db, picture, accessible, size
):
    task = a_task(function="shop.orders.tasks.send_receipt", queue="email")
    with browse(size) as page:
        page.goto(page_of(task))
        picture(page, f"task-waits-{shape(size, 'light')}")
        for button, argument, said in (
            ("Snooze…", "2h", "1 put off."),
            ("Change priority…", "42", "1 has the new priority."),
            ("Change queue…", "default", "1 moved."),
        ):
            press(page, button)
            page.wait_for_selector("#id_argument")
            accessible(page)
            page.fill("#id_argument", argument)
            page.keyboard.press("Enter")
            page.wait_for_selector(f".messagelist >> text={said}")
        press(page, "Run now")
        page.wait_for_selector(".messagelist >> text=1 due now.")
        press(page, "Cancel")
        page.wait_for_selector(".messagelist >> text=1 canceled.")
        page.wait_for_load_state()
        accessible(page)
        picture(page, f"task-ended-{shape(size, 'light')}")
        press(page, "Retry as a new task")
        page.wait_for_selector(".messagelist >> text=1 enqueued anew.")
        page.wait_for_selector("text=Enqueued by")
        page.goto(page_of(task))
        press(page, "Delete…")
        page.click(".dhara-confirmation button")
        page.wait_for_selector(".messagelist >> text=1 deleted.")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    [copy] = Task.objects.all()
    assert (copy.parent_id, copy.queue, copy.priority) == (task.pk, "default", 42)


def press(page, label):
    """A button, by the keyboard."""
    page.focus(f".dhara-buttons button:text-is('{label}')")
    page.keyboard.press("Enter")
