"""Addresses of our pages on one admin site, about one database."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin import databases
from django_dhara.stats import Item


def to(site: str | None, view: str, *arguments: Any) -> str:
    """The address of a page on the admin site of this name, or "" where that site does not have it."""
    try:
        return reverse(f"admin:dhara_{view}", args=arguments, current_app=site)
    except NoReverseMatch:
        return ""


def linked(address: str, shown: SafeString | str) -> SafeString | str:
    """What is shown, as a link if there is an address."""
    return format_html('<a href="{}">{}</a>', address, shown) if address else shown


class Links:
    """Addresses of other pages of this admin site, about the same database."""

    def __init__(self, request: HttpRequest) -> None:
        self._site = getattr(request, "current_app", None)
        self._more = databases.named(databases.chosen(request))

    def tasks(self, **filters: str) -> str:
        return self._to("task_changelist", filters)

    def ready(self, **filters: str) -> str:
        """The tasks that a count of ready ones is about."""
        return self.tasks(**{"is": "ready"}, **filters)

    def dead(self, **filters: str) -> str:
        return self._to("task_dead", filters)

    def queues(self) -> str:
        return self._to("queue_changelist", {})

    def workers(self, **filters: str) -> str:
        return self._to("worker_changelist", filters)

    def worker(self, id_: Any) -> str:
        return self._to("worker_change", {}, id_)

    def range(self, key: str) -> str:
        return f"?{urlencode({'range': key, **self._more})}"

    def _to(self, view: str, filters: dict[str, str], *arguments: Any) -> str:
        address, query = to(self._site, view, *arguments), urlencode({**filters, **self._more})
        return f"{address}?{query}" if address and query else address

    def of(self, item: Item) -> tuple[str, str]:
        """The page where something can be done about it, and what it is called."""
        queue = {"queue": item.queue} if item.queue else {}
        pages = {
            "failing": (self.tasks(function=item.function, errors="yes"), _("Failed tasks")),
            "dead": (self.dead(**({"function": item.function} if item.function else {})), _("Dead tasks")),
            "behind": (self.ready(**queue), _("Ready tasks")),
            "suspects": (self.tasks(**{"is": "suspect"}), _("Suspects")),
            "retries": (self.tasks(**{"is": "retrying"}), _("Waiting retries")),
            "paused": (self.queues(), _("Queues")),
            "snapshot": ("", ""),
            "late": (self.workers(status="late"), _("Late workers")),
            "lost": (self.workers(status="lost_lately"), _("Lost workers")),
            **dict.fromkeys(("no_workers", "unserved"), (self.workers(), _("Workers"))),
        }
        return pages[item.kind]
