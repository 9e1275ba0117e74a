"""`--serve`: the site with its admin, a worker, some tasks to try it on, and a customer now and then, until Ctrl-C."""

import random
import socket
import time
from contextlib import suppress
from datetime import timedelta

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError

from django_dhara import cancel
from example_project.shop import orders, tasks
from example_project.shop.demo import play
from example_project.shop.demo.crew import Crew
from example_project.shop.demo.screen import Screen
from example_project.shop.demo.stage import NAME
from example_project.shop.models import Order, Product, Receipt

HOST, FIRST_PORT, LAST_PORT = "127.0.0.1", 8000, 8099
USER = PASSWORD = "demo"
#: The long newsletter takes a second for each.
READERS = 1800


def serve(screen: Screen, crew: Crew) -> None:
    """Keep the shop open; a KeyboardInterrupt ends it.

    Raises:
        CommandError: the site or the worker ended.
    """
    login, port, worker = make_login(), free_port(), f"{NAME}worker"
    crew.start("site", "runserver", f"{HOST}:{port}", "--noreload")
    play.start_worker(crew, worker)
    play.wait_for_workers(crew, worker)
    crew.wait_until(lambda: answers(port))
    exhibit()
    screen.say()
    screen.say(f"  The shop   http://{HOST}:{port}/")
    screen.say(f"  The admin  http://{HOST}:{port}/admin/   {login}")
    screen.say("  A worker runs, and somebody orders now and then. Ctrl-C ends it all.")
    screen.say("  To try the admin's buttons on: tasks that are running, scheduled, dead and canceled.")
    screen.say()
    while True:
        _one_order()
        _wait(screen, crew, random.uniform(1, 3))


def exhibit() -> None:
    """Enqueue a task for each of the admin's buttons: to cancel, to run now, and to retry."""
    tonight = tasks.send_newsletter.using(run_after=timedelta(hours=8))
    tasks.send_newsletter.enqueue(READERS)
    tonight.enqueue(3)
    cancel(tonight.enqueue(5).id)
    tasks.call_supplier.enqueue("Tea")  # dead within two seconds


def make_login() -> str:
    """Make the superuser demo/demo if DEBUG is on and nobody has that name; returns what to tell people."""
    users = get_user_model().objects
    if users.filter(username=USER).exists():
        return f"login: {USER}, with the password {PASSWORD} unless you changed it"
    if not settings.DEBUG:
        return "login: one of yours (DEBUG is off, so none is made: `manage.py createsuperuser`)"
    users.create_superuser(USER, "demo@example.com", PASSWORD)
    return f"login: {USER}, password: {PASSWORD}"


def free_port() -> int:
    """The first port from 8000 up that nobody listens at."""
    for port in range(FIRST_PORT, LAST_PORT + 1):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            return port
    raise CommandError(f"no port from {FIRST_PORT} to {LAST_PORT} is free.")


def answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _one_order() -> None:
    product = random.choice(list(Product.objects.all()))
    with suppress(orders.PaymentDeclined):
        orders.place(product, random.randint(1, 4), "visitor@example.com", card_works=random.random() >= play.DECLINED)


def _wait(screen: Screen, crew: Crew, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        crew.check()
        screen.change(f"  {Order.objects.count()} orders, {Receipt.objects.count()} receipts")
        time.sleep(0.5)
