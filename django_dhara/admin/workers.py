"""The list of workers, what each runs now, and the page of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import F, QuerySet, Window
from django.db.models.functions import Now, RowNumber
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dhara.admin import databases
from django_dhara.admin.lists import BoundedChangeList, DatabaseFilter
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import age, moment, name, tag, visible
from django_dhara.models import Task, Worker

#: Running tasks named for each worker.
NAMED = 5


class WorkerChangeList(BoundedChangeList):
    """The list of workers; what all of them run is read at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        running = running_tasks(databases.chosen(request), [worker.pk for worker in self.result_list])
        for worker in self.result_list:
            worker.running = running.get(worker.pk, [])


def running_tasks(alias: str, workers: Iterable[UUID]) -> dict[UUID, list[Task]]:
    """What these workers run now, oldest run first, at most `NAMED` + 1 tasks of each."""
    tasks = Task.objects.using(alias).running().filter(worker_id__in=list(workers))
    place = Window(RowNumber(), partition_by=F("worker_id"), order_by=F("attempted_at").asc())
    found: dict[Any, list[Task]] = defaultdict(list)
    for task in (
        tasks.only("id", "function", "worker_id", "attempted_at").alias(place=place).filter(place__lte=NAMED + 1)
    ):
        found[task.worker_id].append(task)
    return found


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        "status_",
        "host_",
        "queues_",
        "concurrency_",
        "runs_",
        "started_",
        "heartbeat_",
        "version_",
    )
    list_display_links = None
    list_filter = (DatabaseFilter,)
    ordering = (F("stopped_at").desc(nulls_first=True), "-heartbeat_at", "pk")
    fields = (
        "status_",
        "host_",
        "name_",
        "backend_",
        "queues_",
        "concurrency_",
        "runs_",
        "started_",
        "heartbeat_",
        "lease_",
        "version_",
        "id_",
    )
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        workers: QuerySet[Any] = super().get_queryset(request).annotate(now=Now())
        return workers

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return WorkerChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields

    def shown(self, row: Any) -> Any:
        row.name = visible(row.name)
        row.running = running_tasks(row.database, [row.pk]).get(row.pk, [])
        return row

    @admin.display(description=gettext_lazy("status"))
    def status_(self, worker: Any) -> SafeString:
        if worker.stopped_at:
            return tag("canceled", "■", _("Stopped"))
        if (worker.now - worker.heartbeat_at).total_seconds() > worker.lease_seconds:
            return tag("dead", "!", _("Late"))
        if worker.draining_at:
            return tag("pending", "▾", _("Draining"))
        return tag("completed", "✓", _("Alive"))

    @admin.display(description=gettext_lazy("host"))
    def host_(self, worker: Any) -> SafeString:
        address = reverse("admin:dhara_worker_change", args=[worker.pk], current_app=self.admin_site.name)
        shown = f"{visible(worker.host)}:{worker.pid}"
        return format_html('<a href="{}" title="{}"><bdi>{}</bdi></a>', address, visible(worker.name), shown)

    @admin.display(description=gettext_lazy("name"))
    def name_(self, worker: Any) -> SafeString:
        return name(worker.name)

    @admin.display(description=gettext_lazy("backend"))
    def backend_(self, worker: Any) -> SafeString:
        return name(worker.backend)

    @admin.display(description=gettext_lazy("queues"))
    def queues_(self, worker: Any) -> SafeString | str:
        chosen = _names(worker.queues) if worker.queues else _("all")
        if not worker.exclude_queues:
            return chosen
        return format_html(_("{} without {}"), chosen, _names(worker.exclude_queues))

    @admin.display(description=gettext_lazy("concurrency"))
    def concurrency_(self, worker: Any) -> int:
        return int(worker.concurrency)

    @admin.display(description=gettext_lazy("runs now"))
    def runs_(self, worker: Any) -> SafeString | str:
        tasks = worker.running
        if not tasks:
            return "–"
        rows = [(_task_address(task), name(task.function), moment(task.attempted_at, worker.now)) for task in tasks]
        links = format_html_join("", '<li><a href="{}">{}</a> <span class="dhara-quiet">{}</span></li>', rows[:NAMED])
        more = format_html('<li><a href="{}">{}</a></li>', _all_of(worker), _("all")) if len(tasks) > NAMED else ""
        return format_html('<ul class="dhara-plain">{}{}</ul>', links, more)

    @admin.display(description=gettext_lazy("started"))
    def started_(self, worker: Any) -> SafeString | str:
        return moment(worker.started_at, worker.now)

    @admin.display(description=gettext_lazy("heartbeat"))
    def heartbeat_(self, worker: Any) -> SafeString:
        if worker.stopped_at:
            return format_html(_("stopped {}"), moment(worker.stopped_at, worker.now))
        return age(worker.heartbeat_at, worker.now)

    @admin.display(description=gettext_lazy("lease"))
    def lease_(self, worker: Any) -> str:
        return str(_("%g s") % worker.lease_seconds)

    @admin.display(description=gettext_lazy("version"))
    def version_(self, worker: Any) -> str:
        return visible(worker.version)

    @admin.display(description=gettext_lazy("id"))
    def id_(self, worker: Any) -> SafeString:
        return format_html("<code>{}</code>", worker.pk)


def _names(names: Any) -> SafeString:
    """Names from a JSON column that anybody may have written."""
    return format_html_join(", ", "{}", ((name(one),) for one in (names if isinstance(names, list) else [names])))


def _task_address(task: Task) -> str:
    return reverse("admin:dhara_task_change", args=[task.pk])


def _all_of(worker: Worker) -> str:
    return f"{reverse('admin:dhara_task_changelist')}?state=RUNNING&worker={worker.pk}"
