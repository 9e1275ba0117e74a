"""Tokens of the HTTP API: the list, a new one, which is shown once, and an action that revokes, once it was asked."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.debug import sensitive_variables

from django_dhara import tokens
from django_dhara.admin.readonly import ReadOnlyAdmin
from django_dhara.admin.text import moment, name, tag, visible
from django_dhara.models import Token

#: What somebody must be allowed to do to give it to a token.
_OF_SCOPE = {
    "read": ("view_task", "view_queue", "view_worker"),
    "enqueue": ("add_task",),
    "operate": ("view_task", "cancel_task", "revive_task", "pause_queue"),
}


class TokenForm(forms.Form):
    """A new token, with scopes of which its maker has the permissions."""

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=tokens.MAX_NAME_LENGTH,
        help_text=gettext_lazy("Whose it is, or what for."),
    )
    scopes = forms.MultipleChoiceField(label=gettext_lazy("Scopes"), widget=forms.CheckboxSelectMultiple)
    queues = forms.CharField(
        label=gettext_lazy("Queues"),
        required=False,
        help_text=gettext_lazy("Good for these queues only, with commas between them; empty: for all."),
    )
    expires_at = forms.SplitDateTimeField(label=gettext_lazy("Expires at"), required=False, widget=AdminSplitDateTime)

    def __init__(self, scopes: list[str], *args: Any) -> None:
        super().__init__(*args)
        choices: Any = self.fields["scopes"]
        choices.choices = [(scope, scope) for scope in scopes]

    @sensitive_variables()
    def save(self, created_by: str) -> tuple[Token, str] | None:
        """Make it; None, and an error at the form, if there can be no such token."""
        data = self.cleaned_data
        queues = [queue.strip() for queue in data["queues"].split(",") if queue.strip()]
        try:
            return tokens.create(
                data["name"], data["scopes"], queues=queues, expires_at=data["expires_at"], created_by=created_by
            )
        except ValueError as error:
            self.add_error(None, ValidationError(str(error)))
            return None


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    names = (gettext_lazy("token"), gettext_lazy("tokens"))
    list_display = ("name_", "standing_", "scopes_", "queues_", "created_", "expires_", "used_")
    list_display_links = None
    ordering = ("-pk",)
    actions = ("revoke",)
    add_form_template = "admin/dhara/token/add.html"

    class Media:
        css: ClassVar = {"all": ("dhara/admin.css", "dhara/tokens.css")}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = admin.ModelAdmin.get_queryset(self, request).using(tokens.alias()).annotate(now=Now())
        return rows

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dhara.add_token")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dhara.change_token")

    @admin.display(description=gettext_lazy("name"))
    def name_(self, token: Any) -> SafeString:
        return name(token.name)

    @admin.display(description=gettext_lazy("status"))
    def standing_(self, token: Any) -> SafeString:
        if token.revoked_at:
            return tag("canceled", "■", _("Revoked"))
        if token.expires_at and token.expires_at <= token.now:
            return tag("canceled", "■", _("Expired"))
        return tag("completed", "✓", _("Valid"))

    @admin.display(description=gettext_lazy("scopes"))
    def scopes_(self, token: Any) -> str:
        return ", ".join(map(visible, token.scopes))

    @admin.display(description=gettext_lazy("queues"))
    def queues_(self, token: Any) -> SafeString | str:
        return format_html_join(", ", "{}", ((name(queue),) for queue in token.queues)) or _("all")

    @admin.display(description=gettext_lazy("created"))
    def created_(self, token: Any) -> SafeString:
        return _captioned(_("created"), moment(token.created_at, token.now))

    @admin.display(description=gettext_lazy("expires"))
    def expires_(self, token: Any) -> SafeString:
        when = moment(token.expires_at, token.now) if token.expires_at else _("never")
        return _captioned(_("expires"), when)

    @admin.display(description=gettext_lazy("used"))
    def used_(self, token: Any) -> SafeString:
        return _captioned(_("used"), moment(token.used_at, token.now) if token.used_at else _("never"))

    @admin.action(description=gettext_lazy("Revoke"), permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """From its next request on a token is good for nothing. It cannot be undone, so this asks first."""
        if "confirmed" not in request.POST:
            return self._question(request, list(queryset))
        revoked = [token for token in queryset if tokens.revoke(token.pk)]
        user: Any = request.user
        LogEntry.objects.log_actions(user.pk, revoked, CHANGE, "Revoked.")
        count = len(revoked)
        told = ngettext("%s token revoked.", "%s tokens revoked.", count) % count
        self.message_user(request, told, messages.SUCCESS if count else messages.WARNING)
        return None

    def _question(self, request: HttpRequest, rows: list[Any]) -> HttpResponse:
        title = ngettext("Revoke %s token?", "Revoke %s tokens?", len(rows)) % len(rows)
        shown = [(self.standing_(row), self.name_(row), self.used_(row)) for row in rows]
        return self._answer(request, "confirm", title, tokens=shown, ids=[row.pk for row in rows])

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """The form; and, as the answer to it, the token: this page is the only place where it is ever seen."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        scopes = _scopes_of(request)
        form = TokenForm(scopes, request.POST) if request.method == "POST" else TokenForm(scopes)
        made = form.save(request.user.get_username()) if form.is_bound and form.is_valid() else None
        if made is None:
            return self._answer(request, "add", _("Add a token"), form=form, scopes=scopes)
        self.log_addition(request, made[0], "Made.")
        return self._answer(request, "made", _("A new token"), token=made[0], secret=made[1])

    def _answer(self, request: HttpRequest, template: str, title: str, **more: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media + (more["form"].media if "form" in more else forms.Media()),
            "trail": self.trail(),
            "back": self.list_address,
            "jsi18n": reverse("admin:jsi18n", current_app=self.admin_site.name),
            **more,
        }
        response = TemplateResponse(request, f"admin/dhara/token/{template}.html", context)
        response["Cache-Control"] = "no-store"
        return response


def _captioned(caption: str, value: SafeString | str) -> SafeString:
    """A value with the head of its column, for where the window has no room for columns."""
    return format_html('<span class="dhara-caption">{}</span> {}', caption, value)


def _scopes_of(request: HttpRequest) -> list[str]:
    """The scopes of which this user has all permissions."""
    may = request.user.has_perm
    return [scope for scope, needed in _OF_SCOPE.items() if all(may(f"dhara.{each}") for each in needed)]
