"""What is done to tasks from a list or a page: asked for, confirmed, made, and told.

A selection is changed at once. All that match a search are changed by a bulk change, which has a page of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_dhara import fleet, operations, search
from django_dhara.admin import bulkchanges, databases, sidebar
from django_dhara.admin import operations as wishes
from django_dhara.admin.operations import VERBS, Outcome, Verb, Wish
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import badge, no_task, visible
from django_dhara.models import Task
from django_dhara.states import State

#: Characters of a reason that are kept.
REASON = 300


class TaskActionsAdmin(ReadOnlyAdmin):
    """The buttons of a task's page and the actions of the list."""

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        """Is this user allowed to do `verb`? It takes the right to see tasks, and one of its own."""
        return bulkchanges.may(request, verb) and self.has_view_permission(request)

    def allowed(self, request: HttpRequest) -> list[Verb]:
        return [verb for verb in VERBS.values() if self.may(request, verb)]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.button_view)
        buttons = [path(f"<uuid:task_id>/{key}/", view, {"verb": key}, f"dhara_task_{key}") for key in VERBS]
        return [*buttons, *super().get_urls()]

    # The list

    def posted(self, request: HttpRequest) -> HttpResponse:
        """An action of the list, on a selection or on all that match; checked against CSRF by `admin_view`."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        ids, verb = _posted_ids(request), VERBS.get(request.POST.get("action", ""))
        if verb and not self.may(request, verb):
            raise PermissionDenied
        if not verb or not (ids or _is_everything(request)):
            self.message_user(
                request, _("Select tasks, and what to do with them. Nothing was changed."), messages.WARNING
            )
            return HttpResponseRedirect(request.get_full_path())
        if _is_everything(request):
            return self._everything(request, verb)
        return self._selection(request, verb, ids)

    def _selection(self, request: HttpRequest, verb: Verb, posted: Sequence[UUID]) -> HttpResponse:
        alias = databases.chosen(request)
        states = dict(Task.objects.using(alias).filter(pk__in=posted).values_list("pk", "state"))
        counts = Counter(states.values())
        context = {
            "title": wishes.question(verb, len(states)),
            "ids": posted,
            "states": [(badge(state), counts[state]) for state in State.values if state in counts],
        }
        wish, errors = _wish(request, verb)
        if wish is None:
            return self._confirmation(request, verb, context, errors)
        self._perform(request, wish, alias, sorted(states), missing=len(posted) - len(states))
        return HttpResponseRedirect(request.get_full_path())

    def _everything(self, request: HttpRequest, verb: Verb) -> HttpResponse:
        if not bulkchanges.are_on(self.admin_site.name):
            raise BadRequest("This site has no bulk changes.")
        alias = databases.chosen(request)
        try:
            asked = search.parse(sidebar.asked_by(request.GET))
            with databases.time_limit(alias, bulkchanges.PATIENCE):
                found = search.count(alias, asked)
        except search.SearchError as error:
            raise BadRequest("Not a search.") from error
        shown = bulkchanges.told(found)
        context = {
            "title": wishes.question(verb, found.number, shown if found.more else ""),
            "everything": True,
            "search": visible(asked),
        }
        wish, errors = _wish(request, verb)
        if wish is None:
            return self._confirmation(request, verb, context, errors)
        change = bulkchanges.begin(request, alias, wish, asked)
        self._warn(request, wish, alias)
        return HttpResponseRedirect(bulkchanges.page_on(self.admin_site.name, change))

    def _perform(self, request: HttpRequest, wish: Wish, alias: str, ids: Sequence[UUID], missing: int = 0) -> Outcome:
        done = wishes.perform(wish, alias, ids, missing=missing)
        self.message_user(request, done.summary, messages.SUCCESS if done.complete else messages.WARNING)
        self._warn(request, wish, alias)
        return done

    def _warn(self, request: HttpRequest, wish: Wish, alias: str) -> None:
        """A queue whose name is misspelt is one that nobody works on."""
        queue = wish.arguments.get("queue")
        if queue and not fleet.is_served(alias, queue):
            told = _("No worker that is alive takes queue %s: its tasks wait. Is that its name?")
            self.message_user(request, told % visible(queue), messages.WARNING)

    # The page of one task

    def button_view(self, request: HttpRequest, task_id: UUID, verb: str) -> HttpResponse:
        """A button of the page: POST only. A verb with an argument asks for it first."""
        if request.method != "POST":
            return self.not_pressed(request, self.page_of(task_id))
        asked = VERBS[verb]
        if not self.may(request, asked):
            raise PermissionDenied
        task = self.get_object(request, str(task_id))
        if task is None:
            return self.gone(request, no_task(task_id))
        wish, errors = _wish(request, asked, confirmed=not asked.argument and asked is not wishes.DELETE)
        page = self.page_of(task.pk)
        if wish is None:
            context = {
                "title": wishes.question(asked, 1),
                "states": [(badge(task.state), task.function)],
                "back": page,
                "trail": self.trail((task.function, page)),
            }
            return self._confirmation(request, asked, context, errors)
        done = self._perform(request, wish, task.database, [task.pk])
        return HttpResponseRedirect(self._after(wish, task.pk, done))

    def _after(self, wish: Wish, id_: UUID, done: Outcome) -> str:
        """The page to go to: that of the copy, or the list where the task is gone."""
        if wish.verb is wishes.DELETE and done.complete:
            return self.list_address
        return self.page_of(done.copies.get(id_, id_))

    def _confirmation(
        self, request: HttpRequest, verb: Verb, context: Mapping[str, Any], errors: Sequence[str]
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        here = request.get_full_path()
        shown = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "trail": self.trail(),
            "verb": verb,
            "errors": errors,
            "argument": visible(request.POST.get("argument", "")),
            "reason": visible(request.POST.get("reason", "")),
            "queues": _queues(databases.chosen(request)) if verb is wishes.CHANGE_QUEUE else (),
            "action": here,
            "back": _back(request) or here,
            "reason_length": REASON,
            **context,
        }
        return TemplateResponse(request, "admin/dhara/task/confirm.html", shown)


def _back(request: HttpRequest) -> str:
    """The page that asked, where it is another one than the list: one of this site."""
    given = request.POST.get("back", "")
    is_ours = url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure())
    return given if is_ours else ""


def _wish(request: HttpRequest, verb: Verb, *, confirmed: bool = False) -> tuple[Wish | None, list[str]]:
    """What was confirmed, or None and why it cannot be done as it was asked for."""
    if not (confirmed or "confirmed" in request.POST):
        return None, []
    try:
        arguments = operations.check_arguments(verb.change, _argument(request, verb))
    except ValueError as error:
        return None, [visible(capfirst(str(error)))]
    reason = request.POST.get("reason", "").strip().replace("\x00", "")[:REASON]
    return Wish(verb, request.user.pk, arguments, reason), []


def _argument(request: HttpRequest, verb: Verb) -> dict[str, Any]:
    text = request.POST.get("argument", "").strip()
    if verb.argument != "seconds":
        return {verb.argument: text} if verb.argument else {}
    try:
        return {"seconds": search.duration(text)}
    except ValueError:
        raise ValueError(_("Write a time such as 30m, 2h or 1d.")) from None


def _queues(alias: str) -> list[str]:
    """Names that are worth offering: those of TASKS, and those that tasks have."""
    configured = [name for parameters in settings.TASKS.values() for name in parameters.get("QUEUES", ())]
    return [visible(name) for name in dict.fromkeys([*configured, *sidebar.known(alias).queue])]


def _is_everything(request: HttpRequest) -> bool:
    return request.POST.get("select_across") == "1"


def _posted_ids(request: HttpRequest) -> list[UUID]:
    """The selected ids, each once.

    Raises:
        BadRequest: one of them is none.
    """
    try:
        return list(dict.fromkeys(map(UUID, request.POST.getlist(ACTION_CHECKBOX_NAME))))
    except ValueError as error:
        raise BadRequest("Not an id.") from error
