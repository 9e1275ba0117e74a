"""The HTTP API, `path("dhara/", include("django_dhara.api.urls"))`: thin wrappers around what user code calls.

urls.py        the addresses, and what surrounds every call: who calls, its body, problems, ETag
service.py     the django-ninja API, and how an endpoint is declared
access.py      sessions with permissions, bearer tokens, and how often one may be wrong
body.py        a bounded body of strict JSON
problems.py    everything that goes wrong as a problem document (RFC 9457)
schemas.py     what is sent and answered
tasks.py       tasks: enqueue, list, show, cancel, retry
calls.py       a request becomes a call of a registered function
finding.py     what a request asks of tasks, as a search of the core
changes.py     cancel and retry of all tasks that match
fleet.py       queues, workers, counts
openapi.py     the description, and its page
"""

from django.core.exceptions import ImproperlyConfigured

try:
    import ninja  # noqa: F401
except ImportError as error:
    raise ImproperlyConfigured("django_dhara.api needs django-ninja: run `pip install 'django-dhara[api]'`.") from error
