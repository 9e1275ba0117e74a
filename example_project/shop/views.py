"""The shop's one page: order something, and watch what happens to the order."""

import random

from django.contrib import messages
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from django_dhara.models import Task
from example_project.shop import orders
from example_project.shop.models import Order, Product
from example_project.shop.tasks import send_receipt

SHOWN = 15


@require_http_methods(["GET", "POST"])
def front(request):
    """The newest orders with the state of their receipts; a POST places one."""
    if request.method == "POST":
        _order(request)
        return redirect("front")
    newest = list(Order.objects.select_related("product").order_by("-id")[:SHOWN])
    keys = {f"receipt-{order.pk}": order for order in newest}
    receipts = Task.objects.filter(function=send_receipt.module_path, idempotency_key__in=keys)
    by_order = {keys[task.idempotency_key]: task for task in receipts}
    rows = [(order, by_order.get(order)) for order in newest]
    return render(request, "shop/front.html", {"rows": rows, "products": Product.objects.order_by("name")})


def _order(request):
    product = get_object_or_404(Product, name=request.POST.get("product"))
    try:
        order = orders.place(
            product, random.randint(1, 4), "you@example.com", card_works="declined" not in request.POST
        )
    except orders.PaymentDeclined:
        messages.error(request, "Payment declined: neither the order nor its tasks exist.")
    else:
        messages.success(request, f"Thank you: {order}. A worker sends the receipt.")
