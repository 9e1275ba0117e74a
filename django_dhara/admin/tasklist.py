"""The list of tasks: a search, its filters, a page of what it finds, and how far it looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.db.models.functions import Left, Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dhara import redaction, search
from django_dhara.admin import bulkchanges, databases, hints, scene, sidebar
from django_dhara.admin.actions import TaskActionsAdmin
from django_dhara.admin.lists import BoundedChangeList
from django_dhara.admin.text import age, badge, counted, exact, first_line, grouped, moment, name, visible
from django_dhara.models import Attempt
from django_dhara.states import FINAL, State

#: Tasks on a page, and characters of an error and of a queue that are shown there.
SIZE, ERROR, QUEUE = 100, 160, 32

#: What may stand in the address of the list.
_PARAMETERS = {"q", "cursor", "field", "value", "p", "o", "e", "all", "_popup", "_to_field", "_changelist_filters"}


class Marked(NamedTuple):
    """A problem of the search, with the text around it."""

    before: str
    word: str
    after: str
    message: str


class Row(NamedTuple):
    """One task as the list shows it."""

    id: UUID
    label: str
    state: SafeString
    function: SafeString
    error: str
    error_title: str
    queue: SafeString
    priority: int
    attempts: str
    when: SafeString | str
    age: SafeString


class TaskChangeList(BoundedChangeList):
    """Django's list with pages that begin at a cursor. What is searched for is understood here, and nowhere else."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Reads the address. The rows themselves are found by `get_results`."""
        for parameter in request.GET:
            if parameter not in {*_PARAMETERS, *sidebar.PARAMETERS, databases.PARAMETER}:
                raise DisallowedModelAdminLookup(f"Filtering by {parameter} not allowed")
        self.alias = databases.chosen(request)
        self.text = sidebar.asked_by(request.GET)
        self.asked, self.problem = search.Search(), None
        try:
            self.asked = search.parse(self.text)
        except search.SearchError as error:
            self.problem = error
        rows: QuerySet[Any] = self.root_queryset
        return rows

    def get_results(self, request: HttpRequest) -> None:
        self.page = search.Page([], "", "", search.Looked(complete=True, rows=0, until=None))
        if not self.problem:
            try:
                self.page = search.page(self.alias, self.asked, cursor=request.GET.get("cursor", ""), size=SIZE)
            except search.CursorError as error:
                raise IncorrectLookupParameters("cursor") from error
        found = {task.pk: task for task in self.queryset.filter(pk__in=self.page.ids).order_by()}
        self.result_list = [found[id_] for id_ in self.page.ids if id_ in found]
        self.result_count = len(self.result_list)
        self.full_result_count, self.show_full_result_count, self.show_admin_actions = None, False, False
        self.can_show_all = self.multi_page = False
        self.paginator = None

    # Addresses

    def address(self, asked: search.Search, **more: str) -> str:
        """The list of a search, in the same database."""
        return self.address_of(str(asked), **more)

    def address_of(self, text: str, **more: str) -> str:
        parameters = {"q": text, **more}
        if databases.PARAMETER in self.request.GET:
            parameters[databases.PARAMETER] = self.alias
        return (
            f"?{urlencode({key: value for key, value in parameters.items() if value})}"  # a bare "?" is the whole list
        )

    @property
    def older(self) -> str:
        return self.address(self.asked, cursor=self.page.older) if self.page.older else ""

    @property
    def newer(self) -> str:
        return self.address(self.asked, cursor=self.page.newer) if self.page.newer else ""

    @property
    def newest(self) -> str:
        return self.address(self.asked) if "cursor" in self.request.GET else ""

    @property
    def all(self) -> str:
        return self.address(search.Search())

    # What the template shows

    @property
    def corrected(self) -> tuple[str, str] | None:
        """What may have been meant, and its address."""
        text = self.problem.corrected if self.problem else ""
        return (visible(text), self.address_of(text)) if text else None

    @property
    def hint(self) -> tuple[str, str] | None:
        """What may have been meant by a search that has found nothing, and its address."""
        near = hints.nearest(self.asked, self.known)
        return (visible(near), self.address(near)) if near else None

    @property
    def marked(self) -> Iterator[Marked]:
        for problem in self.problem.problems if self.problem else ():
            end = problem.position + len(problem.word)
            before, after = self.text[: problem.position], self.text[end:]
            yield Marked(visible(before), visible(problem.word), visible(after), visible(problem.message))

    @property
    def chips(self) -> list[sidebar.Chip]:
        return sidebar.chips(self.asked, self.address)

    @property
    def groups(self) -> list[sidebar.Group]:
        return [*sidebar.groups(self.asked, self.known, self.address)]

    @cached_property
    def known(self) -> sidebar.Known:
        return sidebar.known(self.alias)

    @property
    def has_bulk_changes(self) -> bool:
        """Can all that match be changed? The page that makes such a change go on need not be on every admin site."""
        return bulkchanges.are_on(self.model_admin.admin_site.name)

    @property
    def fields(self) -> Iterator[tuple[str, str, Any]]:
        """An example of each field that may be asked for, its address, and what it means."""
        for key, field in search.FIELDS.items():
            if key.startswith("payload.") and redaction.is_redacting():
                continue
            yield field.example, self.address_of(field.example) if "…" not in field.example else "", field.help

    @property
    def databases(self) -> list[tuple[str, str, bool]]:
        """Where queues live in several databases: each, its list, and whether it is this one."""
        known = databases.aliases()
        query = [(each, urlencode({"q": self.text, databases.PARAMETER: each})) for each in known]
        return [(each, f"?{text}", each == self.alias) for each, text in query] if len(known) > 1 else []

    @property
    def found(self) -> search.Found:
        """How many tasks match; counted once."""
        if not hasattr(self, "_found"):
            self._found = self._count()
        return self._found

    def _count(self) -> search.Found:
        if self.page.looked.complete and not self.page.newer:
            return search.Found(self.result_count, more=False, estimate=None, looked=self.page.looked)
        return search.count(self.alias, self.asked)

    @property
    def total(self) -> str:
        """The number of tasks that match, as exactly as is known."""
        return bulkchanges.told(self.found)

    @property
    def window(self) -> str:
        """What part of the table was looked through, if it was not all that could match."""
        looked = self.page.looked
        if self.problem or looked.complete or len(self.result_list) >= SIZE:
            return ""
        if looked.until is None:
            return _("Up to %s tasks were looked through.") % grouped(looked.rows)
        if self._by_end:
            text = _("The %(rows)s tasks that ended last were looked through, back to %(until)s.")
        else:
            text = _("The newest %(rows)s tasks were looked through, back to %(until)s.")
        if "cursor" in self.request.GET:
            text = _("The next %(rows)s tasks were looked through, back to %(until)s.")
        return text % {"rows": grouped(looked.rows), "until": exact(looked.until)}

    @property
    def _by_end(self) -> bool:
        return any(set(term.texts) <= {state.lower() for state in FINAL} for term in self.asked.of("state"))

    @property
    def rows(self) -> Iterator[Row]:
        messages = _messages(self.alias, self.result_list)
        for task in self.result_list:
            yield _row(task, messages.get(task.pk, ""), self.model_admin.admin_site.name)


