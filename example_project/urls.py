from django.contrib import admin
from django.urls import path

from example_project.shop import views

urlpatterns = [
    path("", views.front, name="front"),
    path("admin/", admin.site.urls),
]
