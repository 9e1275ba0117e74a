"""`/metrics` of the site: `path("dhara/", include("django_dhara.metrics.urls"))`. Closed by default; see `gate.py`."""

from __future__ import annotations

from functools import cache

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from django_dhara import gate, health
from django_dhara.metrics import shared
from django_dhara.metrics.families import ProcessFamilies
from django_dhara.metrics.queue import QueueFamilies

app_name = "dhara_metrics"

shared.install()


@cache
def registry() -> CollectorRegistry:
    """What the site tells."""
    made = CollectorRegistry(auto_describe=False)
    made.register(shared.SharedFamilies() if shared.is_on() else ProcessFamilies())
    made.register(QueueFamilies(health.backends))
    return made


@require_safe
@transaction.non_atomic_requests
def metrics(request: HttpRequest) -> HttpResponse:
    """In the form that was asked for, Prometheus' own text or OpenMetrics, and of all queues."""
    if (refused := gate.refused(request, whole=True)) is not None:
        return refused
    encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
    return gate.uncached(HttpResponse(encoder(registry()), content_type=content_type))


urlpatterns = [path("metrics", metrics, name="metrics")]
