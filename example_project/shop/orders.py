"""Placing an order: what the shop's page and the demo do."""

from django.db import transaction

from example_project.shop.models import Order, Product
from example_project.shop.tasks import restock, send_receipt

#: An order of so many pieces leaves a gap on the shelf.
LARGE = 3


class PaymentDeclined(Exception):
    """The bank said no."""


def place(product: Product, quantity: int, customer: str, *, card_works: bool = True) -> Order:
    """Save an order and enqueue what follows from it: all of it is there afterwards, or nothing.

    Raises:
        PaymentDeclined: the order and its tasks are rolled back together.
    """
    with transaction.atomic():
        order = Order.objects.create(product=product, quantity=quantity, customer=customer)
        send_receipt.using(idempotency_key=f"receipt-{order.pk}").enqueue(order.pk)
        if quantity >= LARGE:  # one event, two consumers: each is a task of its own, with a key of its own
            restock.using(idempotency_key=f"restock-{order.pk}").enqueue(product.pk, quantity)
        _charge(card_works)
    return order


def _charge(card_works: bool) -> None:
    """Last, as the worst case: the tasks have been inserted by then, and no worker may ever see them."""
    if not card_works:
        raise PaymentDeclined
