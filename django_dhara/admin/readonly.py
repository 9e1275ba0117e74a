"""What all our admin pages share: they show, and never save."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

import django
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_dhara.admin import databases
from django_dhara.admin.lists import BoundedChangeList, CappedPaginator

#: Seconds that one query of a list may take.
PATIENCE = 3.0


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Nobody adds, edits or deletes a row by hand; every query goes to the database that holds the queue."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    #: One and several of its rows. Set here and not in the model, where another name would be a migration.
    names: ClassVar[tuple[Any, Any]]

    def __init__(self, model: Any, admin_site: Any) -> None:
        super().__init__(model, admin_site)
        self.opts.verbose_name, self.opts.verbose_name_plural = self.names

    class Media:
        css: ClassVar = {"all": ("dhara/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Only our own filters: a lookup of the reader's making could scan the table."""
        return lookup in {filter_.parameter_name for filter_ in self.list_filter}  # type: ignore[union-attr]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return BoundedChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(databases.chosen(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """The row with this id, in whichever database it is: ids are unique over all of them."""
        try:
            key = self.opts.pk.to_python(object_id)
        except ValidationError:
            return None
        for alias in databases.aliases():
            if found := self.get_queryset(request).using(alias).filter(pk=key).first():
                found.database = alias
                return self.shown(found)
        return None

    def trail(self, *more: tuple[str, str], **query: str) -> dict[str, Any]:
        """The way to a page that Django does not know, for `breadcrumbs.html`: by the list, and by what is below it.

        Args:
            more: labels and addresses.
            query: of the list's address.
        """
        whole = f"{self.list_address}?{urlencode(query)}" if query else self.list_address
        links = [(capfirst(str(self.opts.verbose_name_plural)), whole), *more]
        return {"is_list": django.VERSION >= (6, 1), "links": links}

    @property
    def list_address(self) -> str:
        return reverse(f"admin:dhara_{self.opts.model_name}_changelist", current_app=self.admin_site.name)

    def page_of(self, key: Any) -> str:
        """The address of the page of one row."""
        return reverse(f"admin:dhara_{self.opts.model_name}_change", args=[key], current_app=self.admin_site.name)

    def gone(self, request: HttpRequest, told: str) -> HttpResponse:
        """Back to the list: the row was there a moment ago, when its page or its link was shown."""
        self.message_user(request, told, messages.WARNING)
        return HttpResponseRedirect(self.list_address)

    def not_pressed(self, request: HttpRequest, page: str) -> HttpResponse:
        """The answer where the address of a button is not posted to.

        Args:
            page: where the button stands. Whoever had to log in when it was pressed comes from the login with a GET.
        """
        if request.method != "GET":
            return HttpResponseNotAllowed(["POST"])
        self.message_user(
            request, _("Nothing was changed. If you had to log in, press the button once more."), messages.WARNING
        )
        return HttpResponseRedirect(page)

    def shown(self, row: Model) -> Model:
        """The row as Django's own templates may show it."""
        return row

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            self._check_selection(request)
            return super().changelist_view(request, extra_context)
        try:
            with databases.time_limit(databases.chosen(request), PATIENCE):
                return super().changelist_view(request, extra_context)
        except databases.TooSlow:
            if not request.GET:
                raise
        message = _("That took more than %g seconds and was stopped. Choose a state, or search by id.") % PATIENCE
        self.message_user(request, message, messages.ERROR)
        return HttpResponseRedirect(request.path)

    def _check_selection(self, request: HttpRequest) -> None:
        """Django would answer what is no key with an error of its own."""
        try:
            for key in request.POST.getlist(ACTION_CHECKBOX_NAME):
                self.opts.pk.to_python(key)
        except ValidationError as error:
            raise BadRequest("Not an id.") from error
