"""The overview as a template tag, so that it stands on the page that every admin site has for an app."""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.inclusion_tag("admin/dhara/overview.html", takes_context=True)
def dhara_overview(context: Any) -> dict[str, Any]:
    """The overview for who may see tasks; nothing for others."""
    # Django imports every library of tags, in projects without the admin, too.
    from django_dhara.admin import overview

    return overview.context(context["request"])
