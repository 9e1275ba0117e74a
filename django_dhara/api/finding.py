"""What a request asks of tasks, as a `search` that the core understands: the admin's own lists and bulk changes."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from django_dhara import search
from django_dhara.api.access import Caller
from django_dhara.api.problems import Problem
from django_dhara.api.schemas import Listing, Selection
from django_dhara.search import Search, Term, Value


class Page(NamedTuple):
    """A part of a list, and the cursor of the next one; None: it was the last."""

    ids: Sequence[UUID]
    next: str | None


def wanted(query: Listing | Selection, status: str | None, backend: str, caller: Caller) -> Search | None:
    """The search for what a query asks, as far as this caller has to do with it; None: nothing can match.

    Raises:
        Problem: it is too long to be kept.
    """
    queues: tuple[str, ...] = caller.queues
    if query.queue is not None:
        if not caller.has(query.queue):
            return None
        queues = (query.queue,)
    asked = Search(tuple(_terms(query, status, backend, queues)))
    try:
        return search.parse(str(asked))
    except search.SearchError as error:
        raise Problem("invalid", f"This is too much for one search: {error}") from None


def _terms(query: Listing | Selection, status: str | None, backend: str, queues: tuple[str, ...]) -> Iterator[Term]:
    yield _term("backend", backend)
    if queues:
        yield _term("queue", *queues)
    if query.type is not None:
        yield _term("function", query.type)
    if query.retrying is not None:
        yield Term("is", (Value("retrying"),), negated=not query.retrying)
    if status is not None:
        yield Term("state", (Value(status.lower()),))
    if query.created_after is not None:
        yield _term("after", query.created_after.isoformat())
    if query.created_before is not None:
        yield _term("before", query.created_before.isoformat())


def _term(field: str, *texts: str) -> Term:
    """One of exactly these texts."""
    return Term(field, tuple(Value(text, exact=True) for text in texts))


def page(alias: str, asked: Search | None, *, limit: int, cursor: str | None, offset: int) -> Page:
    """The next tasks of a list.

    Raises:
        Problem: the cursor is none of this list, or the offset reaches further than one call looks.
        TooSlow
    """
    if asked is None:
        return Page([], None)
    try:
        found = search.page(alias, asked, cursor=_read(cursor), size=offset + limit)
    except search.CursorError:
        raise Problem("invalid", "This is no cursor of this list.", field="cursor") from None
    if found.older and len(found.ids) < offset:
        raise Problem("invalid", "The offset reaches further than one call looks; follow `next`.", field="offset")
    return Page(found.ids[offset:], _told(found.older) if found.older else None)


def _told(cursor: str) -> str:
    """A cursor as it can stand in an address: the times in it have a plus sign."""
    return urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def _read(cursor: str | None) -> str:
    if cursor is None:
        return ""
    try:
        return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode() or "-"
    except ValueError as error:
        raise search.CursorError(cursor) from error
