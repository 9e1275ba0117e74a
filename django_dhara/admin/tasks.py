"""The list of tasks, the page of one, and what an operator can do to them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dhara.admin import databases, lists, operations, page, scene
from django_dhara.admin.onetask import TaskPageAdmin
from django_dhara.admin.operations import CANCEL, RETRY, RUN_NOW, VERBS, Verb
from django_dhara.admin.text import age, badge, counted, moment, name, visible
from django_dhara.models import Task
from django_dhara.states import REVIVABLE, State


@admin.register(Task)
class TaskAdmin(TaskPageAdmin):
    list_display = ("state_", "function_", "queue_", "priority_", "attempts_", "run_at_", "age_")
    list_display_links = None
    list_filter = (
        lists.DatabaseFilter,
        lists.StateFilter,
        lists.QueueFilter,
        lists.FunctionFilter,
        lists.ErrorsFilter,
        lists.WorkerFilter,
    )
    # Django shows the search box if there are fields; `get_search_results` decides what is searched.
    search_fields = ("id", "function")
    search_help_text = gettext_lazy("An id or its beginning, or a part of a function's path.")
    ordering = ("-id",)
    actions = ("cancel", "retry", "run_now")
    change_form_template = "admin/dhara/task/page.html"

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        tasks: QuerySet[Any] = super().get_queryset(request).defer(*scene.HEAVY).annotate(now=Now())
        return tasks

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return lists.TaskChangeList

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        return lists.search(queryset, search_term), False

    @admin.display(description=gettext_lazy("select"))
    def action_checkbox(self, obj: Any) -> Any:
        return super().action_checkbox(self.shown(obj))

    @admin.display(description=gettext_lazy("state"))
    def state_(self, task: Any) -> SafeString:
        if task.state == State.RUNNING and task.cancel_requested_at:
            return format_html('{} <span class="dhara-quiet">{}</span>', badge(task.state), _("asked to stop"))
        return badge(task.state)

    @admin.display(description=gettext_lazy("function"))
    def function_(self, task: Any) -> SafeString:
        link = format_html(
            '<a href="{}" title="{}">{}</a>', self._reverse("change", task.pk), task.pk, name(task.function)
        )
        if not task.error_class:
            return link
        return format_html('{} <span class="dhara-quiet">{}</span>', link, visible(task.error_class))

    @admin.display(description=gettext_lazy("queue"))
    def queue_(self, task: Any) -> SafeString:
        return name(task.queue)

    @admin.display(description=gettext_lazy("priority"))
    def priority_(self, task: Any) -> int:
        return int(task.priority)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts_(self, task: Any) -> str:
        return f"{counted(task)}/{task.max_attempts}"

    @admin.display(description=gettext_lazy("run at"))
    def run_at_(self, task: Any) -> SafeString | str:
        return moment(task.run_at, task.now)

    @admin.display(description=gettext_lazy("age"))
    def age_(self, task: Any) -> SafeString:
        return age(task.enqueued_at, task.now)

    # Permissions, and the actions of the list

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self.may(request, CANCEL)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self.may(request, RETRY)

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        return self.may(request, RUN_NOW)

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        """Is this user allowed to do `verb`? It takes the right to see tasks, and one of its own."""
        own = request.user.has_perm(f"{self.opts.app_label}.{verb.permission}")
        return own and self.has_view_permission(request)

    @admin.action(description=gettext_lazy("Cancel"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._act(request, queryset, CANCEL)

    @admin.action(description=gettext_lazy("Retry"), permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._act(request, queryset, RETRY)

    @admin.action(description=gettext_lazy("Run now"), permissions=["run_now"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._act(request, queryset, RUN_NOW)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Django's, which answers a forbidden action with "No action selected"; here it is forbidden."""
        if request.method == "POST":
            _posted_ids(request)
            for verb in map(VERBS.get, request.POST.getlist("action")):
                if verb and not self.may(request, verb):
                    raise PermissionDenied
        return super().changelist_view(request, extra_context)

    def _act(self, request: HttpRequest, queryset: QuerySet[Any], verb: Verb) -> HttpResponse | None:
        everything = request.POST.get("select_across") == "1"
        if everything:
            ids, missing = list(queryset.values_list("pk", flat=True)[: lists.MOST]), 0
        else:
            posted = _posted_ids(request)
            ids = list(self.get_queryset(request).filter(pk__in=posted).order_by("pk").values_list("pk", flat=True))
            missing = len(posted) - len(ids)
        if "confirmed" not in request.POST:
            return self._confirmation(request, verb, ids, everything=everything)
        self._perform(request, verb, databases.chosen(request), ids, missing)
        return None

    def _perform(self, request: HttpRequest, verb: Verb, alias: str, ids: list[UUID], missing: int = 0) -> None:
        done = operations.perform(verb, int(request.user.pk or 0), alias, ids, missing=missing)
        self.message_user(request, done.summary, messages.SUCCESS if done.complete else messages.WARNING)

    def _confirmation(self, request: HttpRequest, verb: Verb, ids: list[UUID], *, everything: bool) -> HttpResponse:
        states = Counter(self.get_queryset(request).filter(pk__in=ids).values_list("state", flat=True))
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": operations.question(verb, len(ids)),
            "opts": self.opts,
            "media": self.media,
            "verb": verb,
            "ids": ids[:1] if everything else ids,
            "everything": everything,
            "states": [(badge(state), states[state]) for state in State.values if state in states],
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/dhara/task/confirm.html", context)

    # The page of one task

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.button_view)
        buttons = [path(f"<uuid:task_id>/{key}/", view, {"verb": key}, f"dhara_task_{key}") for key in VERBS]
        return [*buttons, *super().get_urls()]

    def button_view(self, request: HttpRequest, task_id: UUID, verb: str) -> HttpResponse:
        """A button of the page: POST only, checked against CSRF by `admin_view`."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.may(request, VERBS[verb]):
            raise PermissionDenied
        task = self.get_object(request, str(task_id))
        if task is None:
            raise Http404
        self._perform(request, VERBS[verb], task.database, [task.pk])
        return HttpResponseRedirect(self._reverse("change", task.pk))

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one task. It has no form, and nothing that is posted to it is read."""
        if object_id is None or request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        task = self.get_object(request, object_id)
        if task is None:
            self.message_user(request, _("There is no task %s (any more).") % visible(object_id), messages.WARNING)
            return HttpResponseRedirect(self._reverse("changelist"))
        return self._page(request, task, extra_context)

    def shown(self, row: Any) -> Any:
        for field in ("function", "queue", "backend"):
            setattr(row, field, visible(getattr(row, field)))
        return row

    def _page(self, request: HttpRequest, task: Any, extra_context: Any) -> HttpResponse:
        full = scene.with_documents(Task.objects.using(task.database)).filter(pk=task.pk).first()
        if full is None:
            raise Http404
        full.database = task.database
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": visible(full.function),
            "opts": self.opts,
            "original": task,
            "change": True,
            "media": self.media,
            "app_label": self.opts.app_label,
            "has_view_permission": True,
            "buttons": [*self._buttons(request, full)],
            "history": self._reverse("history", task.pk),
            **page.context(scene.read(task.database, full)),
            **self.live_context(request, full),
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.change_form_template, context)

    def _buttons(self, request: HttpRequest, task: Any) -> Iterator[tuple[Verb, str]]:
        """What this user may do, and what would change something now."""
        waits, runs = task.state == State.PENDING, task.state == State.RUNNING
        useful = {
            RETRY.name: task.state in REVIVABLE,
            RUN_NOW.name: waits and task.run_at > task.now,
            CANCEL.name: waits or (runs and not task.cancel_requested_at),
        }
        for key, is_useful in useful.items():
            if is_useful and self.may(request, VERBS[key]):
                yield VERBS[key], self._reverse(key, task.pk)

    def _reverse(self, view: str, *arguments: Any) -> str:
        return reverse(f"admin:dhara_task_{view}", args=arguments, current_app=self.admin_site.name)


def _posted_ids(request: HttpRequest) -> list[UUID]:
    """The selected ids, each once.

    Raises:
        BadRequest: one of them is none.
    """
    try:
        return list(dict.fromkeys(map(UUID, request.POST.getlist(ACTION_CHECKBOX_NAME))))
    except ValueError as error:
        raise BadRequest("Not an id.") from error
