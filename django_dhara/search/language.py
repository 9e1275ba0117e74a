"""The search language: `state:dead function:send_receipt -queue:email after:2h payload.order_id:42 "a word"`.

All terms must hold. A term is a field, a colon and one value of several (`state:dead,canceled`), or a bare word: the
beginning of an id, or a part of a function's path. A minus in front says not. In quotes a value is taken exactly as it
is. What is not understood is an error that says where and what to write instead; nothing wider is searched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import NamedTuple
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dhara import redaction
from django_dhara.search.moments import moment
from django_dhara.states import State

#: Bounds of one search: characters, terms, and values of a term.
MAX_LENGTH, MAX_TERMS, MAX_VALUES = 2000, 40, 100
#: Characters of one whose times are written out: `after:2h` becomes longer.
MAX_KEPT = MAX_LENGTH + 40 * MAX_TERMS

#: What a bare word is kept under.
TEXT = "text"
PAYLOAD = "payload."
_ANY_PAYLOAD = "payload.…"

#: What `is:` takes.
KINDS = ("ready", "scheduled", "retrying", "suspect", "late", "stopping")
STATES = tuple(state.lower() for state in State.values)

#: What other queues and Django's own words call it.
_ELSEWHERE = {
    "state:dead": ("failed", "discarded", "buried"),
    "state:completed": ("successful", "succeeded", "success", "finished", "done"),
    "state:running": ("executing", "active", "started", "processing"),
    "state:pending": ("queued", "enqueued", "waiting", "available"),
    "is:retrying": ("retryable", "retry"),
    "is:late": ("stuck", "orphaned"),
}

_HEX = re.compile(r"[0-9a-f][0-9a-f-]{3,35}", re.IGNORECASE)
_NUMBER = re.compile(r"(>=|<=|>|<)?(-?\d{1,9})|(-?\d{1,9})\.\.(-?\d{1,9})")
_NAME = re.compile(r"payload\.[^\s:\",]+|[A-Za-z_]+(?:\.[^\s:\",]*)?")
#: What needs no quotes.
_PLAIN = re.compile(r"[^\s\",\\:*-][^\s\",\\:*]*")


class Value(NamedTuple):
    """One value of a term; `exact`: it stood in quotes."""

    text: str
    exact: bool = False

    def __str__(self) -> str:
        return '"' + self.text.replace("\\", "\\\\").replace('"', '\\"') + '"' if self.exact else self.text

    @classmethod
    def of(cls, text: object) -> Value:
        """A value that means exactly this text, in quotes only where it needs them."""
        return cls(str(text), not _PLAIN.fullmatch(str(text)))


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: a field and the values of which a task must have one, or, negated, none."""

    field: str
    values: tuple[Value, ...]
    negated: bool = False

    def __str__(self) -> str:
        values = ",".join(map(str, self.values))
        return f"{'-' if self.negated else ''}{'' if self.field == TEXT else self.field + ':'}{values}"

    @property
    def texts(self) -> list[str]:
        return [value.text for value in self.values]


