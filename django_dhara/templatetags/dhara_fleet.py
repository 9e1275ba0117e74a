"""For templates of the admin: what must not be overlooked on the list of tasks."""

from __future__ import annotations

from typing import Any

from django import template
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse

from django_dhara import fleet
from django_dhara.admin import databases
from django_dhara.admin.backlog import key
from django_dhara.admin.text import name
from django_dhara.states import State

register = template.Library()

#: Paused queues that are named.
NAMED = 5


@register.inclusion_tag("admin/dhara/paused.html")
def paused_queues(request: HttpRequest) -> dict[str, Any]:
    """The paused queues whose tasks this list may show, each with the address of its page."""
    state, queue = request.GET.get("state", State.PENDING), request.GET.get("queue")
    found = fleet.paused_queues(databases.chosen(request)) if state == State.PENDING else []
    shown = [one for one in found if queue in (None, one.queue)]
    return {
        "queues": [(name(one.queue), _address(request, one), one.since) for one in shown[:NAMED]],
        "more": shown[NAMED:],
    }


def _address(request: HttpRequest, queue: fleet.PausedQueue) -> str:
    site = getattr(request, "current_app", None)
    return reverse("admin:dhara_queue_change", args=[quote(key(queue.backend, queue.queue))], current_app=site)
