"""Lists over a table of any size: what they count, search and offer as a filter costs a bounded number of rows.

Newest first by id is an index scan, and at most `MOST` rows of a list can be paged through. A filter without an index
of its own (function, queue, errors) looks through a window: the newest rows, or the last ones in a final state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.contrib.postgres.expressions import ArraySubquery
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import BooleanField, F, Func, Q, QuerySet, UUIDField
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dhara.admin import databases
from django_dhara.admin.text import visible
from django_dhara.models import Task
from django_dhara.states import FINAL, State

#: Rows of a list that can be reached by paging, selected at once, or counted exactly.
MOST = 10_000
#: Newest rows that a filter without an index looks through, and rows of one state that are looked through and sorted.
NEWEST, LAST = 100_000, 10_000
#: Choices that a filter offers.
CHOICES = 50


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to `MOST` and offers no page beyond."""

    @cached_property
    def found(self) -> int:
        """The rows of the list, or `MOST` + 1 if there are more."""
        return int(self.object_list[: MOST + 1].count())  # type: ignore[attr-defined]

    @cached_property
    def count(self) -> int:
        return min(self.found, MOST)


@dataclass(slots=True)
class Known:
    """What is in the table, found without reading all of it."""

    queues: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    #: By the planner's statistics; -1: it has none yet.
    rows: int = -1


# A skip scan: one probe of the index for each queue that has pending tasks. Other names come from the newest tasks and
# the last dead ones. The ORM knows no WITH RECURSIVE.
_KNOWN = """/* dhara:admin_known */
WITH RECURSIVE waiting AS (
    (SELECT backend, queue FROM dhara_task WHERE state = 'PENDING' AND lost = 0 ORDER BY backend, queue LIMIT 1)
    UNION ALL
    SELECT following.* FROM waiting CROSS JOIN LATERAL (
        SELECT backend, queue FROM dhara_task
        WHERE state = 'PENDING' AND lost = 0 AND (backend, queue) > (waiting.backend, waiting.queue)
        ORDER BY backend, queue LIMIT 1) AS following
),
recent AS MATERIALIZED (
    (SELECT function, queue FROM dhara_task ORDER BY id DESC LIMIT 5000)
    UNION ALL
    (SELECT function, queue FROM dhara_task WHERE state = 'DEAD' AND finished_at IS NOT NULL
     ORDER BY finished_at DESC LIMIT 2000)
)
SELECT 'queue', queue, NULL::bigint FROM (
    SELECT queue FROM recent UNION (SELECT queue FROM waiting LIMIT %(choices)s) ORDER BY 1 LIMIT %(choices)s) AS queues
UNION ALL
SELECT 'function', function, NULL FROM (
    SELECT DISTINCT function FROM recent ORDER BY 1 LIMIT %(choices)s) AS functions
UNION ALL
SELECT 'rows', NULL, reltuples::bigint FROM pg_class WHERE oid = to_regclass('dhara_task')
"""


def known(request: HttpRequest) -> Known:
    """What is in the table of the chosen database; read once a request."""
    if not hasattr(request, "dhara_known"):
        request.dhara_known = _read(databases.chosen(request))  # type: ignore[attr-defined]
    return request.dhara_known  # type: ignore[no-any-return, attr-defined]


def _read(alias: str) -> Known:
    found = Known()
    with connections[alias].cursor() as cursor:
        cursor.execute(_KNOWN, {"choices": CHOICES})
        for kind, text, number in cursor.fetchall():
            match kind:
                case "queue":
                    found.queues.append(text)
                case "function":
                    found.functions.append(text)
                case "rows":
                    found.rows = number
    return found


class Filter(SimpleListFilter):
    """A filter whose value is always one of a known kind, never a lookup of the reader's own making."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        if "\x00" in (self.value() or ""):
            raise IncorrectLookupParameters("NUL")

    def _with_own(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """The names, and the chosen one even if it is not among them."""
        own = self.value()
        return [(name, visible(name)) for name in dict.fromkeys([*names, *([own] if own else [])])]


class StateFilter(Filter):
    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return State.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Checks the state only: `TaskChangeList` gathers its tasks; a condition beside that misleads the planner."""
        if self.value() not in (None, *State.values):
            raise IncorrectLookupParameters("state")
        return queryset