@dataclass(frozen=True, slots=True)
class Search:
    """A search that was understood. `str()` of it can be parsed again, and is the same search."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def of(self, field: str) -> list[Term]:
        """The terms of a field that say what a task must have."""
        return [term for term in self.terms if term.field == field and not term.negated]

    def without(self, term: Term) -> Search:
        return Search(tuple(each for each in self.terms if each != term))

    def replaced(self, field: str, *values: Value) -> Search:
        """The search with these values as the only ones of a field, or with none of it."""
        others = tuple(each for each in self.terms if each.field != field)
        return Search((*others, Term(field, values)) if values else others)

    def at(self, now: datetime) -> Search:
        """The search with its times counted from `now` and written out: it means the same at any later time."""

        def fixed(term: Term) -> Term:
            if FIELDS.get(term.field, _WORD).check is not _check_time:
                return term
            return replace(term, values=tuple(Value(moment(text, now).isoformat(), exact=True) for text in term.texts))

        return Search(tuple(map(fixed, self.terms)))


class Problem(NamedTuple):
    """A part of a text that is not understood."""

    #: Where it begins, in characters from 0, and what stands there.
    position: int
    word: str
    message: str
    #: What may have been meant, to stand in the place of `word`; empty if nobody knows.
    instead: str = ""


class SearchError(ValueError):
    """A text is no search."""

    def __init__(self, text: str, problems: list[Problem]) -> None:
        super().__init__(" ".join(problem.message for problem in problems))
        self.text = text
        self.problems = problems

    @property
    def corrected(self) -> str:
        """The text with all that may have been meant in its place; empty if one problem has no remedy."""
        if not all(problem.instead for problem in self.problems):
            return ""
        text = self.text
        for problem in reversed(self.problems):
            end = problem.position + len(problem.word)
            text = text[: problem.position] + problem.instead + text[end:]
        return text if _is_search(text) else ""


def _is_search(text: str) -> bool:
    try:
        parse(text)
    except SearchError:
        return False
    return True


class _Wrong(Exception):
    """What is wrong with a word, and what may have been meant."""

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(message)
        self.instead = instead


class Field(NamedTuple):
    """What can be asked for."""

    #: Raises `_Wrong`; returns the value as it is kept.
    check: Callable[[Value], Value]
    example: str
    help: object


def meant(word: str) -> str:
    """The term that a word means which is no name: of `dead` that is `state:dead`; empty if it is none."""
    lower = word.lower()
    if lower in STATES:
        return f"state:{lower}"
    if lower in KINDS:
        return f"is:{lower}"
    return next((term for term, words in _ELSEWHERE.items() if lower in words), "")


def _check_word(value: Value) -> Value:
    if not value.text:
        raise _Wrong(_("There is no word here."))
    return value


def _check_text(value: Value) -> Value:
    if not value.text:
        raise _Wrong(_("There is no value behind the colon."))
    return value


def _check_choice(choices: tuple[str, ...]) -> Callable[[Value], Value]:
    def check(value: Value) -> Value:
        word = _check_text(value).text.lower()
        if word not in choices:
            message = _("There is no “%(word)s”; there are: %(choices)s.")
            instead = meant(word) or "".join(get_close_matches(word, choices, 1))
            raise _Wrong(message % {"word": value.text, "choices": ", ".join(choices)}, instead)
        return Value(word)

    return check


def _check_number(value: Value) -> Value:
    if not _NUMBER.fullmatch(value.text):
        raise _Wrong(_("“%s” is no number: write 5, >=5, <5 or 1..5.") % value.text)
    low, dots, high = value.text.partition("..")
    if dots and int(low) > int(high):
        message = _("No number is in “%(given)s”: write the smaller one first, %(instead)s.")
        raise _Wrong(message % {"given": value.text, "instead": f"{high}..{low}"}, f"{high}..{low}")
    return Value(value.text)


def _check_time(value: Value) -> Value:
    try:
        moment(value.text, datetime.now(UTC))
    except ValueError:
        message = _("“%s” is no time: write 2h or 3d for so long ago, today, 14:00, 2026-11-30 or 2026-11-30T14:00.")
        raise _Wrong(message % value.text) from None
    return value


def _check_id(value: Value) -> Value:
    if not is_id(value.text):
        raise _Wrong(_("“%s” is no id, nor at least the first four digits of one.") % value.text)
    return Value(value.text.lower())


def _check_whole_id(value: Value) -> Value:
    try:
        return Value(str(UUID(value.text)))
    except ValueError:
        raise _Wrong(_("“%s” is no id: all of it is needed here.") % value.text) from None


def is_id(text: str) -> bool:
    """Is this a complete id, or its beginning?"""
    return bool(_HEX.fullmatch(text)) and 4 <= len(text.replace("-", "")) <= 32


_WORD = Field(_check_text, "", "")

FIELDS: Mapping[str, Field] = {
    "state": Field(
        _check_choice(STATES),
        "state:dead,canceled",
        gettext_lazy("pending, running, completed, dead or canceled"),
    ),
    "function": Field(
        _check_text,
        "function:send_receipt",
        gettext_lazy("its path, or the end of it after a dot; * stands for anything"),
    ),
    "queue": Field(_check_text, "-queue:email", gettext_lazy("its name; a minus says not")),
    "error": Field(_check_text, "error:Timeout", gettext_lazy("a part of the class of the last error; any or none")),
    "after": Field(_check_time, "after:2h", gettext_lazy("enqueued after: 30m, 2h, 3d ago, 14:00, today, 2026-11-30")),
    "before": Field(_check_time, "before:2026-11-30", gettext_lazy("enqueued before")),
    "finished_after": Field(_check_time, "finished_after:30m", gettext_lazy("ended after")),
    "finished_before": Field(_check_time, "finished_before:14:00", gettext_lazy("ended before")),
    "priority": Field(_check_number, "priority:>=10", gettext_lazy("a number, <, <=, >, >=, or 1..5")),
    "attempts": Field(_check_number, "attempts:>2", gettext_lazy("as the list counts them")),
    "worker": Field(_check_text, "worker:box7", gettext_lazy("an id or its beginning, a name, a host, or host:pid")),
    "is": Field(
        _check_choice(KINDS),
        "is:scheduled",
        gettext_lazy("ready, scheduled, retrying, suspect (a worker died with it), late (its lease ran out), stopping"),
    ),
    "key": Field(_check_text, "key:receipt-7", gettext_lazy("the idempotency key")),
    "id": Field(_check_id, "id:018f", gettext_lazy("its first four digits or more")),
    "parent": Field(_check_whole_id, "parent:018f2c3a-…", gettext_lazy("the id of the task that enqueued it")),
    "backend": Field(_check_text, "backend:default", gettext_lazy("an alias in TASKS")),
    "fingerprint": Field(
        _check_text, "fingerprint:9f3a", gettext_lazy("equal for errors of one class and place; its beginning will do")
    ),
    _ANY_PAYLOAD: Field(
        _check_text, "payload.order_id:42", gettext_lazy("an argument by its name or place, and further in by dots")
    ),
}
_SINGLE = {"after", "before", "finished_after", "finished_before"}


def parse(text: str, *, is_kept: bool = False) -> Search:
    """The search that a text means.

    Args:
        is_kept: it is what `Search.at` made of one, and may be longer.

    Raises:
        SearchError: it has every problem that the text has, in their order.
    """
    most = MAX_KEPT if is_kept else MAX_LENGTH
    if len(text) > most:
        message = _("A search has at most %(most)s characters, this one has %(length)s.")
        raise SearchError(text, [Problem(0, "", message % {"most": most, "length": len(text)})])
    terms: list[Term] = []
    problems: list[Problem] = []
    for word in _words(text):
        term = _term(word, problems)
        if term and term not in terms:
            terms.append(term)
    if len(terms) > MAX_TERMS:
        problems.append(Problem(0, "", _("A search has at most %s terms.") % MAX_TERMS))
    if problems:
        raise SearchError(text, problems)
    return Search(tuple(terms))


class _Word(NamedTuple):
    """What stands between two spaces outside of quotes."""

    position: int
    text: str


def _words(text: str) -> Iterator[_Word]:
    for match in re.finditer(r'(?:"(?:[^"\\]|\\.)*"?|[^\s"])+', text, re.DOTALL):
        yield _Word(match.start(), match.group())


def _term(word: _Word, problems: list[Problem]) -> Term | None:
    """The term that a word is, or None and one problem more."""
    negated = word.text.startswith("-")
    rest = word.text[negated:]
    try:
        name, colon, given = _taken_apart(rest)
        values = _values(given, most=1 if name in _SINGLE else MAX_VALUES, is_list=bool(colon))
        check = _field(name, given).check if colon else _check_word
    except _Wrong as wrong:
        instead = f"{'-' if negated else ''}{wrong.instead}" if wrong.instead else ""
        problems.append(Problem(word.position, word.text, str(wrong), instead))
        return None
    try:
        kept = tuple(check(value) for value in values)
    except _Wrong as wrong:
        instead = wrong.instead if ":" in wrong.instead else f"{name}:{wrong.instead}"
        instead = f"{'-' if negated else ''}{instead}" if wrong.instead and len(values) == 1 else ""
        problems.append(Problem(word.position, word.text, str(wrong), instead))
        return None
    return Term(name or TEXT, tuple(dict.fromkeys(kept)), negated)


def _taken_apart(text: str) -> tuple[str, str, str]:
    """The field, its colon, and what is behind it; a bare word has neither."""
    if "\x00" in text:
        raise _Wrong(_("A search has no NUL characters in it."))
    match = _NAME.match(text)
    if match and text[match.end() : match.end() + 1] == ":":
        name = match.group()
        return (name if name.startswith(PAYLOAD) else name.lower()), ":", text[match.end() + 1 :]
    if ":" in text and not text.startswith('"'):
        raise _Wrong(_("What stands before a colon is no field. In quotes it is a word."), _quoted(text))
    return "", "", text


def _field(name: str, given: str) -> Field:
    if name.startswith(PAYLOAD) and all(name.removeprefix(PAYLOAD).split(".")):
        if redaction.is_redacting():
            raise _Wrong(_("Nobody can search by arguments: this project redacts them, and an answer would tell."))
        return FIELDS[_ANY_PAYLOAD]
    if name in FIELDS and name != _ANY_PAYLOAD:
        return FIELDS[name]
    near = get_close_matches(name, FIELDS, 1, 0.5)
    if near:
        message = _("There is no field “%(name)s”. Did you mean %(near)s?") % {"name": name, "near": near[0]}
        raise _Wrong(message, f"{near[0]}:{given}" if near[0] != _ANY_PAYLOAD else "")
    message = _("There is no field “%(name)s”; there are: %(fields)s. In quotes it is a word.")
    raise _Wrong(message % {"name": name, "fields": ", ".join(FIELDS)}, _quoted(f"{name}:{given}"))


def _quoted(text: str) -> str:
    return str(Value(text, exact=True))


def _values(text: str, most: int, *, is_list: bool) -> tuple[Value, ...]:
    """The values of a term; of a bare word a comma is a part."""
    pattern = r'"((?:[^"\\]|\\.)*)"|([^",]+)' if is_list else r'"((?:[^"\\]|\\.)*)"|([^"]+)'
    values: list[Value] = []
    end = 0
    for match in re.finditer(pattern, text, re.DOTALL):
        between = text[end : match.start()]
        if between != ("," if values else ""):
            break
        quoted, plain = match.groups()
        values.append(Value(plain) if quoted is None else Value(_unescaped(quoted), exact=True))
        end = match.end()
    if end < len(text) or not values:
        raise _broken(text, is_word=not is_list)
    if len(values) > most:
        raise _Wrong(ngettext("It takes one value.", "It takes at most %(most)s values.", most) % {"most": most})
    return tuple(values)


def _unescaped(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)


def _broken(text: str, *, is_word: bool) -> _Wrong:
    if not text:
        return _Wrong(_("There is no word here.") if is_word else _("There is no value behind the colon."))
    if text.replace('\\"', "").count('"') % 2:
        return _Wrong(_("A quote is opened and not closed."))
    if '"' in text:
        return _Wrong(_('Quotes stand around a whole value, and \\" inside of one.'))
    return _Wrong(_("There is no value between two commas, or at an end."))
