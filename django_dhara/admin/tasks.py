"""Tasks in Django's admin: their list (tasklist.py, actions.py), and here the page of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from django_dhara.admin import page, scene
from django_dhara.admin.letters import DeadLettersAdmin
from django_dhara.admin.onetask import TaskPageAdmin
from django_dhara.admin.operations import (
    CANCEL,
    CHANGE_PRIORITY,
    CHANGE_QUEUE,
    COPY,
    DELETE,
    RETRY,
    RUN_NOW,
    SNOOZE,
    Verb,
)
from django_dhara.admin.tasklist import TaskListAdmin
from django_dhara.admin.text import no_task, visible
from django_dhara.models import Task
from django_dhara.states import FINAL, REVIVABLE, State


@admin.register(Task)
class TaskAdmin(TaskPageAdmin, DeadLettersAdmin, TaskListAdmin):
    change_form_template = "admin/dhara/task/page.html"

    class Media:
        css: ClassVar = {"all": ("dhara/task.css",)}
        js = ("dhara/morph.js", "dhara/task.js")

    # The page of one task

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one task. It has no form, and nothing that is posted to it is read."""
        if object_id is None or request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        task = self.get_object(request, object_id)
        if task is None:
            return self.gone(request, no_task(object_id))
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
            **page.context(scene.read(task.database, full, self.admin_site.name)),
            **self.live_context(request, full),
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.change_form_template, context)

    def _buttons(self, request: HttpRequest, task: Any) -> Iterator[Button]:
        """What this user may do, and what would change something now; the likeliest first."""
        for verb, is_useful in _useful(task):
            if is_useful and self.may(request, verb):
                yield Button(verb, self._reverse(verb.name, task.pk), _LOOKS.get(verb.name, "dhara-second"))

    def _reverse(self, view: str, *arguments: Any) -> str:
        return reverse(f"admin:dhara_task_{view}", args=arguments, current_app=self.admin_site.name)


class Button(NamedTuple):
    """A button of the page of one task."""

    verb: Verb
    address: str
    #: Its class.
    look: str


_LOOKS = {RETRY.name: "default", RUN_NOW.name: "default", CANCEL.name: "", DELETE.name: "dhara-second dhara-grave"}


def _useful(task: Any) -> Iterator[tuple[Verb, bool]]:
    """Each verb, and whether it applies to the task as it is now."""
    waits, runs, has_failed = task.state == State.PENDING, task.state == State.RUNNING, task.state in REVIVABLE
    yield RETRY, has_failed
    yield RUN_NOW, waits and task.run_at > task.now
    yield CANCEL, waits or (runs and not task.cancel_requested_at)
    yield COPY, has_failed
    yield SNOOZE, waits
    yield CHANGE_PRIORITY, waits
    yield CHANGE_QUEUE, waits
    yield DELETE, task.state in FINAL
