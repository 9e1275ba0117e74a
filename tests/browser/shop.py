"""An afternoon in a shop: rows for the pages of the admin to show."""

from secrets import randbits
from time import time
from uuid import UUID

import pytest

from django_dhara.models import Worker
from django_dhara.states import State
from tests.rows import WORKER, a_task, ago, ahead, an_attempt

RECEIPT, SYNC = "shop.orders.tasks.send_receipt", "shop.stock.tasks.sync_warehouse"

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/.venv/lib/python3.13/site-packages/django_dhara/execution.py", line 88, in run
    value = function(*args, **kwargs)
  File "/srv/shop/orders/tasks.py", line 41, in send_receipt
    smtp.send_message(message)
  File "/usr/lib/python3.13/smtplib.py", line 908, in sendmail
    raise SMTPRecipientsRefused(senderrs)
smtplib.SMTPRecipientsRefused: {'a@example.org': (451, b'4.7.1 Try again later')}
"""


@pytest.fixture
def shop(transactional_db):
    """An afternoon in a shop: tasks in every state, workers alive and late, one task dead after five attempts."""
    values = {"backend": "default", "version": "0.1.0", "concurrency": 10, "lease_seconds": 30.0}
    Worker.objects.create(
        id=WORKER,
        name="box7-4711",
        host="box7",
        pid=4711,
        queues=["email", "default"],
        started_at=ago(86_000),
        **values,
    )
    Worker.objects.create(name="box8-12", host="box8", pid=12, heartbeat_at=ago(140), started_at=ago(9000), **values)
    Worker.objects.create(name="box6-9", host="box6", pid=9, stopped_at=ago(3600), started_at=ago(90_000), **values)
    for number in range(12):
        second = 55 + 66 * number
        a_sale(second, State.COMPLETED, function=RECEIPT, queue="email", finished_at=ago(second - 2))
    report = "shop.reports.tasks.rebuild_the_monthly_report_of_every_region"
    a_sale(1400, State.CANCELED, function=report, queue="reports")
    a_sale(12, function=RECEIPT, queue="email", priority=10)
    a_sale(30, function=SYNC, run_at=ahead(300), payload={"args": [], "kwargs": {"all": True}})
    charge = {"failures": 1, "error_class": "stripe.error.RateLimitError"}
    a_sale(50, function="shop.orders.tasks.charge", run_at=ahead(40), **charge)
    a_sale(80, State.RUNNING, function=SYNC, attempted_at=ago(75))
    shrink = {"attempted_at": ago(8), "cancel_requested_at": ago(3)}
    a_sale(9, State.RUNNING, function="shop.images.tasks.shrink", queue="images", **shrink)
    return a_dead_task()


def a_sale(seconds, state=State.PENDING, **columns):
    """A task that was enqueued so many seconds ago; its id says so, too."""
    milliseconds = round((time() - seconds) * 1000)
    id_ = UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | randbits(62))
    return a_task(state, **{"id": id_, "enqueued_at": ago(seconds), **columns})


def a_dead_task():
    task = a_sale(
        900,
        State.DEAD,
        function=RECEIPT,
        queue="email",
        failures=4,
        lost=1,
        error_class="smtplib.SMTPRecipientsRefused",
        payload={"args": [48213], "kwargs": {"language": "de", "to": ["a@example.org", "b@example.org"]}},
        metadata={"tenant": "north"},
        started_at=ago(890),
        attempted_at=ago(30),
        finished_at=ago(28),
        worker_id=WORKER,
    )
    for number in range(1, 6):
        ended = {"message": "{'a@example.org': (451, b'4.7.1 Try again later')}", "traceback": TRACEBACK}
        ended["error_class"] = "smtplib.SMTPRecipientsRefused"
        if number == 2:
            ended = {"ended": "LOST", "error_class": "django_dhara.errors.WorkerLost"}
        start = 900 - 170 * number + 10
        an_attempt(
            task,
            number=number,
            started_at=ago(start),
            ended_at=ago(start - 2),
            **ended,
        )
    a_sale(15, function="shop.orders.tasks.log_receipt", parent_id=task.pk)
    return task