def _messages(alias: str, tasks: Sequence[Any]) -> dict[UUID, str]:
    """The first line of what the last failed run of each said."""
    failed = [task.pk for task in tasks if task.error_class]
    runs = Attempt.objects.using(alias).filter(task_id__in=failed).order_by("task_id", "-id").distinct("task_id")
    return {task: first_line(text, ERROR) for task, text in runs.values_list("task_id", Left("message", 500))}


def _row(task: Any, message: str, site: str) -> Row:
    address = reverse("admin:dhara_task_change", args=[task.pk], current_app=site)
    link = format_html('<a href="{}" title="{}">{}</a>', address, task.pk, name(task.function))
    error = visible(task.error_class or "")
    short = error.rpartition(".")[2]
    return Row(
        id=task.pk,
        label=_("Select %s") % visible(task.function),
        state=_state(task),
        function=link,
        error=f"{short}: {message}" if message else short,
        error_title=f"{error}: {message}" if message else error,
        queue=name(task.queue, QUEUE),
        priority=task.priority,
        attempts=f"{counted(task)}/{task.max_attempts}",
        when=_when(task),
        age=age(task.enqueued_at, task.now),
    )


def _state(task: Any) -> SafeString:
    if task.state == State.RUNNING and task.cancel_requested_at:
        return format_html('{} <span class="dhara-quiet">{}</span>', badge(task.state), _("asked to stop"))
    return badge(task.state)


def _when(task: Any) -> SafeString | str:
    """What one asks next: when it runs, since when it has, or when it ended."""
    if task.state == State.PENDING:
        word = _("due") if task.run_at <= task.now else _("runs")
        return format_html('<span class="dhara-quiet">{}</span> {}', word, moment(task.run_at, task.now))
    if task.state == State.RUNNING:
        since = task.attempted_at or task.now
        return format_html('<span class="dhara-quiet">{}</span> {}', _("for"), age(since, task.now))
    return format_html('<span class="dhara-quiet">{}</span> {}', _("ended"), moment(task.finished_at, task.now))


class TaskListAdmin(TaskActionsAdmin):
    """The list of tasks in Django's admin."""

    names = (gettext_lazy("task"), gettext_lazy("tasks"))
    # Their names are columns for Django's checks only: the template asks for `cl.rows`.
    list_display = ("function",)
    list_display_links = None
    list_filter = ()
    ordering = ("-id",)
    actions = None
    change_list_template = "admin/dhara/task/list.html"

    class Media:
        css: ClassVar = {"all": ("dhara/tasks.css",)}
        js = ("dhara/tasks.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        tasks: QuerySet[Any] = super().get_queryset(request).defer(*scene.HEAVY).annotate(now=Now())
        return tasks

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return TaskChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        if request.method == "POST":
            return self.posted(request)
        return super().changelist_view(request, {"verbs": self.allowed(request), **(extra_context or {})})


__all__ = ["SIZE", "TaskChangeList", "TaskListAdmin"]
