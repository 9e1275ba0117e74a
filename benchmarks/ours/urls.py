"""The addresses of the site of W9."""

from django.urls import include, path

urlpatterns = [path("dhara/", include("django_dhara.api.urls"))]
