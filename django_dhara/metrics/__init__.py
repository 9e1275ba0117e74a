"""Metrics for Prometheus: of a worker on a port of its own, and of the site by `include("django_dhara.metrics.urls")`.

families.py   what a process has counted
queue.py      what the database says of queues, workers and tables; only the site asks
server.py     the port of a worker
urls.py       the page of the site
shared.py     one count for the several processes of a site

Needs prometheus-client: `pip install django-dhara[metrics]`.
"""

from __future__ import annotations

try:
    import prometheus_client  # noqa: F401  # only whether it is there
except ImportError as error:
    from django.core.exceptions import ImproperlyConfigured

    raise ImproperlyConfigured("Metrics need prometheus-client: pip install 'django-dhara[metrics]'.") from error
