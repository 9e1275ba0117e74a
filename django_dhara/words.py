"""Values as words for people, on pages and in terminals: durations, numbers, and names that somebody else chose."""

from __future__ import annotations

import math
import re

from django.utils.formats import get_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

#: What a reader cannot see, or what changes how the rest is read: control characters, line separators, characters
#: without width, and those that turn the direction of writing around.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_UNSEEN_BUT_LINES = re.compile(_UNSEEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def visible(text: object) -> str:
    """`text` with everything unseen written out: a line feed becomes the two characters \\n."""
    return _UNSEEN.sub(_spelled, str(text))


def visible_lines(text: object) -> str:
    """The same for text of several lines, such as a traceback; line feeds and tabs stay."""
    return _UNSEEN_BUT_LINES.sub(_spelled, str(text))


def _spelled(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


def span(seconds: float) -> str:
    """A duration for people: "0.4 s", "40 s", "5 min", "3 h 20 min", "2 d 4 h"."""
    if 0 < seconds < 1:
        return _("%s s") % pointed(f"{max(seconds, 0.001):.3f}".rstrip("0"))
    whole = round(seconds)
    if whole < _MINUTE:
        return _("%s s") % whole
    if whole < _HOUR:
        return _("%s min") % (whole // _MINUTE)
    if whole < _DAY:
        return _two(_("%s h") % (whole // _HOUR), _("%s min"), whole % _HOUR // _MINUTE)
    return _two(_("%s d") % (whole // _DAY), _("%s h"), whole % _DAY // _HOUR)


def _two(large: str, unit: str, small: int) -> str:
    return f"{large} {unit % small}" if small else large


#: Around a name in a sentence: Unicode's isolates, which keep a right-to-left name from turning its neighbours around.
NAME_BEGINS, NAME_ENDS = "\u2068", "\u2069"


def isolated(name: object) -> str:
    """A name within a sentence; a very long one is cut."""
    return f"{NAME_BEGINS}{clipped(name)}{NAME_ENDS}"


def clipped(name: object, length: int = 100) -> str:
    """The beginning of a name, without what cannot be seen."""
    text = visible(str(name)[: length + 1])
    return text if len(text) <= length else f"{text[:length]}…"


#: A space at which no line is broken.
NO_BREAK = "\u00a0"


def plain(sentence: str) -> str:
    """A sentence for where isolates would show."""
    return sentence.replace(NAME_BEGINS, "").replace(NAME_ENDS, "")


def grouped(number: float) -> str:
    """A number as the language that is active writes it: "1,234", "1.234", "1 234"."""
    return number_format(number, use_l10n=True, force_grouping=True)


def pointed(text: str) -> str:
    """The same for one that is written out and has no thousands: "7.5" or "7,5"."""
    return text.replace(".", get_format("DECIMAL_SEPARATOR"))


def capped(count: int, limit: int) -> str:
    """A count that stopped at `limit`: "1,234", "10,000+"."""
    return f"{grouped(count)}+" if count >= limit else grouped(count)


#: Below how many seconds a unit is used, how long it is, and its name, which is translated when it is chosen.
_UNITS = (
    (0.9995, 0.001, gettext_noop("ms")),
    (59.5, 1, gettext_noop("s")),
    (5400, 60, gettext_noop("min")),
    (math.inf, 3600, gettext_noop("h")),
)


def short_time(seconds: float | None) -> str:
    """A measured time in about two digits: "3.4 ms", "120 ms", "1.2 s", "2.5 min", "3.1 h"; a dash for none."""
    if seconds is None:
        return "–"
    size, unit = next((size, unit) for below, size, unit in _UNITS if seconds < below)
    value = seconds / size
    return f"{pointed(f'{value:.1f}')} {_(unit)}" if value < 9.95 else f"{grouped(round(value))} {_(unit)}"


def rate(number: float) -> str:
    """A rate in about three digits; less than a hundredth is told as such."""
    if 0 < number < 0.01:
        return f"<{pointed('0.01')}"
    if number >= 99.5 or number == 0:
        return grouped(round(number))
    return pointed(f"{number:.2g}" if number < 1 else f"{number:.3g}")
