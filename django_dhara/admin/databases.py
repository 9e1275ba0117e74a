"""Which database a page is about. Everything the admin reads or writes names it: no router is asked."""

from __future__ import annotations

from django.http import HttpRequest

from django_dhara.databases import aliases
from django_dhara.sql import TooSlow, time_limit

__all__ = ["PARAMETER", "TooSlow", "aliases", "chosen", "named", "time_limit"]

#: The parameter that chooses between several databases.
PARAMETER = "database"


def chosen(request: HttpRequest) -> str:
    """The database that this request is about."""
    known = aliases()
    asked = request.GET.get(PARAMETER, "")
    return asked if asked in known else known[0]


def named(alias: str) -> dict[str, str]:
    """What an address says of the database that it is about: nothing where there is only one."""
    return {PARAMETER: alias} if len(aliases()) > 1 else {}
