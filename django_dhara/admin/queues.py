"""The list of queues, the page of one, and pause and resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote as percent
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dhara import operations, stats
from django_dhara.admin import audit, backlog, databases, links, pulse
from django_dhara.admin.backlog import RECENT, Backlog, QueueRow
from django_dhara.admin.charts import HATCH
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import NAME_LENGTH, exact, name, span, tag, visible, worker_name
from django_dhara.models import Queue
from django_dhara.states import State
from django_dhara.stats import RANGES, Tally
from django_dhara.words import NO_BREAK, grouped, rate, short_time

#: Functions and workers named on the page of a queue.
FUNCTIONS, SERVERS = 50, 50

#: Which pending tasks a number is about, as parameters of the list of tasks.
_READY, _SCHEDULED = {"is": "ready"}, {"is": "scheduled"}


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    """A queue is a name that tasks have, so its pages are not those of rows: most queues have none."""

    names = (gettext_lazy("queue"), gettext_lazy("queues"))
    list_filter = ()

    class Media:
        css: ClassVar = {"all": ("dhara/overview.css", "dhara/fleet.css")}
        js = (Script("dhara/morph.js", defer=True), Script("dhara/overview.js", defer=True))

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.button_view)
        return [
            path("<path:object_id>/pause/", view, {"paused": True}, "dhara_queue_pause"),
            path("<path:object_id>/resume/", view, {"paused": False}, "dhara_queue_resume"),
            *super().get_urls(),
        ]

    def may_pause(self, request: HttpRequest) -> bool:
        own: bool = request.user.has_perm(f"{self.opts.app_label}.pause_queue")
        return own and self.has_view_permission(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list. It has no form of its own, and nothing that is posted to it is read."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        alias, known = databases.chosen(request), databases.aliases()
        read = backlog.read(alias)
        context = {
            "title": _("Queues"),
            # Of Django's list only the frame is used; without actions it would have an inline style.
            "cl": {"opts": self.opts},
            "actions_on_top": True,
            "backlog": read,
            "rows": [self._shown(request, read, row) for row in read.rows],
            "paused": [self._shown(request, read, row) for row in read.paused],
            "unserved": [self._shown(request, read, row) for row in read.unserved],
            "databases": [
                (one, f"?{urlencode({databases.PARAMETER: one})}", one == alias) for one in known[1:] and known
            ],
            "has_backends": len({row.backend for row in read.rows}) > 1,
            **(extra_context or {}),
        }
        return self._response(request, "list", context)

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one queue."""
        if object_id is None or request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        read, row = self._find(request, unquote(object_id))
        if row is None:
            self.message_user(
                request, _("There is no queue %s (any more).") % visible(unquote(object_id)), messages.WARNING
            )
            return HttpResponseRedirect(self._reverse("changelist"))
        shown = self._shown(request, read, row)
        context = {
            "title": visible(row.queue),
            "original": visible(row.queue),
            "change": True,
            "has_view_permission": True,
            "queue": shown,
            "charts": pulse.charts(row.points, read.now),
            "hatch": HATCH,
            "functions": self._functions(request, read.database, row),
            "entries": [*pulse.entries(Queue, row.key, read.now)],
            **(extra_context or {}),
        }
        return self._response(request, "page", context)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """It stands on the page of the queue."""
        return HttpResponseRedirect(self._reverse("change", object_id))

    def button_view(self, request: HttpRequest, object_id: str, *, paused: bool) -> HttpResponse:
        """Pause or resume: POST only, checked against CSRF by `admin_view`."""
        if request.method != "POST":
            return self.not_pressed(request, self._reverse("change", object_id))
        if not self.may_pause(request):
            raise PermissionDenied
        read, row = self._find(request, unquote(object_id))
        if row is None:
            raise Http404
        is_new = set_paused(request.user, read.database, row, paused=paused)
        is_gone = not paused and bool(backlog.database_of(row.backend)) and _forgotten(row)
        told = _told(paused=paused, is_new=is_new, is_gone=is_gone) % visible(row.queue)
        self.message_user(request, told, messages.SUCCESS if is_new else messages.WARNING)
        if "list" in request.POST or is_gone:
            return HttpResponseRedirect(
                f"{self._reverse('changelist')}?{urlencode({databases.PARAMETER: read.database})}"
            )
        return HttpResponseRedirect(self._address(read, row))

    def _find(self, request: HttpRequest, key: str) -> tuple[Backlog, QueueRow | None]:
        """The queue of a key, in the database of its backend, or in the chosen one if TASKS does not know it."""
        found = backlog.name_of(key)
        alias = (backlog.database_of(found[0]) if found else None) or databases.chosen(request)
        read = backlog.read(alias)
        return read, read.find(found) if found else None

    def _shown(self, request: HttpRequest, read: Backlog, row: QueueRow) -> Shown:
        may_see = request.user.has_perm(f"{self.opts.app_label}.view_task")
        tasks = self._address_of("task", "changelist") if may_see else ""
        button = self._reverse("resume" if row.paused_at else "pause", quote(row.key))
        return Shown(
            row,
            read.now,
            site=self.admin_site.name,
            address=self._address(read, row),
            button=self._with_database(read, row, button) if self.may_pause(request) else "",
            tasks=tasks,
            database=read.database,
        )

    def _functions(self, request: HttpRequest, alias: str, row: QueueRow) -> list[dict[str, Any]]:
        """What ran here in the last hour, most runs first."""
        try:
            found = stats.totals(alias, row.backend, RANGES["1h"], "function", queue=row.queue)
        except stats.TooSlow:
            return []
        address, more = self._address_of("task", "changelist"), databases.named(alias)
        return [
            {
                "name": name(function),
                "address": f"{address}?{urlencode({'queue': row.queue, 'function': function, **more})}",
                "runs": grouped(tally.runs),
                "failed": grouped(tally.failed),
                "times": [_unbroken(tally.run_time(share)) for share in (0.5, 0.95)],
            }
            for function, tally in sorted(found.items(), key=lambda pair: -pair[1].runs)[:FUNCTIONS]
        ]

    def _response(self, request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        whole = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "app_label": self.opts.app_label,
            **context,
        }
        return TemplateResponse(request, f"admin/dhara/queue/{template}.html", whole)

    def _address(self, read: Backlog, row: QueueRow) -> str:
        return self._with_database(read, row, self._reverse("change", quote(row.key)))

    def _with_database(self, read: Backlog, row: QueueRow, address: str) -> str:
        """A backend that TASKS does not know could be in any database."""
        if backlog.database_of(row.backend):
            return address
        return f"{address}?{urlencode({databases.PARAMETER: read.database})}"

    def _reverse(self, view: str, *arguments: Any) -> str:
        return self._address_of("queue", view, *arguments)

    def _address_of(self, model: str, view: str, *arguments: Any) -> str:
        return links.to(self.admin_site.name, f"{model}_{view}", *arguments)


