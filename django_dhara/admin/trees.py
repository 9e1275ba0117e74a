"""JSON as a tree that folds: keys, values, and of what is large its size and its beginning."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dhara.admin.text import grouped, visible

#: Of one tree: values in all, items of one list or object, levels, characters of a string and of a key.
MOST, ITEMS, DEEPEST, STRING, KEY = 500, 100, 12, 300, 100
#: Levels that are unfolded at first, where they have no more items than this.
OPEN_LEVELS, OPEN_ITEMS = 2, 20


class _Number(str):
    """A number as it is written: neither rounded, nor too long for Python."""

    __slots__ = ()


def parse(text: str) -> Any:
    """JSON text as Python values, numbers as they are written.

    Raises:
        ValueError: it is none, or deeper than Python can read.
    """
    try:
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except RecursionError as error:
        raise ValueError("too deep") from error


def tree(value: Any) -> SafeString:
    """The markup of what `parse` answered."""
    if _is_branch(value):
        return _inside(value, 0, MOST)
    return format_html('<ul class="dhara-json"><li>{}</li></ul>', _leaf(value))


def _is_branch(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _inside(value: dict[str, Any] | list[Any], level: int, room: int) -> SafeString:
    """What is in a list or an object, at most `room` values in all.

    What is left of it after one's own items is shared evenly by those that have some: a long list hides none of its
    neighbours.
    """
    pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    shown = list(islice(pairs, min(ITEMS, room)))
    branches = sum(_is_branch(inner) for _, inner in shown)
    share = (room - len(shown)) // max(branches, 1)
    rows = [(_row(key, inner, level, share),) for key, inner in shown]
    if rest := len(value) - len(rows):
        more = ngettext("%(count)s more", "%(count)s more", rest) % {"count": grouped(rest)}
        rows.append((format_html('<li class="dhara-quiet">… {}</li>', more),))
    return format_html('<ul class="dhara-json">{}</ul>', format_html_join("", "{}", rows))


def _row(key: Any, value: Any, level: int, room: int) -> SafeString:
    shown = format_html('<bdi class="dhara-key">{}</bdi>', _cut(str(key), KEY))
    if not _is_branch(value):
        return format_html("<li>{} {}</li>", shown, _leaf(value))
    if level >= DEEPEST or room <= 0:
        return format_html('<li>{} <span class="dhara-quiet">{} …</span></li>', shown, _size(value))
    is_open = level < OPEN_LEVELS - 1 and len(value) <= OPEN_ITEMS
    return format_html(
        '<li><details{}><summary>{} <span class="dhara-quiet">{}</span></summary>{}</details></li>',
        mark_safe(" open") if is_open else "",
        shown,
        _size(value),
        _inside(value, level + 1, room),
    )


def _leaf(value: Any) -> SafeString:
    match value:
        case _Number():
            return format_html('<span class="dhara-number">{}</span>', _cut(value, STRING))
        case str():
            return _string(value)
        case dict() | list():
            return format_html('<span class="dhara-quiet">{}</span>', "{}" if isinstance(value, dict) else "[]")
        case _:
            return format_html('<span class="dhara-word">{}</span>', json.dumps(value))


def _string(value: str) -> SafeString:
    shown = format_html('<bdi class="dhara-string">"{}"</bdi>', _cut(value, STRING))
    if len(value) <= STRING:
        return shown
    size = _("text of %s characters") % grouped(len(value))
    return format_html('{} <span class="dhara-quiet">{}</span>', shown, size)


def _size(value: dict[str, Any] | list[Any]) -> str:
    count = len(value)
    if isinstance(value, dict):
        told = ngettext("object with %(count)s key", "object with %(count)s keys", count)
    else:
        told = ngettext("list of %(count)s item", "list of %(count)s items", count)
    return told % {"count": grouped(count)}


def _cut(text: str, length: int) -> str:
    return visible(text if len(text) <= length else text[:length] + "…")
