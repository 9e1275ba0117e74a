"""The program of W11: asks for each page of the admin COUNT times, in one process and without a network.

bench_sent gets the seconds of each request by the number of its page, and bench_started those of the longest query of
the page.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any
from urllib.parse import urlencode

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.ours.admin_settings"

import django

django.setup()

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client

from benchmarks.workloads.pages import PAGES
from django_dhara.admin.dead import letters
from django_dhara.models import Task

#: Requests of each page that do not count: templates are compiled, statements prepared.
_UNMEASURED = 2


def main(count: int) -> None:
    """Measure all pages."""
    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    chosen = _chosen(client)
    for number, address in enumerate(PAGES.values()):
        for place in range(_UNMEASURED + count):
            with _longest_query() as longest:
                began = time.perf_counter()
                answer = client.get(address.format(**chosen))
                seconds = time.perf_counter() - began
            # A list that takes too long is stopped, and leads back to itself: its time tells.
            if answer.status_code not in (200, 302):
                raise SystemExit(f"{address}: {answer.status_code}")
            if place >= _UNMEASURED:
                _keep("bench_sent", number, seconds)
                _keep("bench_started", number, max(longest))


def _chosen(client: Client) -> dict[str, object]:
    """What the pages of one thing are of."""
    return {
        "dead_task": Task.objects.filter(state="DEAD").values_list("pk", flat=True)[0],
        "group": urlencode(letters("default").groups[0].parameters),
        **{kind: _linked(client, kind) for kind in ("queue", "worker")},
    }


def _linked(client: Client, kind: str) -> str:
    """The end of the first address that a list leads to."""
    page = client.get(f"/admin/dhara/{kind}/").content.decode()
    found = re.search(rf'href="/admin/dhara/{kind}/([^"]+/change/[^"]*)"', page)
    if found is None:
        raise SystemExit(f"the list of {kind}s leads to none")
    return unescape(found[1])


@contextmanager
def _longest_query() -> Iterator[list[float]]:
    taken = [0.0]

    def timed(execute: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(*arguments)
        finally:
            taken.append(time.perf_counter() - began)

    with connection.execute_wrapper(timed):
        yield taken


def _keep(table: str, number: int, seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (%s, %s)", [number, seconds])


if __name__ == "__main__":
    main(int(sys.argv[1]))
