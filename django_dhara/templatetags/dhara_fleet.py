"""For templates of the admin: what must not be overlooked on the list of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template
from django.http import HttpRequest

from django_dhara.states import State

if TYPE_CHECKING:
    from django_dhara.search import Search

register = template.Library()

#: Paused queues that are named, and characters of their names.
NAMED, LETTERS = 5, 60


@register.inclusion_tag("admin/dhara/paused.html")
def paused_queues(request: HttpRequest, asked: Search) -> dict[str, Any]:
    """The paused queues whose waiting tasks a search may find, each with the address of its page."""
    # Django imports every library of tags, in projects without the admin, too.
    from django_dhara import fleet
    from django_dhara.admin import audit, databases
    from django_dhara.admin.backlog import key
    from django_dhara.admin.text import name
    from django_dhara.models import Queue

    waits = _may_be(asked, "state", State.PENDING.value)
    found = fleet.paused_queues(databases.chosen(request)) if waits else []
    shown = [one for one in found if _may_be(asked, "queue", one.queue)]
    authors = audit.authors(Queue, [(key(one.backend, one.queue), one.since) for one in shown[:NAMED]]) if shown else {}
    named = [
        (
            name(one.queue, LETTERS),
            _address(request, one),
            audit.pause(one.since, one.now, authors.get(key(one.backend, one.queue), "")),
        )
        for one in shown[:NAMED]
    ]
    return {"queues": named, "more": shown[NAMED:]}


def _may_be(asked: Search, field: str, value: str) -> bool:
    """Could a task whose `field` is `value` be found?"""
    return all(value.lower() in (text.lower() for text in term.texts) for term in asked.of(field))


def _address(request: HttpRequest, queue: Any) -> str:
    from django.contrib.admin.utils import quote

    from django_dhara.admin import links
    from django_dhara.admin.backlog import key

    return links.to(getattr(request, "current_app", None), "queue_change", quote(key(queue.backend, queue.queue)))