def set_paused(user: Any, database: str, row: QueueRow, *, paused: bool) -> bool:
    """Pause or resume, with an entry in the log; False if somebody was faster."""
    with transaction.atomic(using=database):
        when = operations.set_paused(row.queue, paused=paused, backend=row.backend, database=database)
        if when is not None:
            audit.write(user, Queue, row.key, row.queue, "Paused." if paused else "Resumed.", when)
    return when is not None


def _forgotten(row: QueueRow) -> bool:
    """As the command and the API do it, so that a misspelt queue does not stay on the list for ever."""
    return operations.forget_unknown(row.queue, backend=row.backend)


def _told(*, paused: bool, is_new: bool, is_gone: bool) -> str:
    if is_gone:
        return _("Queue %s is resumed, and on no list any more: nothing else knows it.")
    if is_new:
        return _("Queue %s is paused: workers claim nothing more of it.") if paused else _("Queue %s is resumed.")
    return _("Queue %s was paused already.") if paused else _("Queue %s was not paused.")


class Shown:
    """A queue as a template wants it."""

    def __init__(
        self, row: QueueRow, now: datetime, *, site: str, address: str, button: str, tasks: str, database: str
    ) -> None:
        self.row, self.now, self.address, self.button = row, now, address, button
        self._query = {"queue": row.queue, **databases.named(database)}
        self.verb = "resume" if row.paused_at else "pause"
        self._site, self._tasks = site, tasks

    @property
    def id(self) -> str:
        """Of its line: the line of another queue never takes its place under somebody's hand."""
        return f"dhara-{percent(self.row.key)}"

    @property
    def name(self) -> SafeString:
        return name(self.row.queue, NAME_LENGTH)

    @property
    def backend(self) -> SafeString:
        return name(self.row.backend)

    @property
    def badge(self) -> SafeString:
        if self.row.paused_at:
            return tag("pending", "‖", _("Paused"))
        if self.row.is_unserved:
            return tag("dead", "!", _("Not served"))
        if self.row.is_behind(self.now):
            return tag("dead", "▾", _("Behind"))
        return tag("completed", "✓", _("Open"))

    @property
    def trouble(self) -> str:
        """The class of its line in the list."""
        return "dhara-troubled" if self.row.is_unserved or self.row.is_behind(self.now) else ""

    @property
    def pause(self) -> SafeString | str:
        """Since when and by whom it is paused."""
        return audit.pause(self.row.paused_at, self.now, self.row.paused_by) if self.row.paused_at else ""

    @property
    def standing(self) -> Iterator[SafeString | str]:
        """Where it stands, in sentences."""
        row = self.row
        if row.paused_at:
            yield format_html(
                _("It has been paused for {}: workers claim nothing of it. What runs goes on, and so does enqueueing."),
                self.pause,
            )
        if row.is_behind(self.now):
            yield format_html(_("It is behind: its oldest ready task waits for {}."), self.oldest)
        if row.servers:
            count = len(row.servers)
            yield ngettext("%s living worker serves it.", "%s living workers serve it.", count) % count
        elif row.is_unserved:
            yield _("No worker that is alive now takes this queue, and tasks are ready.")
        else:
            yield _("No worker that is alive now takes this queue.")
        if row.held.suspects:
            told = ngettext(
                "%s of its tasks was running when a worker died, and waits apart.",
                "%s of its tasks were running when a worker died, and wait apart.",
                row.held.suspects,
            )
            yield told % grouped(row.held.suspects)

    @property
    def servers(self) -> list[tuple[SafeString, str]]:
        """The workers that serve it: name and slots."""
        return [
            (
                worker_name(worker, links.to(self._site, "worker_change", worker.id)),
                f"{worker.busy}/{worker.concurrency}",
            )
            for worker in self.row.servers[:SERVERS]
        ]

    @property
    def may_see(self) -> bool:
        """May this reader see tasks?"""
        return bool(self._tasks)

    @property
    def ready(self) -> SafeString | str:
        shown, suspects = self._count(self.row.ready, is_capped=self._is_capped, **_READY), self.row.held.suspects
        if not suspects:
            return shown
        title = _("were running when a worker died, and wait apart")
        return format_html('{} <small title="{}">+{}</small>', shown, title, grouped(suspects))

    @property
    def scheduled(self) -> SafeString | str:
        return self._count(self.row.scheduled, is_capped=self._is_capped, **_SCHEDULED)

    @property
    def running(self) -> SafeString | str:
        return self._count(self.row.held.running, state=State.RUNNING)

    @property
    def dead(self) -> SafeString | str:
        """A link only: to count them would read all of them."""
        return self._link(_("Dead tasks"), state=State.DEAD)

    @property
    def _is_capped(self) -> bool:
        return bool(self.row.waiting and self.row.waiting.is_capped)

    def _count(self, count: int, *, is_capped: bool = False, **which: str) -> SafeString | str:
        shown = f"{grouped(count)}+" if is_capped and count else grouped(count)
        return self._link(shown, **which) if count else shown

    def _link(self, shown: str, **which: str) -> SafeString | str:
        """A link to those of its tasks that `which` tells."""
        if not self._tasks:
            return shown
        return format_html('<a href="{}?{}">{}</a>', self._tasks, urlencode({**which, **self._query}), shown)

    @property
    def oldest(self) -> SafeString | str:
        """How long the oldest ready task has been ready."""
        since = self.row.ready_since
        if since is None:
            return "–"
        seconds = max((self.now - since).total_seconds(), 0)
        return format_html(
            '<time datetime="{}" title="{}">{}</time>', since.isoformat(), exact(since), span(round(seconds))
        )

    @cached_property
    def recent(self) -> Past:
        return Past(*self.row.past(RECENT))

    @cached_property
    def hour(self) -> Past:
        return Past(*self.row.past())

    @property
    def spark(self) -> SafeString:
        return pulse.small(self.row.points)


def _unbroken(seconds: float | None) -> str:
    """A number and its unit stay on one line."""
    return short_time(seconds).replace(" ", NO_BREAK)


class Past(NamedTuple):
    """What happened in a span of time, as text."""

    tally: Tally
    seconds: float

    @property
    def rate(self) -> str:
        """Runs in a minute."""
        return rate(self.tally.runs / max(self.seconds, 1) * 60)

    @property
    def latency(self) -> str:
        return short_time(self.tally.latency(0.95))

    @property
    def latencies(self) -> str:
        return " / ".join(_unbroken(self.tally.latency(share)) for share in (0.5, 0.95, 0.99))

    @property
    def times(self) -> str:
        return " / ".join(_unbroken(self.tally.run_time(share)) for share in (0.5, 0.95, 0.99))

    @property
    def failed(self) -> str:
        return grouped(self.tally.failed)
