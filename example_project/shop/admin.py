from django.contrib import admin

from example_project.shop.models import Order, Product, Receipt


class ToLookAt(admin.ModelAdmin):
    """Orders come through the shop, with their tasks; the admin shows them."""

    ordering = ("-id",)

    def has_add_permission(self, request):
        return False

    def has_change_permission(self, request, obj=None):
        return False

    def has_delete_permission(self, request, obj=None):
        return False


@admin.register(Product)
class ProductAdmin(ToLookAt):
    list_display = ("name", "price", "reordered")


@admin.register(Order)
class OrderAdmin(ToLookAt):
    list_display = ("id", "placed_at", "quantity", "product", "customer")
    list_select_related = ("product",)


@admin.register(Receipt)
class ReceiptAdmin(ToLookAt):
    list_display = ("id", "order_id", "sent_at")
