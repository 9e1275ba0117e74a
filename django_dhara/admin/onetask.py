"""What the page of one task asks for beside itself: a whole document, how far it is, and the stack of its run."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from django_dhara.admin import live, page, scene
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import no_task
from django_dhara.models import Task
from django_dhara.states import State

#: The parameter with which the page shows the answer to a command.
STACK = "stack"


class TaskPageAdmin(ReadOnlyAdmin):
    """The addresses under one task's page that are no buttons of its own."""

    def get_urls(self) -> list[Any]:
        views: list[tuple[str, Any, str]] = [
            ("document/<str:document>/", self.document_view, "document"),
            ("live/", self.live_view, "live"),
            ("stack/", self.stack_view, "stack"),
            ("stack/<int:command>/", self.answer_view, "answer"),
        ]
        ours = [
            path(f"<uuid:task_id>/{route}", self.admin_site.admin_view(view), name=f"dhara_task_{name}")
            for route, view, name in views
        ]
        return [*ours, *super().get_urls()]

    def may_see_stacks(self, request: HttpRequest) -> bool:
        own = request.user.has_perm("dhara.view_stacks")
        return own and self.has_view_permission(request)

    def live_context(self, request: HttpRequest, task: Any) -> dict[str, Any]:
        """What the page shows of a running task."""
        asked = request.GET.get(STACK, "")
        stack = None
        if asked.isdecimal() and len(asked) < 19 and self.may_see_stacks(request):
            stack = live.stack(task.database, task.pk, int(asked), task.function)
        return {
            "is_running": task.state == State.RUNNING,
            "may_see_stacks": self.may_see_stacks(request),
            "stack": stack,
            "mark": live.mark(task),
            "progress_seconds": live.seconds(task),
            "stack_seconds": live.STACK_SECONDS,
        }

    def document_view(self, request: HttpRequest, task_id: UUID, document: str) -> HttpResponse:
        """One JSON column in whole, as a file."""
        task = self._seen(request, task_id)
        if document not in scene.DOCUMENTS:
            raise Http404
        text = scene.document(task.database, task, document)
        if text is None:
            raise Http404
        response = HttpResponse(text, content_type="text/plain; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{document}-{task_id}.json"'
        response["X-Content-Type-Options"] = "nosniff"
        response["Cache-Control"] = "no-store"
        return response

    def live_view(self, request: HttpRequest, task_id: UUID) -> HttpResponse:
        """The part of the page that changes while the task runs."""
        task = self._seen(request, task_id)
        row = live.glance(Task.objects.using(task.database).filter(pk=task.pk).defer(*scene.HEAVY)).first()
        if row is None:
            raise Http404
        row.database = task.database
        seen = scene.glance(task.database, row, self.admin_site.name)
        context = {**page.glance(seen), **self.live_context(request, row)}
        return self._fragment(request, "live", row, context)

    def stack_view(self, request: HttpRequest, task_id: UUID) -> HttpResponse:
        """Ask the worker of a running task what it does; the page shows the answer."""
        if request.method != "POST":
            return self.not_pressed(request, self.page_of(task_id))
        if not self.may_see_stacks(request):
            raise PermissionDenied
        task = self.get_object(request, str(task_id))
        if task is None:
            return self.gone(request, no_task(task_id))
        command = live.ask(task.database, task)
        address = self.page_of(task.pk)
        if command is None:
            self.message_user(request, _("It does not run any more."))
            return HttpResponseRedirect(address)
        user: Any = request.user
        LogEntry.objects.log_actions(user.pk, [task], CHANGE, "Asked for its stack.")
        return HttpResponseRedirect(f"{address}?{STACK}={command}#dhara-stack")

    def answer_view(self, request: HttpRequest, task_id: UUID, command: int) -> HttpResponse:
        """The answer to such a question, or that there is none yet."""
        if not self.may_see_stacks(request):
            raise PermissionDenied
        task = self._seen(request, task_id)
        stack = live.stack(task.database, task.pk, command, task.function)
        if stack is None:
            raise Http404
        return self._fragment(request, "stack", task, {"stack": stack, "stack_seconds": live.STACK_SECONDS})

    def _seen(self, request: HttpRequest, task_id: UUID) -> Any:
        """The task, for somebody who may see it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        task = self.get_object(request, str(task_id))
        if task is None:
            raise Http404
        return task

    def _fragment(self, request: HttpRequest, name: str, task: Any, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        response = TemplateResponse(request, f"admin/dhara/task/{name}.html", {"original": task, **context})
        response["Cache-Control"] = "no-store"
        return response
