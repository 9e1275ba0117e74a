"""The overview: what needs a person first, then numbers, charts and tables of a range of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db import Error
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dhara import stats
from django_dhara.admin import audit, breakdown, charts, databases, graphs
from django_dhara.admin.backlog import key
from django_dhara.admin.links import Links
from django_dhara.admin.text import exact, name, tag
from django_dhara.models import Queue
from django_dhara.states import State
from django_dhara.stats import COUNT_LIMIT, History, Item, Overview, WorkerSeen
from django_dhara.words import NAME_BEGINS, NAME_ENDS, NO_BREAK, capped, grouped, pointed, rate, short_time, span

_LABELS = {
    "5m": gettext_lazy("5 min"),
    "1h": gettext_lazy("1 h"),
    "24h": gettext_lazy("24 h"),
    "7d": gettext_lazy("7 days"),
}
#: After so many seconds the page fetches itself anew.
_REFRESH = {"5m": 5, "1h": 5, "24h": 15, "7d": 30}
_DEFAULT = "1h"
#: What stands below a median.
_TAIL = (("p95", 0.95), ("p99", 0.99))


def context(request: HttpRequest) -> dict[str, Any]:
    """What the template needs. `is_shown` is false for who may not see tasks."""
    if not request.user.has_perm("dhara.view_task"):
        return {"is_shown": False}
    links, chosen = Links(request), _range(request)
    found: dict[str, Any] = {
        "is_shown": True,
        "ranges": [(_LABELS[key], links.range(key), key == chosen.name) for key in stats.RANGES],
        "refresh": _REFRESH[chosen.name],
        "database": databases.chosen(request),
        "databases": [
            (alias, f"?{urlencode({'range': chosen.name, databases.PARAMETER: alias})}", alias)
            for alias in (databases.aliases() if len(databases.aliases()) > 1 else ())
        ],
    }
    try:
        overview = stats.overview(databases.chosen(request), None, chosen)
    except Error as error:
        return {**found, "trouble": type(error).__name__}
    return {**found, **_shown(overview, links, may_see_workers=request.user.has_perm("dhara.view_worker"))}


def _range(request: HttpRequest) -> stats.Range:
    return stats.RANGES.get(request.GET.get("range", ""), stats.RANGES[_DEFAULT])


def _shown(overview: Overview, links: Links, *, may_see_workers: bool) -> dict[str, Any]:
    past = overview.past
    drawn = graphs.of(past) if past else []
    return {
        "now": overview.now,
        "exactly": exact(overview.now),
        "in_words": stats.in_words(overview.range),
        "items": [*_told(overview, links)],
        "is_slow": bool(overview.slow),
        "cards": [*_cards(overview, links, may_see_workers=may_see_workers)],
        "charts": drawn,
        "hatch": charts.HATCH,
        "values": graphs.table(past, drawn) if past else [],
        "tables": [*breakdown.tables(overview, links, may_see_workers=may_see_workers)],
    }


def _told(overview: Overview, links: Links) -> Iterator[_Told]:
    paused = {key(item.backend, item.queue): item.since for item in overview.attention if item.kind == "paused"}
    authors = audit.authors(Queue, [(queue, since) for queue, since in paused.items() if since]) if paused else {}
    for item in overview.attention:
        author = authors.get(key(item.backend, item.queue), "") if item.kind == "paused" else ""
        yield _Told.of(item, overview.now, links, author)


class _Told(NamedTuple):
    """A line of what needs a person."""

    level: str
    badge: SafeString
    sentence: SafeString
    since: SafeString | str
    address: str
    page: str

    @classmethod
    def of(cls, item: Item, now: datetime, links: Links, author: str) -> _Told:
        colour, sign, word = {
            "harm": ("dead", "!", _("Harm")),
            "warning": ("pending", "▲", _("Warning")),
            "notice": ("canceled", "i", _("Note")),
        }[item.level]
        # How long a queue's oldest task waits is in the sentence.
        told = item.since if item.kind != "behind" else None
        since = format_html(_("since {}"), audit.pause(told, now, author)) if told else ""
        return cls(item.level, tag(colour, sign, word), in_html(item.sentence), since, *links.of(item))


def in_html(sentence: str) -> SafeString:
    """A sentence whose names are set apart."""
    first, *parts = sentence.split(NAME_BEGINS)
    rest = ((name(one), after) for one, _between, after in (part.partition(NAME_ENDS) for part in parts))
    return format_html("{}{}", first, format_html_join("", "{}{}", rest))


# ----------------------------------------------------------------------------------------------------- big numbers


class Card(NamedTuple):
    """A big number."""

    label: str
    value: str
    detail: str
    address: str
    kind: str = ""


def _cards(overview: Overview, links: Links, *, may_see_workers: bool) -> Iterator[Card]:
    standing, past = overview.standing, overview.past
    if standing:
        yield _ready(overview, capped(standing.ready, COUNT_LIMIT), links)
        busy, slots = overview.slots
        detail = _("%(busy)s of %(slots)s slots") % {"busy": grouped(busy), "slots": grouped(slots)}
        running = capped(standing.running, COUNT_LIMIT)
        yield Card(_("Running"), running, detail if overview.workers else "", links.tasks(state=State.RUNNING))
    if overview.workers is not None:
        address = links.workers() if may_see_workers else ""
        yield Card(_("Workers"), grouped(len(overview.alive)), _not_alive(overview.workers), address)
    if standing:
        retries = sum(queue.retries for queue in overview.waiting or ())
        told = ngettext("%s is a retry", "%s are retries", retries) % grouped(retries) if retries else ""
        yield Card(_("Scheduled"), capped(standing.scheduled, COUNT_LIMIT), told, links.tasks(**{"is": "scheduled"}))
        died = past.total.counts["dead"] if past else 0
        told = ngettext("%(number)s death in %(range)s", "%(number)s deaths in %(range)s", died)
        detail = told % {"number": grouped(died), "range": stats.in_words(overview.range)}
        dead = capped(standing.dead, COUNT_LIMIT)
        yield Card(_("Dead now"), dead, detail if past else "", links.dead(), "harm" if died else "")
    if past:
        yield from _of_the_past(past, links)


def _ready(overview: Overview, number: str, links: Links) -> Card:
    since = overview.ready_since
    waited = (overview.now - since).total_seconds() if since else 0.0
    detail = _("oldest %s") % span(max(round(waited), 0)) if since else _what_waits(overview)
    return Card(_("Ready"), number, detail, links.ready(), "harm" if waited >= 60 else "")


def _what_waits(overview: Overview) -> str:
    """Of ready tasks none of which is in a queue that is open."""
    if any(queue.ready for queue in overview.waiting or ()):
        return _("all in paused queues")
    return "" if overview.waiting is None else _("nothing waits")


def _not_alive(workers: Sequence[WorkerSeen]) -> str:
    words = {"late": _("%s late"), "lost": _("%s lost"), "draining": _("%s draining")}
    counts = Counter(worker.status for worker in workers)
    return ", ".join(told % counts[status] for status, told in words.items() if counts[status])  # type: ignore[index]


def _of_the_past(past: History, links: Links) -> Iterator[Card]:
    total = past.total
    per_minute = total.runs / max(past.seconds, 1) * 60
    yield Card(_("Throughput"), _("%s/min") % rate(per_minute), _("%s runs") % grouped(total.runs), links.tasks())
    failed = _("%(failed)s of %(runs)s runs") % {"failed": grouped(total.failed), "runs": grouped(total.runs)}
    share = pointed(f"{total.failure_share:.1%}") if total.failed else "0 %"
    yield Card(_("Failed"), share, failed, links.tasks(errors="yes"), "harm" if total.failure_share >= 0.1 else "")
    for label, time in ((_("Latency p50"), total.latency), (_("Run time p50"), total.run_time)):
        detail = ", ".join(f"{kind} {short_time(time(share))}".replace(" ", NO_BREAK) for kind, share in _TAIL)
        yield Card(label, short_time(time(0.5)), detail if total.runs else "", "")
