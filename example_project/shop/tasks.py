"""What the shop does after an order, outside the request."""

import random
import time

from django.db import transaction
from django.db.models import F

from django_dhara import Snooze, task
from django_dhara.errors import TaskCanceled
from django_dhara.retry import constant, exponential
from example_project.shop.models import Product, Receipt

QUEUE = "shop"


#: So many times the supplier does not answer.
UNANSWERED = 2


class MailServerBusy(Exception):
    """Try again later."""


class SupplierClosed(Exception):
    """Nobody is there."""


@task(queue_name=QUEUE, takes_context=True, backoff=exponential(base=0.4, cap=2))
def send_receipt(context, order_id):
    """Mail the receipt of an order, and keep a copy.

    A task runs at least once: whoever kills a worker between the copy and the end of the run makes the task run again.
    So the function must not mind, and `get_or_create` finds the copy of the earlier run. (Two runs at the same moment
    need a worker that is cut off for longer than its lease and works on. A unique constraint on the order covers that,
    and a real shop has one; it is missing here so that a duplicate would be counted, not refused.) The mail itself is
    nothing that a database could take back: for it, at least once is what there is.
    """
    _talk_to_mail_server()
    if context.attempt == 1 and order_id % 10 == 0:
        raise MailServerBusy(f"451 come back later (order {order_id})")
    with transaction.atomic():
        Receipt.objects.get_or_create(order_id=order_id)
    _talk_to_mail_server()


@task(queue_name=QUEUE, atomic=True)
def restock(product_id, pieces):
    """Note that `pieces` more of a product were ordered from the supplier.

    Adding is not idempotent: run twice, it is wrong. With `atomic=True` what it writes and the fact that the task is
    done are one transaction, so it happens exactly once, whatever is killed in between.
    """
    time.sleep(random.uniform(0.02, 0.08))
    Product.objects.filter(pk=product_id).update(reordered=F("reordered") + pieces)


@task(queue_name=QUEUE, takes_context=True, max_attempts=UNANSWERED, backoff=constant(1))
def call_supplier(context, product):
    """Order by telephone. It fails until the budget is used up; who then presses "Retry" in the admin gets through.

    The number of the lease counts the runs of a task for ever, and `context.attempt` begins anew with each retry.
    """
    if context.lease <= UNANSWERED:
        raise SupplierClosed(f"nobody answers the telephone ({product})")


@task(queue_name=QUEUE, takes_context=True)
def send_newsletter(context, readers):
    """Mail `readers` people, one a second. It shows how far it is, ends when it is asked to, and goes on where it was
    after its worker was stopped.
    """
    for number in range(context.checkpoint or 0, readers):
        if context.canceled:
            raise TaskCanceled
        if context.stopping:
            raise Snooze(0)
        time.sleep(1)
        context.save_checkpoint(number + 1)
        context.progress({"done": number + 1, "of": readers})


def _talk_to_mail_server():
    time.sleep(random.uniform(0.01, 0.04))
