from django.contrib import admin
from django.urls import include, path

from example_project.shop import views

urlpatterns = [
    path("", views.front, name="front"),
    path("admin/", admin.site.urls),
    path("dhara/", include("django_dhara.api.urls")),
]
