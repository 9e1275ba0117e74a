"""How values look: times, states, JSON, and names that somebody else chose."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_dhara import words
from django_dhara.states import State

#: A sign beside the word: the colour is never the only thing that tells two states apart.
SIGNS = {
    State.PENDING: "○",
    State.RUNNING: "▸",
    State.COMPLETED: "✓",
    State.DEAD: "✕",
    State.CANCELED: "⊘",
}

#: Characters of a name in a list.
NAME_LENGTH = 60

visible, visible_lines, span, grouped = words.visible, words.visible_lines, words.span, words.grouped


def first_line(text: str, length: int = 200) -> str:
    """The first line of `text`, cut to `length` characters."""
    line = text.strip().split("\n", 1)[0]
    return visible(line if len(line) <= length else line[:length] + "…")


def relative(when: datetime, now: datetime) -> str:
    """When, seen from `now`: "in 40 s", "now", "5 min ago"."""
    seconds = (when - now).total_seconds()
    if abs(seconds) < 1:
        return _("now")
    return (_("in %s") if seconds > 0 else _("%s ago")) % span(abs(seconds))


def exact(when: datetime) -> str:
    """The time in the reader's time zone, to the second."""
    if timezone.is_aware(when):
        when = timezone.localtime(when)
    return f"{when:%Y-%m-%d %H:%M:%S %Z}".strip()


def moment(when: datetime | None, now: datetime) -> SafeString | str:
    """A time relative to `now`, with the exact one in its title."""
    return _time(when, relative(when, now), "future" if when > now else "past") if when else "–"


def age(when: datetime, now: datetime) -> SafeString:
    """How long ago `when` was, without saying "ago"."""
    return _time(when, span(max(round((now - when).total_seconds()), 0)), "past")


def _time(when: datetime, shown: str, tense: str) -> SafeString:
    markup = '<time class="dhara-time dhara-{}" datetime="{}" title="{}">{}</time>'
    return format_html(markup, tense, when.isoformat(), exact(when), shown)


def badge(state: str) -> SafeString:
    """A state as a coloured word with its sign."""
    known = state in State.values
    return tag(state.lower() if known else "unknown", SIGNS[State(state)] if known else "?", _label(state))


def _label(state: str) -> str:
    return str(State(state).label) if state in State.values else visible(state)


def tag(kind: str, sign: str, label: str) -> SafeString:
    """A coloured word; `kind` names its colours in dhara/admin.css."""
    return format_html(
        '<span class="dhara-tag dhara-{}"><span class="dhara-sign" aria-hidden="true">{}</span>{}</span>',
        kind,
        sign,
        label,
    )


def name(text: object, length: int | None = None) -> SafeString:
    """A name that somebody else chose; `bdi` keeps a right-to-left one from turning its neighbours around.

    Args:
        length: characters that are shown; the title of a longer one has all of it.
    """
    whole = visible(text)
    shown = whole if length is None else words.clipped(whole, length)
    # A long path may be broken after its dots and underscores, but not before the comma that follows it.
    parts = format_html_join(_BREAK, "{}", ((part,) for part in _PART.findall(shown)))
    if shown == whole:
        return format_html('<bdi class="dhara-name">{}</bdi>', parts)
    return format_html('<bdi class="dhara-name" title="{}">{}</bdi>', whole, parts)


def worker_name(worker: Any, address: str = "") -> SafeString:
    """The name of a worker, linked to its page, and its host and pid beside a name that does not say them already."""
    shown = name(worker.name, NAME_LENGTH)
    shown = format_html('<a href="{}">{}</a>', address, shown) if address else shown
    if worker.host in worker.name and str(worker.pid) in worker.name:
        return shown
    return format_html('{} <span class="dhara-quiet">{}</span>', shown, process(worker))


def process(worker: Any) -> SafeString:
    """host:pid of a worker."""
    return format_html("<bdi>{}:{}</bdi>", visible(worker.host), worker.pid)


_BREAK = mark_safe("<wbr>")
_PART = re.compile(r"[^._]*[._]|[^._]+")


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},:]|[^\s"\[\]{},:]+')
#: A list or an object with one plain thing in it needs no lines of its own.
_SMALL = re.compile(r"([\[{])\n +([^\[\]{}\n]{1,80})\n *([\]}])")
_DEEPEST = 20


def pretty(json: str, limit: int) -> str:
    """JSON text on several lines, at most about `limit` characters.

    It is indented by its brackets and never parsed: a text that was cut, has a thousand levels or a number of a
    million digits looks as good as any other.
    """
    parts: list[str] = []
    depth = size = 0
    opened = False
    for match in _TOKEN.finditer(json):
        token = match.group()
        closes = token in ("]", "}")
        depth -= closes
        # A new line after an opening bracket and before a closing one; none between the two of an empty pair.
        part = _line(depth) + token if (opened or closes) and opened != closes else token
        opened = token in ("[", "{")
        depth += opened
        parts.append(part + (_line(depth) if token == "," else " " if token == ":" else ""))
        size += len(parts[-1])
        if size > limit:
            parts.append("…")
            break
    return visible_lines(_SMALL.sub(r"\1\2\3", "".join(parts)))


def _line(depth: int) -> str:
    return "\n" + "  " * min(max(depth, 0), _DEEPEST)


def no_task(id_: object) -> str:
    return _("There is no task %s (any more).") % visible(id_)


def counted(task: Any) -> int:
    """Failed and lost runs, and the present or successful one: what `TaskResult.attempts` says."""
    return int(task.failures + task.lost + (task.state in (State.RUNNING, State.COMPLETED)))
