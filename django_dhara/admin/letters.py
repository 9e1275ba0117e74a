"""The pages of dead letters: all groups, and one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dhara import search
from django_dhara.admin import bulkchanges, databases, dead
from django_dhara.admin.operations import DELETE, RETRY, Verb, Wish
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import NAME_LENGTH, first_line, grouped, moment, name, visible, visible_lines
from django_dhara.sql import utc

#: Characters of a reason.
REASON = 300
#: A bar of the small chart: its width, the gap behind it, and the height of the highest one.
BAR, GAP, HEIGHT = 4, 1, 22


class Bar(NamedTuple):
    x: int
    y: float
    height: float
    told: str


def bars(hours: list[int]) -> list[Bar]:
    """The chart of a group, the oldest hour first; what is there is seen, however little of the most it is."""
    most = max(hours, default=0) or 1
    found = []
    for place, number in enumerate(reversed(hours)):
        hour = len(hours) - 1 - place
        height = max(round(number / most * HEIGHT, 1), 2.0) if number else 0.0
        when = _("in the last hour") if hour == 0 else _("%s h ago") % hour
        found.append(Bar(place * (BAR + GAP), HEIGHT - height, height, f"{grouped(number)} {when}"))
    return found


class DeadLettersAdmin(ReadOnlyAdmin):
    """Addresses under the list of tasks."""

    def get_urls(self) -> list[Any]:
        views: list[tuple[str, Any, str]] = [
            ("dead/", self.dead_view, "dead"),
            ("dead/group/", self.dead_group_view, "dead_group"),
            ("dead/group/discard/", self.dead_discard_view, "dead_discard"),
        ]
        ours = [
            path(route, self.admin_site.admin_view(self._bounded(view)), name=f"dhara_task_{name}")
            for route, view, name in views
        ]
        return [*ours, *super().get_urls()]

    def _bounded(self, view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
        """A view that leads back to the list where its queries take too long."""

        def bounded(request: HttpRequest) -> HttpResponse:
            try:
                return view(request)
            except databases.TooSlow:
                told = _("That took more than %g seconds and was stopped.") % dead.PATIENCE
                self.message_user(request, told, messages.ERROR)
                return HttpResponseRedirect(self._address("changelist", {}))

        return bounded

    def dead_view(self, request: HttpRequest) -> HttpResponse:
        """What has died, by function and error."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        function = _text(request.GET, "function") or None
        order = request.GET.get("o", "last")
        if order not in dead.ORDERS:
            raise BadRequest("Not an order.")
        alias = databases.chosen(request)
        found = dead.letters(alias, function=function, order=order)
        context = {
            "title": _("Dead letters"),
            "letters": found,
            "groups": [self._row(request, group, found.now) for group in found.groups],
            "summary": _summary(found),
            "more": found.number - len(found.groups),
            "most": grouped(dead.MOST),
            "shown_most": dead.GROUPS,
            "function": visible(function) if function else "",
            "orders": [*_orders(request, order)],
            "databases": [*self._databases(request, alias)],
            "chart": {"width": dead.HOURS * (BAR + GAP), "height": HEIGHT, "bar": BAR},
        }
        return self._render(request, "dead", context)

    def _row(self, request: HttpRequest, group: dead.Group, now: Any) -> dict[str, Any]:
        of_function = {"function": group.function, **_database(request)}
        return {
            "address": self._address("dead_group", {**group.parameters, **_database(request)}),
            "of_function": self._address("dead", of_function),
            "function": name(group.function),
            "error": name(group.error_class or _("no error")),
            "message": group.message,
            "frame": visible(group.frame),
            "count": grouped(group.count),
            "first": moment(group.first, now),
            "last": moment(group.last, now),
            "bars": bars(group.hours),
            "day": _("%s in the last 24 hours") % grouped(sum(group.hours)),
        }

    def dead_group_view(self, request: HttpRequest) -> HttpResponse:
        """The dead tasks of one function with one error."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias, key = databases.chosen(request), _key(request.GET)
        tasks = dead.members(alias, key)
        with databases.time_limit(alias, dead.PATIENCE):
            found = dead.newest(tasks, key[3], _before(request.GET))
            number = dead.count(tasks)
            sample = dead.sample(alias, tasks)
        shown = found[: dead.TASKS]
        parameters = {**_parameters(request.GET), **_database(request)}
        context = {
            "title": visible(key[1]),
            "error": name(key[2] or _("no error")),
            "function": name(key[1]),
            "number": grouped(number) if number <= dead.MOST else _("more than %s") % grouped(dead.MOST),
            "tasks": [self._task(task) for task in shown],
            "sample": sample,
            "told": _told(sample),
            **self._actions(request, key, alias),
            "all_dead": self._address("dead", _database(request)),
            "older": self._address("dead_group", {**parameters, **_after(shown[-1])})
            if len(found) > len(shown)
            else "",
            "newest": self._address("dead_group", parameters) if "before" in request.GET else "",
        }
        return self._render(request, "dead_group", context)

    def _actions(self, request: HttpRequest, key: dead.Key, alias: str) -> dict[str, Any]:
        """What this user can do to the whole group."""
        asked = meant(key)
        if asked is None or not bulkchanges.are_on(self.admin_site.name):
            return {}
        in_list = {"q": str(asked), databases.PARAMETER: alias}
        return {
            "in_list": self._address("changelist", in_list),
            "here": request.get_full_path(),
            "may_retry": _may(request, RETRY),
            "may_discard": _may(request, DELETE),
            "retry": RETRY,
            "discard": self._address("dead_discard", {**_parameters(request.GET), **_database(request)}),
            "reason_length": REASON,
        }

    def dead_discard_view(self, request: HttpRequest) -> HttpResponse:
        """Delete a whole group, for a reason; a bulk change does it, and its entries in the log have the reason."""
        group = {**_parameters(request.GET), **_database(request)}
        if request.method != "POST":
            return self.not_pressed(request, self._address("dead_group", group))
        if not (self.has_view_permission(request) and _may(request, DELETE)):
            raise PermissionDenied
        asked, reason = meant(_key(request.GET)), _text(request.POST, "reason").strip()[:REASON]
        if asked is None or not bulkchanges.are_on(self.admin_site.name):
            raise BadRequest("No search means this group, or this site has no bulk changes.")
        if not reason:
            self.message_user(request, _("Say why: nothing was discarded."), messages.WARNING)
            return HttpResponseRedirect(self._address("dead_group", group))
        wish = Wish(DELETE, request.user.pk, reason=reason)
        change = bulkchanges.begin(request, databases.chosen(request), wish, asked)
        return HttpResponseRedirect(bulkchanges.page_on(self.admin_site.name, change))

    def _task(self, task: Any) -> dict[str, Any]:
        return {
            "id": task.pk,
            "queue": name(task.queue, NAME_LENGTH),
            "attempts": f"{task.failures + task.lost}/{task.max_attempts}",
            "enqueued": moment(task.enqueued_at, task.now),
            "died": moment(task.finished_at, task.now),
        }

    def _databases(self, request: HttpRequest, chosen: str) -> Iterator[tuple[str, str, bool]]:
        """Where queues live in several of them."""
        aliases = databases.aliases()
        for alias in aliases if len(aliases) > 1 else ():
            yield alias, self._address("dead", {databases.PARAMETER: alias}), alias == chosen

    def _address(self, view: str, parameters: Mapping[str, str]) -> str:
        address = reverse(f"admin:dhara_task_{view}", current_app=self.admin_site.name)
        return f"{address}?{urlencode(parameters)}" if parameters else address

    def _render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        above = [] if template == "dead" else [(_("Dead letters"), self._address("dead", _database(request)))]
        trail = self.trail(*above, **_database(request))
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, "trail": trail}
        return TemplateResponse(request, f"admin/dhara/task/{template}.html", {**shared, **context})


def _summary(found: dead.Letters) -> str:
    groups = ngettext("%(count)s group", "%(count)s groups", found.number) % {"count": grouped(found.number)}
    tasks = ngettext("%(count)s dead task", "%(count)s dead tasks", found.tasks) % {"count": grouped(found.tasks)}
    return _("%(tasks)s in %(groups)s") % {"tasks": tasks, "groups": groups}


def _orders(request: HttpRequest, chosen: str) -> Iterator[tuple[str, str, bool]]:
    labels = {"last": _("newest first"), "count": _("most first"), "first": _("latest to begin first")}
    for order, label in labels.items():
        parameters = {**{key: value for key, value in request.GET.items() if "\x00" not in value}, "o": order}
        yield label, f"?{urlencode(parameters)}", order == chosen


def _told(sample: dead.Sample | None) -> dict[str, str]:
    """The message of the newest error: its first line, and all of it if there is more."""
    if sample is None or sample.attempt is None:
        return {}
    text = str(sample.attempt.told)
    message = first_line(text)
    return {"message": message, "rest": visible_lines(text) if message != text.strip() else ""}


def _may(request: HttpRequest, verb: Verb) -> bool:
    return bool(request.user.has_perm(f"dhara.{verb.permission}"))


def meant(key: dead.Key) -> search.Search | None:
    """The search that finds the tasks of a group, or None: it is too long, or they have no place to search for."""
    backend, function, error, place = key
    if place is None:
        return None
    names = {"backend": backend, "function": function, "fingerprint": place}
    terms = [search.Term(field, (search.Value(name, exact=True),)) for field, name in names.items()]
    known = search.Value("none") if error is None else search.Value(error, exact=True)
    asked = search.Search((search.Term("state", (search.Value("dead"),)), *terms, search.Term("error", (known,))))
    try:
        return search.parse(str(asked))
    except search.SearchError:
        return None


# What stands in addresses


def _text(given: Mapping[str, str], parameter: str) -> str:
    value = given.get(parameter, "")
    if "\x00" in value:
        raise BadRequest("NUL.")
    return value


def _parameters(given: Mapping[str, str]) -> dict[str, str]:
    names = ("backend", "function", "error", "place")
    return {parameter: _text(given, parameter) for parameter in names if parameter in given}


def _key(given: Mapping[str, str]) -> dead.Key:
    known = _parameters(given)
    if "backend" not in known or "function" not in known:
        raise BadRequest("No group.")
    return known["backend"], known["function"], known.get("error"), known.get("place")


def _database(request: HttpRequest) -> dict[str, str]:
    """The chosen database, where it was chosen."""
    given = databases.PARAMETER in request.GET
    return {databases.PARAMETER: databases.chosen(request)} if given else {}


def _after(task: Any) -> dict[str, str]:
    return {"before": utc(task.finished_at).isoformat(), "id": str(task.pk)}


def _before(given: Mapping[str, str]) -> tuple[datetime, UUID] | None:
    if "before" not in given:
        return None
    try:
        return search.readable(given["before"]), UUID(given.get("id", ""))
    except ValueError as error:
        raise BadRequest("Not a place in the list.") from error
