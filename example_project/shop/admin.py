from django.contrib import admin

from example_project.shop.models import Order, Product, Receipt


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "price", "reordered")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "placed_at", "quantity", "product", "customer")
    list_select_related = ("product",)
    ordering = ("-id",)


@admin.register(Receipt)
class ReceiptAdmin(admin.ModelAdmin):
    list_display = ("id", "order_id", "sent_at")
    ordering = ("-id",)
