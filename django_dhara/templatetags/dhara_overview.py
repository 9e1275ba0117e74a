"""The overview as a template tag, so that it stands on the page that every admin site has for an app."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import template

register = template.Library()


#: As one asks: what is stuck, then where, then who works on it.
_ORDER = ("Task", "Queue", "Worker", "BulkChange", "Token")


@register.filter
def in_order(models: Any) -> list[Any]:
    """The lists of the app, in one order in all languages."""
    known = {name: place for place, name in enumerate(_ORDER)}
    return sorted(models, key=lambda model: known.get(model["object_name"], len(known)))


@register.simple_tag(takes_context=True)
def in_its_database(context: Any) -> str:
    """The end of an address that stays in the database that the page is about; nothing where there is only one."""
    from django_dhara.admin import databases

    named = databases.named(databases.chosen(context["request"]))
    return f"?{urlencode(named)}" if named else ""


@register.inclusion_tag("admin/dhara/overview.html", takes_context=True)
def dhara_overview(context: Any) -> dict[str, Any]:
    """The overview for who may see tasks; nothing for others."""
    # Django imports every library of tags, in projects without the admin, too.
    from django_dhara.admin import overview

    return overview.context(context["request"])
