"""Bulk changes: their list, and the page of one, which makes it go on while somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, override

from django_dhara import bulk, search
from django_dhara.admin import databases, links
from django_dhara.admin import operations as wishes
from django_dhara.admin.lists import DatabaseFilter
from django_dhara.admin.operations import VERBS, Verb, Wish
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import exact, grouped, moment, name, tag, visible
from django_dhara.lifecycle import Tally
from django_dhara.models import BulkChange
from django_dhara.sql import utc

#: Seconds that a count may take.
PATIENCE = 2.0
#: What is left is counted up to this.
MOST_LEFT = 100_000

_BY_CHANGE = {verb.change: verb for verb in VERBS.values()}


def may(request: HttpRequest, verb: Verb) -> bool:
    """Has this user the right to do `verb`?"""
    return bool(request.user.has_perm(f"dhara.{verb.permission}"))


def are_on(site: str) -> bool:
    """Has this admin site the page of a bulk change? Without one nobody would make it go on."""
    return bool(links.to(site, "bulkchange_changelist"))


def page_on(site: str, change: BulkChange) -> str:
    """The address of the page of a bulk change, which makes it go on."""
    return links.to(site, "bulkchange_change", change.pk)


def told(found: search.Found) -> str:
    """A number of tasks in words: "12", "about 5,012,345", "more than 10,000", "at least 7"."""
    if not found.more:
        return grouped(found.number)
    if found.estimate and found.estimate > found.number:
        return _("about %s") % grouped(found.estimate)
    if found.number >= search.MOST:
        return _("more than %s") % grouped(found.number)
    return _("at least %s") % grouped(found.number) if found.number else _("an unknown number")


def begin(request: HttpRequest, alias: str, wish: Wish, asked: search.Search) -> BulkChange:
    """A bulk change as this user wishes it, and its entry in the log."""
    user = request.user
    change = bulk.create(
        alias,
        wish.verb.change,
        asked,
        wish.arguments,
        reason=wish.reason,
        user_id=wish.user_id,
        user_name=user.get_username(),
    )
    _log(wish.user_id, change, ADDITION, lambda: f"Began: {wish.verb.label}, all that match. {visible(wish.reason)}")
    return change


def _log(user_id: Any, change: BulkChange, flag: int, message: Callable[[], str]) -> None:
    """The log is English, whoever looks on."""
    change.search = visible(change.search)[:150]
    with override("en"):
        LogEntry.objects.log_actions(user_id, [change], flag, message().strip())


def _author(request: HttpRequest, change: BulkChange) -> Any:
    """In whose name the log is kept: of who asked for it, whoever looks on, as long as there is such a user."""
    users = get_user_model()._default_manager  # noqa: SLF001 - it has no public name
    try:
        author = users.filter(pk=change.user_id).first()
    except (ValueError, ValidationError):
        author = None
    return author.pk if author else request.user.pk


def _wish(change: BulkChange, author: Any) -> Wish:
    reason = f"{change.reason} (bulk change {change.pk})".strip()
    return Wish(_BY_CHANGE[change.verb], author, change.arguments, reason)  # type: ignore[index]


@admin.register(BulkChange)
class BulkChangeAdmin(ReadOnlyAdmin):
    """Whoever may see tasks may see what was done to them."""

    names = (gettext_lazy("bulk change"), gettext_lazy("bulk changes"))
    list_display = ("status_", "verb_", "search_", "summary_", "reason_", "who_", "began_")
    list_display_links = None
    list_filter = (DatabaseFilter,)
    ordering = ("-created_at", "pk")
    list_per_page = 50

    class Media:
        css: ClassVar = {"all": ("dhara/tasks.css",)}
        js = ("dhara/bulk.js",)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("dhara.view_task"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        changes: QuerySet[Any] = super().get_queryset(request).annotate(now=Now())
        return changes

    def get_urls(self) -> list[Any]:
        views = {"step": self.step_view, "stop": self.stop_view}
        ours = [
            path(f"<uuid:change_id>/{key}/", self.admin_site.admin_view(view), name=f"dhara_bulkchange_{key}")
            for key, view in views.items()
        ]
        return [*ours, *super().get_urls()]

    # The list

    @admin.display(description=gettext_lazy("status"))
    def status_(self, change: Any) -> SafeString:
        return status(change)

    @admin.display(description=gettext_lazy("action"))
    def verb_(self, change: Any) -> SafeString:
        return format_html('<a href="{}">{}</a>', self.page_of(change.pk), label(change))

    @admin.display(description=gettext_lazy("search"))
    def search_(self, change: Any) -> SafeString:
        return format_html("<code>{}</code>", visible(change.search) or _("everything"))

    @admin.display(description=gettext_lazy("result"))
    def summary_(self, change: Any) -> str:
        return summary(change)

    @admin.display(description=gettext_lazy("reason"))
    def reason_(self, change: Any) -> str:
        return visible(change.reason) or "–"

    @admin.display(description=gettext_lazy("who"))
    def who_(self, change: Any) -> SafeString:
        return name(change.user_name)

    @admin.display(description=gettext_lazy("began"))
    def began_(self, change: Any) -> SafeString | str:
        return moment(change.created_at, change.now)

    # The page of one

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """How far it is. It has no form of its own, and nothing that is posted to it is read."""
        if object_id is None or request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        change = self.get_object(request, object_id)
        if change is None:
            raise Http404
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": label(change),
            "opts": self.opts,
            "original": visible(label(change)),
            "change": True,
            "has_view_permission": True,
            "media": self.media,
            **self._progress(request, change),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/dhara/bulkchange/page.html", context)

    def _tasks(self, change: Any, text: str) -> str:
        parameters = {"q": text, **databases.named(change.database)}
        return f"{reverse('admin:dhara_task_changelist', current_app=self.admin_site.name)}?{urlencode(parameters)}"

    def _changed(self, change: Any) -> str:
        """The list of the tasks that were changed; empty where no search tells them from others."""
        asked = after(change)
        return self._tasks(change, str(asked)) if asked else ""

    def _progress(self, request: HttpRequest, change: Any) -> dict[str, Any]:
        """What changes while it goes on."""
        verb, goes_on = _BY_CHANGE.get(change.verb), is_going(change)
        addresses = {key: self._address(key, change.pk) for key in ("step", "stop")}
        done, known = change.looked_at, request.POST.get("all", "")
        if known.isdecimal() and len(known) < 12:
            # A step is not to count once more what is left: the page that asks for it knows how many there are.
            left, shown = max(int(known) - done, 0), grouped(max(int(known) - done, 0)) if int(known) else ""
        else:
            left, shown = self._left(change) if goes_on else (0, "")
        return {
            "change": change,
            "status": status(change),
            "summary": summary(change),
            "facts": [*facts(change)],
            "tasks": self._tasks(change, change.search),
            "changed": "" if goes_on else self._changed(change),
            "goes_on": goes_on,
            "may_go_on": bool(verb and goes_on and may(request, verb)),
            "left": shown,
            "done": done,
            "done_shown": grouped(done),
            "all": done + left if left else 0,
            "percent": f"{done * 100 // (done + left)} %" if left else "",
            **addresses,
        }

    def _left(self, change: Any) -> tuple[int, str]:
        """How many tasks are before it, if that is known, and in words."""
        try:
            with databases.time_limit(change.database, PATIENCE):
                found = bulk.left(change.database, change, most=MOST_LEFT)
        except (databases.TooSlow, search.SearchError):
            return 0, ""
        return (0 if found.more else found.number), told(found)

    def step_view(self, request: HttpRequest, change_id: UUID) -> HttpResponse:
        """Make it go on for half a second."""
        change = self._posted(request, change_id)
        if isinstance(change, HttpResponse):
            return change
        alias, author = change.database, _author(request, change)
        try:
            after: Any = bulk.step(alias, change.pk, on_changed=_logged(alias, author))
        except databases.TooSlow:
            return self._stands(request, change, _("The search takes too long, and so it stands still."))
        except search.SearchError as error:  # since it began, the project has begun to redact
            told = _("Its search is refused now, and so it stands still: %s") % visible(error)
            return self._stands(request, change, told)
        if change.finished_at is None and after.finished_at is not None:
            _log(author, after, CHANGE, lambda: f"Ended: {summary(after)}")
        return self._answer(request, change.pk)

    def _stands(self, request: HttpRequest, change: Any, told: str) -> HttpResponse:
        advice = _("Stop it, and search for something else.")
        told = f"{told} {advice}"
        if _is_script(request):
            return JsonResponse({"told": told}, status=HTTPStatus.CONFLICT)
        self.message_user(request, told, messages.ERROR)
        return HttpResponseRedirect(self.page_of(change.pk))

    def stop_view(self, request: HttpRequest, change_id: UUID) -> HttpResponse:
        """Let it not go on."""
        change = self._posted(request, change_id)
        if isinstance(change, HttpResponse):
            return change
        if bulk.stop(change.database, change.pk):
            stopped = BulkChange.objects.using(change.database).get(pk=change.pk)
            _log(request.user.pk, stopped, CHANGE, lambda: f"Stopped: {summary(stopped)}")
        return self._answer(request, change.pk)

    def _posted(self, request: HttpRequest, change_id: UUID) -> Any:
        """The bulk change that a form is about, or the answer to who may not post it."""
        if request.method != "POST":
            return self.not_pressed(request, self.page_of(change_id))
        change = self.get_object(request, str(change_id)) if self.has_view_permission(request) else None
        verb = _BY_CHANGE.get(change.verb) if change else None
        if verb is None or not may(request, verb):
            raise PermissionDenied
        return change

    def _answer(self, request: HttpRequest, id_: UUID) -> HttpResponse:
        """The page again, or for the script that makes it go on only what has changed."""
        if not _is_script(request):
            return HttpResponseRedirect(self.page_of(id_))
        change = self.get_object(request, str(id_))
        context = self._progress(request, change)
        html = render_to_string("admin/dhara/bulkchange/progress.html", context, request)
        stand = utc(change.changed_at).isoformat()
        return JsonResponse({"goes_on": context["goes_on"], "html": html, "stand": stand})

    def _address(self, view: str, id_: UUID) -> str:
        return reverse(f"admin:dhara_bulkchange_{view}", args=[id_], current_app=self.admin_site.name)


def _is_script(request: HttpRequest) -> bool:
    """Does the script of the page ask, and no form?"""
    return request.headers.get("accept") == "application/json"


def _logged(alias: str, author: Any) -> Callable[[BulkChange, Tally], None]:
    return lambda change, tally: wishes.log(_wish(change, author), alias, tally)


#: Of a verb, the fields of which it changes what tasks have.
_ALTERED = {
    "cancel": ("state", "is", "finished_after", "finished_before"),
    "change_queue": ("queue",),
    "change_priority": ("priority",),
}


def after(change: Any) -> search.Search | None:
    """The search that finds the tasks of a change as it left them, if they have something that can be searched for."""
    try:
        asked = search.parse(change.search, is_kept=True)
    except search.SearchError:
        return None
    if change.verb not in _ALTERED:
        return None
    for field in _ALTERED[change.verb]:
        asked = asked.replaced(field)
    if change.verb == "cancel":
        asked = asked.replaced("state", search.Value("canceled"))
        return asked.replaced("finished_after", search.Value(utc(change.created_at).isoformat(), exact=True))
    [argument] = _ALTERED[change.verb]
    value = str(change.arguments.get(argument, ""))
    return asked.replaced(argument, search.Value(value) if argument == "priority" else search.Value.of(value))


def is_going(change: Any) -> bool:
    return change.finished_at is None and change.stopped_at is None


def status(change: Any) -> SafeString:
    if change.finished_at:
        return tag("completed", "✓", _("Done"))
    if change.stopped_at:
        return tag("canceled", "■", _("Stopped"))
    return tag("running", "▸", _("Under way"))


def label(change: Any) -> str:
    """What it does, with its argument."""
    verb = _BY_CHANGE.get(change.verb)
    if verb is None:
        return visible(change.verb)
    value = change.arguments.get(verb.argument, "")
    return f"{verb.label}: {visible(value)}" if verb.argument else str(verb.label)


def summary(change: Any) -> str:
    verb = _BY_CHANGE.get(change.verb)
    return wishes.summary(verb, change.counts) if verb else str(change.counts)


def facts(change: Any) -> Any:
    yield _("Search"), format_html("<code>{}</code>", visible(change.search) or _("everything"))
    yield _("Who"), name(change.user_name)
    if change.reason:
        yield _("Reason"), format_html("<bdi>{}</bdi>", visible(change.reason))
    yield _("Began"), exact(change.created_at)
    if change.stopped_at:
        yield _("Stopped"), exact(change.stopped_at)
    if change.finished_at:
        yield _("Ended"), exact(change.finished_at)
