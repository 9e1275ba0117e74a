"""What may have been meant by a search that was understood and found nothing: names that exist, words of the language.

Nothing is searched for that was not asked: a hint is a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches

from django_dhara.admin.sidebar import Known
from django_dhara.search import FIELDS, TEXT, Search, SearchError, Term, Value, meant, parse

#: How alike two names are, from 0 to 1, of which one may be the other misspelt.
ALIKE = 0.7
#: Fields whose values are names, in `Known`; of the first ones an end after a dot is a name, too.
_DOTTED, _NAMED = ("function", "error"), ("function", "error", "queue", "worker")


def nearest(asked: Search, known: Known) -> Search | None:
    """The same search with what may have been meant; None: it says just what it seems to say."""
    near = Search(tuple(_near(term, known) for term in asked.terms))
    return near if near != asked else None


def _near(term: Term, known: Known) -> Term:
    if term.field == TEXT:
        return _of_word(term, known)
    if term.field not in _NAMED:
        return term
    names = [*_names(term.field, getattr(known, term.field))]
    return replace(term, values=tuple(_alike(value, names) for value in term.values))


def _of_word(term: Term, known: Known) -> Term:
    """`dead` or `state=dead` for `state:dead`; or a part of a path."""
    [value] = term.values
    field, sign, given = value.text.partition("=")
    text = meant(value.text) or (f"{field}:{given}" if sign and field in FIELDS else "")
    if text and not value.exact:
        try:
            [found] = parse(text).terms
        except (SearchError, ValueError):
            return term
        return replace(found, negated=term.negated)
    return replace(term, values=(_alike(value, [*_names("function", known.function)]),))


def _names(field: str, known: Iterable[str]) -> Iterator[str]:
    for name in known:
        yield name
        if field in _DOTTED and "." in name:
            yield name.rpartition(".")[2]


def _alike(value: Value, names: list[str]) -> Value:
    if value.exact or "*" in value.text or any(value.text in name for name in names):
        return value
    found = get_close_matches(value.text, names, 1, ALIKE)
    return Value.of(found[0]) if found else value
