"""For templates of the admin: what must not be overlooked on the list of tasks."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest
from django.urls import reverse

register = template.Library()

#: Paused queues that are named.
NAMED = 5


@register.inclusion_tag("admin/dhara/paused.html")
def paused_queues(request: HttpRequest) -> dict[str, Any]:
    """The paused queues whose tasks this list may show, each with the address of its page."""
    # Django imports every library of tags, in projects without the admin, too.
    from django_dhara import fleet
    from django_dhara.admin import databases
    from django_dhara.admin.text import name

    state, queue = request.GET.get("state", "PENDING"), request.GET.get("queue")
    found = fleet.paused_queues(databases.chosen(request)) if state == "PENDING" else []
    shown = [one for one in found if queue in (None, one.queue)]
    named = [(name(one.queue), _address(request, one), one.since) for one in shown[:NAMED]]
    return {"queues": named, "more": shown[NAMED:]}


def _address(request: HttpRequest, queue: Any) -> str:
    from django.contrib.admin.utils import quote

    from django_dhara.admin.backlog import key

    site = getattr(request, "current_app", None)
    return reverse("admin:dhara_queue_change", args=[quote(key(queue.backend, queue.queue))], current_app=site)