class QueueFilter(Filter):
    title = gettext_lazy("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self._with_own(known(request).queues)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(queue=self.value())


class FunctionFilter(Filter):
    title = gettext_lazy("function")
    parameter_name = "function"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self._with_own(known(request).functions)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(function=self.value())


class ErrorsFilter(Filter):
    title = gettext_lazy("errors")
    parameter_name = "errors"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("yes", _("Has errors")), ("no", _("Has none"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(error_class__isnull=self.value() == "no")


class WorkerFilter(Filter):
    """Shown only while it is in use: one comes here from a worker."""

    title = gettext_lazy("worker")
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self._with_own(())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        try:
            return queryset.filter(worker_id=UUID(self.value()))
        except ValueError as error:
            raise IncorrectLookupParameters("worker") from error


class DatabaseFilter(Filter):
    """Shown only where queues live in several databases; one of them is always chosen."""

    title = gettext_lazy("database")
    parameter_name = databases.PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        aliases = databases.aliases()
        return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []

    def choices(self, changelist: ChangeList) -> Any:
        for alias, display in self.lookup_choices:
            yield {
                "selected": alias == databases.chosen(self.request),
                "query_string": changelist.get_query_string({self.parameter_name: alias}),
                "display": display,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """The list is of the chosen database already."""


#: A complete id, or its beginning. A path of a function has a dot, and seldom only digits and letters up to f.
_ID = re.compile(r"(?=.*\d)[0-9a-f][0-9a-f-]{3,35}", re.IGNORECASE)


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """The ids that begin with `term`, if it looks like the beginning of one."""
    digits = term.replace("-", "")
    if not _ID.fullmatch(term) or not 4 <= len(digits) <= 32:
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


class BoundedChangeList(ChangeList):
    """A list in one fixed order, which an index gives."""

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        self.request = request
        super().__init__(request, *args)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return [*self.model_admin.get_ordering(request)]


class TaskChangeList(BoundedChangeList):
    """The list of tasks: filters that have no index look through a window."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        queryset = super().get_queryset(request, exclude_parameters)
        alias, state = databases.chosen(request), request.GET.get("state")
        if state in FINAL:
            return queryset.filter(_among(_last(alias, State(state))))
        if state == State.RUNNING:
            return queryset.filter(_among(_running(alias)))
        if state == State.PENDING:
            return queryset.filter(_among(_pending(alias, request.GET.get("queue"))))
        return queryset.filter(id__gte=_newest()) if self._is_narrowed else queryset

    @property
    def _is_narrowed(self) -> bool:
        """Is there a filter or a search that no index serves?"""
        by_name = any(parameter in self.request.GET for parameter in ("queue", "function", "errors", "worker"))
        term = self.query.strip()
        return by_name or bool(term and not id_range(term))

    @property
    def total(self) -> str:
        """How many tasks there are, as exactly as is known."""
        found, rows = self.paginator.found, known(self.request).rows
        if found <= MOST:
            return f"{found:,}"
        if rows > MOST and not self.query and not self.has_active_filters:
            return _("about %s") % f"{rows:,}"
        return _("more than %s") % f"{MOST:,}"

    @property
    def window(self) -> str:
        """What part of the table was looked through, if not all of it."""
        state, rows = self.request.GET.get("state"), known(self.request).rows
        if state in FINAL and rows > LAST:
            return _("At most the %s tasks of this state that ended last are looked through.") % f"{LAST:,}"
        if state == State.PENDING and rows > LAST:
            return _("Of a backlog of more than %s tasks only a part is looked through.") % f"{LAST:,}"
        if state not in State.values and self._is_narrowed and rows > NEWEST:
            return _("Only the newest %s tasks are looked through. Choose a state to see older ones.") % f"{NEWEST:,}"
        return ""


def _among(ids: QuerySet[Any]) -> Func:
    """`id = ANY (ARRAY (ids))`. The array is made first, and its ids are looked up one by one.

    `id IN (ids)` would be a join, for which the planner likes to read the whole table.
    """
    array = ArraySubquery(ids)
    return Func(F("id"), array, arg_joiner=" = ANY (", template="%(expressions)s)", output_field=BooleanField())


def _last(alias: str, state: State) -> QuerySet[Any]:
    """The tasks that ended last in `state`. The condition on `finished_at` is what lets the partial index serve it."""
    ended = Task.objects.using(alias).filter(state=state, finished_at__isnull=False)
    return ended.order_by("-finished_at").values("id")[: LAST + 1]


def _running(alias: str) -> QuerySet[Any]:
    return Task.objects.using(alias).running().order_by("worker_id").values("id")[: LAST + 1]


def _pending(alias: str, queue: str | None) -> QuerySet[Any]:
    """All pending tasks, of one queue if it is given; of a long backlog the first in their indexes, and the newest."""
    pending = Task.objects.using(alias).pending()
    pending = pending.filter(queue=queue) if queue else pending
    ready = pending.filter(lost=0).order_by("backend", "queue", "priority", "run_at", "id")
    suspects = pending.filter(lost__gt=0).order_by("backend", "-priority", "run_at", "id")
    newest = pending.filter(id__gte=_newest()).order_by("-id")
    first, *others = (part.values("id")[: LAST + 1] for part in (ready, suspects, newest))
    return first.union(*others, all=True)


def _newest() -> RawSQL:
    """The id with which the newest `NEWEST` tasks begin. A scalar subquery, and so a bound of the index scan."""
    statement = "coalesce((SELECT id FROM dhara_task ORDER BY id DESC OFFSET %s LIMIT 1), %s::uuid)"
    # Constants only: the number of rows and the smallest id.
    return RawSQL(statement, [NEWEST - 1, UUID(int=0)], output_field=UUIDField())  # noqa: S611


def search(queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Tasks whose id begins with `term`, or else whose function's path contains it."""
    term = term.strip()
    if not term:
        return queryset
    if bounds := id_range(term):
        return queryset.filter(Q(id__gte=bounds[0]) & Q(id__lte=bounds[1]))
    return queryset.filter(function__contains=term)
