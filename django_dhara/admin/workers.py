"""The list of workers, what each runs now, the page of one; drain, and a look at its threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dhara import fleet
from django_dhara.admin import audit, crew, databases, links, pulse
from django_dhara.admin.charts import HATCH
from django_dhara.admin.crew import NAMED, NAMED_ON_PAGE
from django_dhara.admin.lists import MOST, BoundedChangeList, DatabaseFilter, Filter
from django_dhara.admin.profile import badge, facts, lifetime, memory, queues, settled, slots, standing
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import age, grouped, moment, name, visible, worker_name
from django_dhara.fleet import PRESENT, Status
from django_dhara.models import Command, Worker
from django_dhara.states import State
from django_dhara.stats import LOST_SECONDS, Tally


class StatusFilter(Filter):
    """Who is gone stands behind it: a restart leaves a row for each process that was there."""

    title = gettext_lazy("status")
    parameter_name = "status"
    _CHOICES: ClassVar = {
        None: Q(status__in=PRESENT),
        "late": Q(status=Status.LATE),
        # Those of which the overview speaks.
        "lost_lately": Q(status=Status.LOST, heartbeat_at__gt=Now() - timedelta(seconds=LOST_SECONDS)),
        "lost": Q(status=Status.LOST),
        "stopped": Q(status=Status.STOPPED),
        "all": Q(),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [
            ("late", _("Late")),
            ("lost_lately", _("Lost in the last hour")),
            ("lost", _("Lost")),
            ("stopped", _("Stopped")),
            ("all", _("All")),
        ]

    def choices(self, changelist: Any) -> Any:
        present, *others = super().choices(changelist)
        yield {**present, "display": _("Present")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in self._CHOICES:
            raise IncorrectLookupParameters("status")
        return queryset.filter(self._CHOICES[self.value()])


class WorkerChangeList(BoundedChangeList):
    """The list of workers; what all of them run, and have settled, is read at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        alias = databases.chosen(request)
        running, settled = crew.running_tasks(alias, [worker.pk for worker in self.result_list]), crew.lately(alias)
        for worker in self.result_list:
            worker.database = alias
            worker.running = running.get(worker.pk, [])
            worker.settled = settled.get(str(worker.pk)) or Tally()


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    names = (gettext_lazy("worker"), gettext_lazy("workers"))
    list_display = (
        "status_",
        "worker_",
        "queues_",
        "slots_",
        "runs_",
        "settled_",
        "memory_",
    )
    list_display_links = None
    list_filter = (DatabaseFilter, StatusFilter)
    search_fields = ("host", "name", "version")
    search_help_text = gettext_lazy("A part of the host, the name or the version.")
    ordering = (F("stopped_at").desc(nulls_first=True), "-heartbeat_at", "pk")
    actions = ("drain",)
    change_form_template = "admin/dhara/worker/page.html"

    class Media:
        css: ClassVar = {"all": ("dhara/overview.css", "dhara/fleet.css")}
        js = (Script("dhara/morph.js", defer=True), Script("dhara/overview.js", defer=True))

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return fleet.with_status(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return WorkerChangeList

    def shown(self, row: Any) -> Any:
        row.name = visible(row.name)
        return row

    @admin.display(description=gettext_lazy("select"))
    def action_checkbox(self, obj: Any) -> Any:
        return super().action_checkbox(self.shown(obj))

    @admin.display(description=gettext_lazy("status"))
    def status_(self, worker: Any) -> SafeString:
        """And its last word."""
        if worker.stopped_at:
            said = moment(worker.stopped_at, worker.now)
        else:
            said = format_html(_("heard {} ago"), age(worker.heartbeat_at, worker.now))
        return format_html('{} <span class="dhara-quiet">{}</span>', badge(worker.status), said)

    @admin.display(description=gettext_lazy("worker"))
    def worker_(self, worker: Any) -> SafeString:
        named = worker_name(worker, self._reverse("change", worker.pk))
        return format_html('{} <span class="dhara-quiet">{}</span>', named, lifetime(worker))

    @admin.display(description=gettext_lazy("queues"))
    def queues_(self, worker: Any) -> SafeString | str:
        return queues(worker)

    @admin.display(description=gettext_lazy("busy"))
    def slots_(self, worker: Any) -> SafeString | str:
        return slots(worker)

    @admin.display(description=gettext_lazy("runs now"))
    def runs_(self, worker: Any) -> SafeString | str:
        if not worker.running:
            return "–"
        address = self._all_of(worker) if worker.running[0].number > NAMED else ""
        last = format_html('<li><a href="{}">{}</a></li>', address, _("all")) if address else ""
        return format_html('<ul class="dhara-plain">{}{}</ul>', self._items(worker, is_short=True), last)

    def _items(self, worker: Any, *, is_short: bool = False) -> SafeString:
        rows = ((self._task(task, is_short=is_short), moment(task.attempted_at, worker.now)) for task in worker.running)
        return format_html_join("", '<li>{} <span class="dhara-quiet">{}</span></li>', rows)

    def _task(self, task: Any, *, is_short: bool) -> SafeString:
        """The function of a task, with a link where this site has pages of tasks."""
        shown = name(task.function.rpartition(".")[2] if is_short else task.function)
        address = self._reverse("change", task.pk, model="task")
        if not address:
            return shown
        return format_html('<a href="{}" title="{}">{}</a>', address, visible(task.function), shown)

    def _all_of(self, worker: Any) -> str:
        address = self._reverse("changelist", model="task")
        query = {"state": State.RUNNING, "worker": worker.pk, **databases.named(worker.database)}
        return f"{address}?{urlencode(query)}" if address else ""

    @admin.display(description=gettext_lazy("5 min"))
    def settled_(self, worker: Any) -> SafeString | str:
        return settled(worker.settled)

    @admin.display(description=gettext_lazy("memory"))
    def memory_(self, worker: Any) -> str:
        return memory(worker)

    # Drain

    def has_drain_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Command.Verb.DRAIN)

    def may(self, request: HttpRequest, verb: Command.Verb) -> bool:
        """Is this user allowed to give such a command? It takes the right to see workers, and one of its own."""
        own: bool = request.user.has_perm(f"{self.opts.app_label}.{PERMISSIONS[verb]}")
        return own and self.has_view_permission(request)

    @admin.action(description=gettext_lazy("Drain"), permissions=["drain"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Asks for a confirmation first: it is the one thing here that takes workers away."""
        workers = list(queryset[:MOST])
        if "confirmed" not in request.POST:
            return self._confirmation(request, workers)
        self._order(request, databases.chosen(request), Command.Verb.DRAIN, [worker.pk for worker in workers])
        return None

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Django's, which answers a forbidden action with "No action selected"; here it is forbidden."""
        if request.method == "POST" and not self.has_drain_permission(request):
            raise PermissionDenied
        return super().changelist_view(request, {"now": timezone.now(), **(extra_context or {})})

    def _confirmation(self, request: HttpRequest, workers: list[Any], **page: Any) -> HttpResponse:
        """What asks before a drain.

        Args:
            page: of one worker, its address as `back`, and the way to it as `trail`.
        """
        count = len(workers)
        context = {
            "title": ngettext("Drain %s worker?", "Drain %s workers?", count) % grouped(count),
            "workers": [(badge(one.status), worker_name(one), queues(one)) for one in workers],
            "ids": [worker.pk for worker in workers],
            "action": request.get_full_path(),
            "back": request.get_full_path(),
            "trail": self.trail(),
            **page,
        }
        return self._response(request, "confirm", context)

    def _order(self, request: HttpRequest, alias: str, verb: Command.Verb, ids: list[UUID]) -> None:
        asked = fleet.order(alias, verb, ids)
        for worker in asked:
            audit.write(request.user, Worker, str(worker.pk), worker.name, DONE[verb], worker.now)  # type: ignore[attr-defined]
        told = _summary(verb, len(asked), len(ids) - len(asked))
        self.message_user(request, told, messages.SUCCESS if len(asked) == len(ids) else messages.WARNING)

    # The page of one worker

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.button_view)
        return [
            path("<uuid:worker_id>/drain/", view, {"verb": Command.Verb.DRAIN}, "dhara_worker_drain"),
            path("<uuid:worker_id>/stacks/", view, {"verb": Command.Verb.STACKS}, "dhara_worker_stacks"),
            *super().get_urls(),
        ]

    def button_view(self, request: HttpRequest, worker_id: UUID, verb: Command.Verb) -> HttpResponse:
        """A button of the page: POST only, checked against CSRF by `admin_view`. A drain asks first."""
        if request.method != "POST":
            return self.not_pressed(request, self._reverse("change", worker_id))
        if not self.may(request, verb):
            raise PermissionDenied
        worker = self.get_object(request, str(worker_id))
        if worker is None:
            return self.gone(request, _no_worker(worker_id))
        page = self._reverse("change", worker.pk)
        if verb == Command.Verb.DRAIN and "confirmed" not in request.POST:
            return self._confirmation(request, [worker], back=page, trail=self.trail((worker.name, page)))
        self._order(request, worker.database, verb, [worker.pk])
        return HttpResponseRedirect(page)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """It stands on the page of the worker."""
        return HttpResponseRedirect(self._reverse("change", object_id))

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one worker. It has no form, and nothing that is posted to it is read."""
        if object_id is None or request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        worker = self.get_object(request, object_id)
        if worker is None:
            return self.gone(request, _no_worker(object_id))
        return self._response(request, "page", {**self._page(request, worker), **(extra_context or {})})

    def _page(self, request: HttpRequest, worker: Any) -> dict[str, Any]:
        alias, is_present = worker.database, worker.status in PRESENT
        worker.running = crew.running_tasks(alias, [worker.pk], NAMED_ON_PAGE).get(worker.pk, [])
        worker.settled = crew.lately(alias).get(str(worker.pk)) or Tally()
        asked, is_open = crew.commands(alias, worker.pk), set()
        for command in asked:
            if command.answered_at is None:
                is_open.add(command.verb)
        may_look = self.may(request, Command.Verb.STACKS)
        answered = [one for one in asked if one.verb == Command.Verb.STACKS and one.answered_at] if may_look else []
        useful = {
            Command.Verb.DRAIN: worker.status in (Status.ALIVE, Status.LATE),
            Command.Verb.STACKS: is_present,
        }
        return {
            "title": worker.name,
            "original": worker.name,
            "change": True,
            "has_view_permission": True,
            "badge": badge(worker.status),
            "is_in_trouble": worker.status in (Status.LATE, Status.LOST),
            "standing": standing(worker),
            "buttons": [
                (LABELS[verb], self._reverse(verb.lower(), worker.pk), verb in is_open)
                for verb, is_useful in useful.items()
                if is_useful and self.may(request, verb)
            ],
            "facts": [*facts(worker)],
            "runs": self._items(worker),
            "all_runs": self._all_of(worker) if worker.running[NAMED_ON_PAGE - 1 :] else "",
            # Of one worker only counts are kept.
            "charts": pulse.charts(crew.hour(alias, worker.pk), worker.now)[:1],
            "hatch": HATCH,
            "now": worker.now,
            "asked": [*_asked(asked, worker, is_present=is_present)],
            "stacks": crew.stacks(alias, answered[0]) if answered else [],
            "stacks_at": moment(answered[0].answered_at, worker.now) if answered else "",
            "entries": [*pulse.entries(Worker, str(worker.pk), worker.now)],
        }

    def _response(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        whole = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "app_label": self.opts.app_label,
            **context,
        }
        return TemplateResponse(request, f"admin/dhara/worker/{template}.html", whole)

    def _reverse(self, view: str, *arguments: Any, model: str = "worker") -> str:
        return links.to(self.admin_site.name, f"{model}_{view}", *arguments)


#: Of `models.Worker.Meta.permissions`.
PERMISSIONS = {Command.Verb.DRAIN: "drain_worker", Command.Verb.STACKS: "view_stacks"}
LABELS = {Command.Verb.DRAIN: gettext_lazy("Drain"), Command.Verb.STACKS: gettext_lazy("Show stacks")}
#: What the log keeps.
DONE = {Command.Verb.DRAIN: "Asked to drain.", Command.Verb.STACKS: "Asked what its threads do."}


def _no_worker(id_: object) -> str:
    return _("There is no worker %s (any more): its row goes a day after its last word.") % visible(id_)


def _summary(verb: Command.Verb, asked: int, refused: int) -> str:
    if verb == Command.Verb.STACKS:
        return _("Asked: the answer stands below in a moment.") if asked else _("It was asked already, or is gone.")
    told = ngettext("%s worker asked to drain", "%s workers asked to drain", asked) % grouped(asked)
    if not refused:
        return f"{told}."
    other = ngettext("%s drains already or is gone", "%s drain already or are gone", refused) % grouped(refused)
    return f"{told}, {other}."


def _asked(commands: Iterable[Command], worker: Any, *, is_present: bool) -> Iterator[tuple[Any, Any, Any]]:
    """What it was asked, when, and what came of it."""
    for command in commands:
        if command.answered_at is not None:
            came: SafeString | str = format_html(_("answered {}"), moment(command.answered_at, worker.now))
        else:
            came = _("no answer yet") if is_present else _("never answered: it was gone")
        yield LABELS[Command.Verb(command.verb)], moment(command.created_at, worker.now), came
