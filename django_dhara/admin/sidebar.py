"""The filters beside the list of tasks. Each is a link that edits the search, so both always say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db import connections
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin.text import name, visible
from django_dhara.search import Search, Term, Value
from django_dhara.states import State

#: Choices that a filter offers.
CHOICES = 30
#: Characters of a name that a filter shows.
LABEL = 60

#: The address of a search.
Address = Callable[[Search], str]


@dataclass(slots=True)
class Known:
    """What is in the table, found without reading all of it."""

    queue: list[str] = field(default_factory=list)
    function: list[str] = field(default_factory=list)
    error: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)


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
    (SELECT function, queue, NULL AS error_class FROM dhara_task ORDER BY id DESC LIMIT 3000)
    UNION ALL
    (SELECT function, queue, error_class FROM dhara_task WHERE state = 'DEAD' AND finished_at IS NOT NULL
     ORDER BY finished_at DESC LIMIT 2000)
)
SELECT 'queue', queue FROM (
    SELECT queue FROM recent UNION (SELECT queue FROM waiting LIMIT %(choices)s) ORDER BY 1 LIMIT %(choices)s) AS queues
UNION ALL
SELECT 'function', function FROM (
    SELECT DISTINCT function FROM recent ORDER BY 1 LIMIT %(choices)s) AS functions
UNION ALL
SELECT 'error', error_class FROM (
    SELECT DISTINCT error_class FROM recent WHERE error_class IS NOT NULL ORDER BY 1 LIMIT %(choices)s) AS errors
UNION ALL
SELECT 'worker', name FROM (
    SELECT DISTINCT name FROM dhara_worker WHERE stopped_at IS NULL AND heartbeat_at > now() - interval '1 hour'
    ORDER BY 1 LIMIT %(choices)s) AS workers
"""


def known(alias: str) -> Known:
    """The names that are worth offering."""
    found = Known()
    with connections[alias].cursor() as cursor:
        cursor.execute(_KNOWN, {"choices": CHOICES})
        for kind, text in cursor.fetchall():
            getattr(found, kind).append(text)
    return found


class Choice(NamedTuple):
    """One link of a filter."""

    label: str
    address: str
    selected: bool

    @property
    def shown(self) -> SafeString:
        return name(self.label)


class Group(NamedTuple):
    """One filter."""

    title: str
    choices: list[Choice]
    #: The field of a small form for any other value, and an example; empty: there is none.
    entry: str = ""
    example: str = ""
    #: The search without this field, which the form adds to.
    rest: str = ""

    @property
    def is_active(self) -> bool:
        return not self.choices[0].selected


def groups(asked: Search, names: Known, address: Address) -> Iterator[Group]:
    """All filters, for a search."""
    yield _group(asked, address, _("State"), "state", [(str(state.label), Value(state.lower())) for state in State])
    yield _group(asked, address, _("Queue"), "queue", _named(names.queue), entry="email")
    yield _group(asked, address, _("Function"), "function", _exact(names.function), entry="send_receipt")
    errors = [(_("any"), Value("any")), (_("none"), Value("none")), *_exact(names.error)]
    yield _group(asked, address, _("Error"), "error", errors, entry="Timeout")
    yield _group(asked, address, _("Enqueued"), "after", _times(), entry="2026-11-30")
    yield _group(asked, address, _("Priority"), "priority", _numbers((">0", "0", "<0")), entry=">=10")
    yield _group(asked, address, _("Attempts"), "attempts", _numbers(("0", "1", ">1", ">4")), entry="2..4")
    yield _group(asked, address, _("Worker"), "worker", _named(names.worker), entry="box7:4711")
    yield _group(asked, address, _("Idempotency key"), "key", [], entry="receipt-7")


_Offered = Iterable[tuple[str, Value]]


def _group(asked: Search, address: Address, title: str, name: str, offered: _Offered, entry: str = "") -> Group:
    """All, what is offered, and what was asked for although it is not offered."""
    chosen = [term for term in asked.terms if term.field == name]
    choices = [Choice(_("All"), address(asked.replaced(name)), not chosen)]
    for label, value in offered:
        term = Term(name, (value,))
        choices.append(Choice(label, address(asked.replaced(name, value)), chosen == [term]))
    if chosen and not any(choice.selected for choice in choices):
        label = " ".join(str(term).replace(f"{name}:", "", 1) for term in chosen)
        choices.append(Choice(_short(label), address(asked), selected=True))
    return Group(title, choices, name if entry else "", entry, str(asked.replaced(name)))


def _named(names: Iterable[str]) -> _Offered:
    return [(_short(name), Value.of(name)) for name in names]


def _short(name: str) -> str:
    return visible(name if len(name) <= LABEL else f"{name[:LABEL]}…")


def _exact(names: Iterable[str]) -> _Offered:
    """Names of which the end alone would mean others, too."""
    return [(_short(name), Value(name, exact=True)) for name in names]


def _numbers(texts: Iterable[str]) -> _Offered:
    return [(text, Value(text)) for text in texts]


def _times() -> _Offered:
    return [
        (_("last 10 minutes"), Value("10m")),
        (_("last hour"), Value("1h")),
        (_("last 24 hours"), Value("24h")),
        (_("last 7 days"), Value("7d")),
    ]


class Chip(NamedTuple):
    """A term of the search, and the address of the search without it."""

    label: str
    address: str


def chips(asked: Search, address: Address) -> list[Chip]:
    return [Chip(visible(term), address(asked.without(term))) for term in asked.terms]


#: Parameters that other pages link with, and what they mean in the language.
PARAMETERS: dict[str, Callable[[str], Any]] = {
    "state": lambda text: f"state:{Value(text.lower())}",
    "is": lambda text: str(Term("is", (Value.of(text),))),
    "queue": lambda text: str(Term("queue", (Value.of(text),))),
    "function": lambda text: str(Term("function", (Value(text, exact=True),))),
    "errors": lambda text: f"error:{'none' if text == 'no' else 'any'}",
    "worker": lambda text: str(Term("worker", (Value.of(text),))),
    "key": lambda text: str(Term("key", (Value.of(text),))),
}


def asked_by(parameters: Any) -> str:
    """The text of the search that a query string asks for: in words, by parameters, by the small form of a filter."""
    parts = [parameters.get("q", "").strip()]
    parts += [term(text) for name, term in PARAMETERS.items() if (text := parameters.get(name, ""))]
    if (name := parameters.get("field", "")) and (text := parameters.get("value", "").strip()):
        is_plain = " " not in text or text.startswith('"')
        parts.append(f"{name}:{text if is_plain else Value(text, exact=True)}")
    return " ".join(filter(None, parts))
