"""The example project: the shop, the demo that plays it, and what the demo says when a promise is broken."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from django_dhara import Snooze, revive
from django_dhara.errors import TaskCanceled
from django_dhara.models import Task, Worker
from django_dhara.testing import run_all
from example_project.shop import orders, tasks
from example_project.shop.demo import open_shop, report, stage
from example_project.shop.demo.crew import Crew
from example_project.shop.demo.screen import Screen
from example_project.shop.management.commands.dhara_demo import Command
from example_project.shop.models import Order, Product, Receipt
from tests.rows import a_task

# The shop is where a new Django would show itself; the long tests are `slow` as well.
pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parent.parent


# The shop


@pytest.fixture
def tea(db):
    return Product.objects.create(name="Tea", price=4)


def test_an_order_is_saved_with_its_receipt_task(tea):
    order = orders.place(tea, 1, "a@example.com")
    [task] = Task.objects.all()
    assert (task.function, task.idempotency_key, task.payload["args"]) == (
        "example_project.shop.tasks.send_receipt",
        f"receipt-{order.pk}",
        [order.pk],
    )


def test_a_large_order_has_two_consumers(tea):
    orders.place(tea, orders.LARGE, "a@example.com")
    assert set(Task.objects.values_list("function", flat=True)) == set(stage.FUNCTIONS)


def test_a_declined_payment_leaves_neither_order_nor_task(tea):
    with pytest.raises(orders.PaymentDeclined):
        orders.place(tea, orders.LARGE, "a@example.com", card_works=False)
    assert not Order.objects.exists()
    assert not Task.objects.exists()


def test_a_receipt_task_that_runs_twice_writes_one_receipt(tea):
    class Second:
        attempt = 2

    for _ in range(2):
        tasks.send_receipt.func(Second, 7)
    assert Receipt.objects.filter(order_id=7).count() == 1


def test_the_shops_page_places_orders_and_shows_their_receipts(tea, client):
    page = client.post("/", {"product": "Tea"}, follow=True).content.decode()
    assert "Thank you" in page
    assert str(Task.objects.get(function__endswith="send_receipt").pk) in page
    page = client.post("/", {"product": "Tea", "declined": "on"}, follow=True).content.decode()
    assert "Payment declined" in page
    assert Order.objects.count() == 1


@pytest.mark.parametrize("page", ["product", "order", "receipt"])
def test_the_admin_shows_the_shop(tea, admin_client, page):
    Receipt.objects.create(order=orders.place(tea, 1, "a@example.com"))
    answer = admin_client.get(f"/admin/shop/{page}/")
    assert answer.status_code == 200
    assert answer.context["cl"].result_count == 1


# The verdict


def test_a_report_counts_what_it_finds_wrong(tea):
    unserved, doubled = [orders.place(tea, orders.LARGE, "a@example.com") for _ in range(2)]
    Receipt.objects.bulk_create(Receipt(order_id=id_) for id_ in (doubled.pk, doubled.pk, unserved.pk + 1000))
    found = report.read(rolled_back=0, killed=None)
    assert (found.duplicates, found.strangers, found.unserved, found.pieces_off) == (1, 1, 1, 2 * orders.LARGE)
    assert found.wrong() == (
        "duplicate receipts: 1, receipts without an order: 1, orders without a receipt: 1, "
        "pieces reordered twice or never: 6"
    )


FINE = report.Report(
    orders=2,
    rolled_back=1,
    tasks={"COMPLETED": 2},
    failed_runs=0,
    lost_runs=0,
    per_worker={"demo-1": 2},
    latency=(1.0, 2.0, 3.0),
    comeback=report.Comeback("demo-1", tasks=1, back=1, first=3.0, last=3.0, written=0),
    duplicates=0,
    strangers=0,
    unserved=0,
    pieces_off=0,
)


def told(found):
    command = Command(stdout=io.StringIO(), no_color=True)
    command._tell(Screen(command.stdout, command.style), found)
    return command.stdout._out.getvalue()


def test_a_good_report_is_told():
    assert "All as promised" in told(FINE)


@pytest.mark.parametrize("what", ["duplicates", "strangers", "unserved", "pieces_off"])
def test_a_broken_promise_is_an_error_in_one_line(what):
    with pytest.raises(CommandError, match=r"^not as promised: [a-z ]+: 3\.$"):
        told(replace(FINE, **{what: 3}))


# The stage


def test_only_rows_of_the_demo_are_cleared(tea):
    foreign = a_task()
    orders.place(tea, 1, "a@example.com")
    Worker.objects.create(backend="default", name="mine", host="h", pid=1, version="0", concurrency=1, lease_seconds=30)
    stage._clear()
    assert list(Task.objects.values_list("id", flat=True)) == [foreign.id]
    assert list(Worker.objects.values_list("name", flat=True)) == ["mine"]
    assert not Order.objects.exists()


def test_a_demo_refuses_to_disturb_another(db):
    worker = Worker.objects.create(
        backend="default", name="demo-1", host="h", pid=1, version="0", queues=["shop"], concurrency=1, lease_seconds=3
    )
    beats = iter([{1: worker.heartbeat_at}, {1: worker.heartbeat_at.replace(year=2999)}])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CommandError, match="another dhara_demo"):
        patch.setattr(stage, "_last_words", lambda: next(beats))
        stage._wait_for_silence()


def test_too_few_orders_are_refused():
    with pytest.raises(CommandError, match="at least 20"):
        call_command("dhara_demo", orders=3)


def test_a_process_that_ends_is_told_with_its_last_words():
    with (
        Crew() as crew,
        pytest.raises(CommandError, match=r"(?s)^worker ended with code 1\. It said: .*no_such_command"),
    ):
        crew.start("worker", "no_such_command")
        crew.wait_until(lambda: False)


def test_the_login_is_made_once_and_only_with_debug(db, django_user_model):
    assert "createsuperuser" in open_shop.make_login()
    with override_settings(DEBUG=True):
        assert open_shop.make_login() == "login: demo, password: demo"
        assert "unless you changed it" in open_shop.make_login()
    assert django_user_model.objects.get().is_superuser


def test_there_is_a_task_for_each_button_of_the_admin(db, monkeypatch):
    monkeypatch.setattr(tasks.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(open_shop, "READERS", 3)
    call, newsletter = stage.EXHIBITS
    waiting = [(newsletter, "CANCELED"), (newsletter, "PENDING")]
    open_shop.exhibit()
    assert exhibited() == sorted([(call, "PENDING"), (newsletter, "PENDING"), *waiting])
    run_all(at=timedelta(hours=1))
    assert exhibited() == sorted([(call, "DEAD"), (newsletter, "COMPLETED"), *waiting])
    assert revive(Task.objects.get(function=call).id)
    run_all()
    assert Task.objects.get(function=call).state == "COMPLETED"
    stage._clear()
    assert not exhibited()


def exhibited():
    return sorted(Task.objects.filter(function__in=stage.EXHIBITS).values_list("function", "state"))


def test_a_newsletter_ends_where_it_is_asked_to(db):
    class Asked:
        checkpoint, canceled, stopping = 3, True, True

    with pytest.raises(TaskCanceled):
        tasks.send_newsletter.func(Asked, 9)
    Asked.canceled = False
    with pytest.raises(Snooze):
        tasks.send_newsletter.func(Asked, 9)


def test_a_port_that_is_taken_is_left_alone(monkeypatch):
    with socket.create_server((open_shop.HOST, 0)) as taken:
        monkeypatch.setattr(open_shop, "FIRST_PORT", taken.getsockname()[1])
        monkeypatch.setattr(open_shop, "LAST_PORT", taken.getsockname()[1])
        with pytest.raises(CommandError, match="no port"):
            open_shop.free_port()


# The whole


@pytest.fixture
def demo(transactional_db):
    """Starts the demo on the test database, as somebody with a DATABASE_URL would."""
    started = []

    def start(*words):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
        process = subprocess.Popen(
            [sys.executable, "manage.py", "dhara_demo", *words],
            cwd=ROOT,
            env=environment | {"DATABASE_URL": database_url(), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    until(lambda: not any(map(lives, demo_pids())))


def database_url():
    given = connection.settings_dict
    account = quote(given["USER"]) + (f":{quote(given['PASSWORD'])}" if given["PASSWORD"] else "")
    where = {"host": given["HOST"], "port": given["PORT"], **given["OPTIONS"]}
    query = urlencode({name: value for name, value in where.items() if isinstance(value, (str, int)) and value})
    return f"postgresql://{account}@/{given['NAME']}?{query}"


def demo_pids():
    return list(Worker.objects.filter(name__startswith=stage.NAME).values_list("pid", flat=True))


def lives(pid):
    line = subprocess.run(["ps", "-p", str(pid), "-o", "stat=,args="], capture_output=True, text=True).stdout
    return "dhara_worker" in line and not line.startswith("Z")


def until(condition, seconds=20):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.05)


def finished(process):
    said, _ = process.communicate(timeout=100)
    return process.returncode, said


def test_the_demo_keeps_its_promises_and_leaves_no_process(demo):
    foreign = a_task(function="somebody.elses", queue="theirs")
    code, said = finished(demo("--orders", "60"))
    assert code == 0, said
    assert "kill -9 demo-" in said
    assert re.search(r"runs cut off by the kill +([1-9]\d*); \1 repeated", said), said
    for name in FINE.zeros:
        assert re.search(rf"{name} +0\n", said), said
    assert len(demo_pids()) == 3
    assert not any(map(lives, demo_pids()))
    assert Task.objects.filter(pk=foreign.pk, state="PENDING").exists()


@pytest.mark.slow
@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demo_leaves_no_process(demo, word):
    process = demo("--orders", "600")
    until(lambda: len(demo_pids()) == 3)
    process.send_signal(word)
    code, said = finished(process)
    assert code == 130, said
    assert said.endswith("Stopped; none of its processes is left.\n")
    assert not any(map(lives, demo_pids()))


@pytest.mark.slow
def test_a_killed_demo_leaves_no_process(demo):
    process = demo("--orders", "600")
    until(lambda: len(demo_pids()) == 3)
    process.kill()
    until(lambda: not any(map(lives, demo_pids())))


@pytest.mark.slow
def test_a_demo_whose_worker_dies_says_so(demo):
    process = demo("--orders", "600")
    until(lambda: len(demo_pids()) == 3)
    os.kill(demo_pids()[0], signal.SIGTERM)
    code, said = finished(process)
    assert code == 1
    assert re.search(r"CommandError: demo-\d ended with code 0\. It said: .*stopped", said), said
    assert not any(map(lives, demo_pids()))


@pytest.mark.slow
def test_a_served_shop_has_an_admin_and_closes_cleanly(demo):
    process = demo("--orders", "0", "--serve")
    said = ""
    while "/admin/" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    site = re.search(r"http://[\d.:]+/", said)[0]
    assert b"The shop" in urllib.request.urlopen(site, timeout=20).read()
    assert b"Log in" in urllib.request.urlopen(f"{site}admin/", timeout=20).read()
    until(lambda: Receipt.objects.exists())
    until(lambda: sorted(state for _, state in exhibited()) == ["CANCELED", "DEAD", "PENDING", "RUNNING"])
    process.send_signal(signal.SIGINT)
    assert finished(process)[0] == 0
    assert not any(map(lives, demo_pids()))


@pytest.mark.slow
def test_a_database_out_of_reach_is_one_line():
    environment = os.environ | {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
    }
    run = subprocess.run(
        [sys.executable, "manage.py", "dhara_demo"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert re.fullmatch(r"CommandError: the database cannot be reached: .*127\.0\.0\.1.*\n", run.stderr), run.stderr


@pytest.fixture
def home():
    """A folder that the account of a server started by root can get to."""
    with tempfile.TemporaryDirectory(prefix="dhara-home-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.mark.slow
def test_the_demo_starts_a_postgresql_of_its_own(home):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "DATABASE", "PG"))}
    command = [sys.executable, "manage.py", "dhara_demo", "--orders", "20"]
    environment = kept | {"LOCALDB_HOME": str(home), "LOCALDB_PROFILE": "test-demo"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    left = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True).stdout
    assert str(home) not in left
