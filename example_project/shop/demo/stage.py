"""Before the play: a database that answers, has all tables, and nothing of an earlier demo.

`DATABASE_URL` may name a database that holds more than the demo. Taken away are the rows of the shop's own tables, the
tasks of the shop's own functions with their attempts, and the rows of the demo's own stopped or dead workers.
"""

import time
from datetime import datetime, timedelta

from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.models.functions import Now

from django_dhara.models import Attempt, Task, Worker
from example_project.shop import tasks
from example_project.shop.demo.screen import first_line
from example_project.shop.models import Order, Product, Receipt

#: The functions of the play, whose tasks the report counts, and those that `--serve` adds to look at.
FUNCTIONS = [tasks.send_receipt.module_path, tasks.restock.module_path]
EXHIBITS = [tasks.call_supplier.module_path, tasks.send_newsletter.module_path]
#: Worker names of the demo begin with it.
NAME = "demo-"
#: A worker of the demo that has been silent for so long is dead: it says that it lives every second.
SILENT_SECONDS = 4.0

PRODUCTS = {"Tea": 4, "Coffee": 9, "Mug": 12, "Kettle": 39, "Spoon": 3, "Honey": 7, "Biscuits": 5, "Teapot": 45}


def reach() -> str:
    """Connect, which starts the private server unless DATABASE_URL names one; returns what answered.

    Raises:
        CommandError: nobody answers.
    """
    try:
        connection.ensure_connection()
    except (OperationalError, ImproperlyConfigured) as error:
        raise CommandError(f"the database cannot be reached: {first_line(error)}") from error
    version = connection.pg_version
    return f"PostgreSQL {version // 10_000}.{version % 10_000}"


def prepare() -> None:
    """Migrate, and clear the stage."""
    call_command("migrate", verbosity=0, interactive=False)
    _wait_for_silence()
    _clear()
    Product.objects.bulk_create(Product(name=name, price=price) for name, price in PRODUCTS.items())


def _wait_for_silence() -> None:
    """Two demos at once would take each other's rows away.

    Raises:
        CommandError: a worker of another demo is alive.
    """
    last_words = _last_words()
    while last_words:
        time.sleep(0.5)
        now = _last_words()
        for pid, heartbeat in now.items():
            if last_words.get(pid, heartbeat) != heartbeat:
                raise CommandError(
                    f"another dhara_demo uses this database (its worker is process {pid}): stop it first, or set "
                    "DATABASE_URL or LOCALDB_PROFILE to use another database."
                )
        last_words = now


def _last_words() -> dict[int, datetime]:
    workers = Worker.objects.filter(name__startswith=NAME, queues=[tasks.QUEUE], stopped_at=None)
    alive = workers.filter(heartbeat_at__gt=Now() - timedelta(seconds=SILENT_SECONDS))
    return dict(alive.values_list("pid", "heartbeat_at"))


def _clear() -> None:
    mine = Task.objects.filter(function__in=[*FUNCTIONS, *EXHIBITS])
    Attempt.objects.filter(task_id__in=mine.values("id")).delete()
    mine.delete()
    Worker.objects.filter(name__startswith=NAME, queues=[tasks.QUEUE]).delete()
    for model in (Receipt, Order, Product):
        model.objects.all().delete()
