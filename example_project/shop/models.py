"""A small shop: products, orders, and the receipts that tasks write.

Two rules that a real shop would leave to the database are missing here on purpose: a receipt may name an order that
does not exist, and an order may have several receipts. What Dhara promises must not hold only because a constraint
refuses the opposite; the demo counts.
"""

from django.db import models
from django.db.models.functions import Now


class Product(models.Model):
    name = models.CharField(unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    reordered = models.IntegerField(db_default=0, help_text="Pieces that were ordered from the supplier.")

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    product = models.ForeignKey(Product, models.PROTECT)
    quantity = models.PositiveSmallIntegerField()
    customer = models.EmailField()
    placed_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"order {self.pk}: {self.quantity} x {self.product}"


class Receipt(models.Model):
    order = models.ForeignKey(Order, models.DO_NOTHING, db_constraint=False)
    sent_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"receipt for order {self.order_id}"
