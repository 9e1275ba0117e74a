"""What all our lists share: one order, and a number of rows that is counted and paged through at a bounded cost."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy

from django_dhara.admin import databases

#: Rows of a list that can be reached by paging, or counted exactly.
MOST = 10_000


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to `MOST` and offers no page beyond."""

    @cached_property
    def found(self) -> int:
        """The rows of the list, or `MOST` + 1 if there are more."""
        return int(self.object_list[: MOST + 1].count())  # type: ignore[attr-defined]

    @cached_property
    def count(self) -> int:
        return min(self.found, MOST)


class Filter(SimpleListFilter):
    """A filter whose value is always one of a known kind, never a lookup of the reader's own making."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        if "\x00" in (self.value() or ""):
            raise IncorrectLookupParameters("NUL")


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


class BoundedChangeList(ChangeList):
    """A list in one fixed order, which an index gives."""

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        self.request = request
        super().__init__(request, *args)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return [*self.model_admin.get_ordering(request)]
