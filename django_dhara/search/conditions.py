"""What the terms of a search ask of a row. Values are parameters everywhere; nothing of a text becomes SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial, reduce
from operator import and_, or_
from typing import Any
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db.models import Case, F, Func, Q, TextField, Value, When
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import Exact, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from django_dhara.models import Worker
from django_dhara.search import language
from django_dhara.search.language import PAYLOAD, TEXT, Search, Term, is_id
from django_dhara.search.moments import moment
from django_dhara.states import State

#: Workers that one name can stand for.
MOST_WORKERS = 1000

#: Failed and lost runs, and the present or successful one, as the list counts them.
ATTEMPTS = F("failures") + F("lost") + Case(When(state__in=("RUNNING", "COMPLETED"), then=1), default=0)

_KINDS = {
    "ready": Q(state=State.PENDING, run_at__lte=Now()),
    "scheduled": Q(state=State.PENDING, run_at__gt=Now()),
    "retrying": Q(state=State.PENDING, failures__gt=0),
    "suspect": Q(state=State.PENDING, lost__gt=0),
    "late": Q(state=State.RUNNING, lease_until__lt=Now()),
    "stopping": Q(state=State.RUNNING, cancel_requested_at__isnull=False),
}

_TIMES = {
    "after": "enqueued_at__gte",
    "before": "enqueued_at__lt",
    "finished_after": "finished_at__gte",
    "finished_before": "finished_at__lt",
}

_COMPARISONS = {">": GreaterThan, ">=": GreaterThanOrEqual, "<": LessThan, "<=": LessThanOrEqual, "": Exact}


def conditions(search: Search, alias: str, now: datetime) -> Q:
    """What a task must be to match.

    Args:
        alias: the database that knows the workers.
        now: from which times are counted.
    """
    return reduce(and_, (_condition(term, alias, now) for term in search.terms), Q())


def _condition(term: Term, alias: str, now: datetime) -> Q:
    found = reduce(or_, (_asked(term.field, value, alias, now) for value in term.values))
    return ~found if term.negated else found


def _asked(field: str, value: language.Value, alias: str, now: datetime) -> Q:
    if field in _TIMES:
        return Q((_TIMES[field], moment(value.text, now)))
    if field == "worker":
        known = Q(worker_id__in=workers(value, alias))
        return known | _id_begins("worker_id", value.text) if is_id(value.text) else known
    if field.startswith(PAYLOAD):
        return Q(Exact(_in_payload(field.removeprefix(PAYLOAD).split(".")), Value(value.text)))
    return _CONDITIONS.get(field, partial(_exactly, field))(value)


def _text(value: language.Value) -> Q:
    if is_word_an_id(value):
        return _id_begins("id", value.text)
    return Q(function__icontains=value.text)


def _function(value: language.Value) -> Q:
    return _named("function", value, plain=Q(function=value.text) | Q(function__endswith=f".{value.text}"))


def _error(value: language.Value) -> Q:
    whether = {"any": Q(error_class__isnull=False), "none": Q(error_class__isnull=True)}
    return _named("error_class", value, plain=whether.get(value.text, Q(error_class__icontains=value.text)))


def _fingerprint(value: language.Value) -> Q:
    return _named("error_fingerprint", value, plain=Q(error_fingerprint__startswith=value.text))


def _exactly(column: str, value: language.Value) -> Q:
    return _named(column, value, plain=Q((column, value.text)))


#: By field; a field that is not here is the column of its name.
_CONDITIONS: Mapping[str, Callable[[language.Value], Q]] = {
    TEXT: _text,
    "state": lambda value: Q(state=value.text.upper()),
    "is": lambda value: _KINDS[value.text],
    "function": _function,
    "error": _error,
    "fingerprint": _fingerprint,
    "key": partial(_exactly, "idempotency_key"),
    "priority": lambda value: _within(F("priority"), value.text),
    "attempts": lambda value: _within(ATTEMPTS, value.text),
    "id": lambda value: _id_begins("id", value.text),
    "parent": lambda value: Q(parent_id=UUID(value.text)),
}


def is_word_an_id(value: language.Value) -> bool:
    """Is a bare word the beginning of an id? It has a digit, and so is seldom a part of a path."""
    return not value.exact and is_id(value.text) and any(map(str.isdigit, value.text))


def _named(column: str, value: language.Value, plain: Q) -> Q:
    """A name: exactly this one, or a pattern, or what it means otherwise."""
    if value.exact:
        return Q((column, value.text))
    if "*" in value.text:
        # Of several stars in a row the server would make a machine of a thousand states.
        pattern = ".*".join(map(re.escape, re.split(r"\*+", value.text)))
        return Q((f"{column}__regex", f"^{pattern}$"))
    return plain


def _within(number: Any, text: str) -> Q:
    """A number compared as the text says: 5, >=5, 1..5."""
    if ".." in text:
        low, high = map(int, text.split(".."))
        return Q(GreaterThanOrEqual(number, low)) & Q(LessThanOrEqual(number, high))
    digits = text.lstrip("<>=")
    return Q(_COMPARISONS[text.removesuffix(digits)](number, int(digits)))


def id_range(text: str) -> tuple[UUID, UUID]:
    """The first and the last id that begin like this."""
    digits = text.replace("-", "")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def _id_begins(column: str, text: str) -> Q:
    return Q((f"{column}__range", id_range(text)))


def _in_payload(path: list[str]) -> Coalesce:
    """The text of an argument: by its place if the path begins with a number, by its name otherwise."""
    if path[0] not in ("args", "kwargs"):
        path = ["args" if path[0].isdecimal() else "kwargs", *path]
    keys = Value(path, output_field=ArrayField(TextField()))
    text = Func(F("payload"), keys, arg_joiner=" #>> ", template="(%(expressions)s)", output_field=TextField())
    return Coalesce(text, Value("", output_field=TextField()))


def workers(value: language.Value, alias: str) -> Iterable[UUID]:
    """The ids of workers of this name, on this host, or with this host:pid."""
    named = _named("name", value, plain=Q(name=value.text)) | _named("host", value, plain=Q(host=value.text))
    host, _, pid = value.text.rpartition(":")
    if host and pid.isdecimal() and int(pid) < 2**31:
        named |= Q(host=host, pid=int(pid))
    return list(
        Worker.objects.using(alias).filter(named).order_by("-heartbeat_at").values_list("id", flat=True)[:MOST_WORKERS]
    )


__all__ = ["ATTEMPTS", "conditions", "id_range", "is_word_an_id", "workers"]
