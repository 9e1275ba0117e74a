"""Charts as SVG, drawn on the server. A chart is as wide as its place: its text stands beside the part that stretches.

The stretched part has lines whose width does not scale, and horizontal hatching, which looks the same at any width.
Nothing is told by colour alone: lines differ by their dashes and are named at their ends, failures are hatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from django_dhara.words import pointed, short_time

#: The height of the plot and what a step is wide, in its own units; a letter takes so much of the height.
HEIGHT, STEP, LETTER = 150, 10, 13


class Mark(NamedTuple):
    """A text at a height."""

    y: float
    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """What a template needs of a chart."""

    name: str
    title: str
    note: str
    #: What a screen reader says of the picture.
    summary: str
    width: int
    #: The lines across, and what they mean.
    marks: Sequence[Mark]
    drawn: SafeString
    #: Transparent columns with what is told of each step.
    columns: SafeString
    #: The names of the lines, at their ends.
    ends: Sequence[Mark]
    #: The first step, the one in the middle, and the last.
    times: tuple[str, str, str]
    legend: Sequence[tuple[str, str]] = ()
    #: Of a chart of times: each line, with its seconds at each step.
    lines: Sequence[Sequence[float | None]] = ()

    @property
    def height(self) -> int:
        return HEIGHT


class Bar(NamedTuple):
    """One step of a chart of bars: what stands below, and what is hatched above it."""

    lower: float
    upper: float
    #: The step is not over.
    is_open: bool = False


def bars(values: Sequence[Bar], top: float) -> SafeString:
    """Stacked bars; `top` is the value at the upper edge."""
    return format_html_join("", "{}", ((_bar(number, bar, HEIGHT / top),) for number, bar in enumerate(values)))


def _bar(number: int, bar: Bar, scale: float) -> SafeString:
    lower, upper = bar.lower * scale, bar.upper * scale
    # What happened is seen, however little it was beside the rest.
    upper = max(upper, 2.5) if bar.upper else 0.0
    x, kind = number * STEP + 1, " dhara-open" if bar.is_open else ""
    rectangle = '<rect class="dhara-bar dhara-{}{}" x="{}" y="{}" width="{}" height="{}"/>'
    parts = ((HEIGHT - lower, lower, "done"), (HEIGHT - lower - upper, upper, "failed"))
    return format_html_join(
        "", rectangle, ((what, kind, x, _round(y), STEP - 2, _round(height)) for y, height, what in parts if height)
    )


def line(kind: str, values: Sequence[float | None], place: Callable[[float], float]) -> SafeString:
    """A line through the values that are there; one that stands alone is a short dash."""
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((number * STEP + STEP / 2, place(value)))
    path = "".join(map(_run, filter(None, runs)))
    return format_html('<path class="dhara-line dhara-{}" d="{}"/>', kind, path)


def _run(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    if not rest:
        return f"M{_round(x - STEP / 2)} {_round(y)}h{STEP}"
    return f"M{_round(x)} {_round(y)}" + "".join(f"L{_round(x)} {_round(y)}" for x, y in rest)


def columns(texts: Iterable[str]) -> SafeString:
    """A transparent rectangle for each step, with its values as its title."""
    return format_html_join(
        "",
        '<rect class="dhara-hit" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>',
        ((number * STEP, STEP, HEIGHT, text) for number, text in enumerate(texts)),
    )


def _round(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def ceiling(highest: float) -> float:
    """A round number that is not smaller: 1, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    if highest <= 0:
        return 1.0
    power = float(10 ** math.floor(math.log10(highest)))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= highest * 0.999)


#: What stands beside a scale of times, in seconds.
_TICKS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 360_000.0, 3_600_000.0)


class TimeScale:
    """A logarithmic scale that holds all values, from one tick to another."""

    def __init__(self, values: Iterable[float | None]) -> None:
        known = [max(value, _TICKS[0]) for value in values if value is not None] or [0.1]
        low = max(number for number, tick in enumerate(_TICKS) if tick <= min(known))
        high = min((number for number, tick in enumerate(_TICKS) if tick >= max(known)), default=len(_TICKS) - 1)
        low = min(low, len(_TICKS) - 2)
        self._ticks = _TICKS[low : max(high, low + 1) + 1]

    def place(self, seconds: float) -> float:
        """How far below the upper edge."""
        low, high = math.log(self._ticks[0]), math.log(self._ticks[-1])
        share = (math.log(max(seconds, self._ticks[0])) - low) / (high - low)
        return HEIGHT * (1 - min(share, 1.0))

    def marks(self) -> list[Mark]:
        return [Mark(self.place(tick), short_time(tick).replace(pointed(".0 "), " ")) for tick in self._ticks]


def apart(ends: Iterable[Mark]) -> list[Mark]:
    """The names of lines that end near each other, moved so that each can be read."""
    found: list[Mark] = []
    for mark in sorted(ends):
        lowest = found[-1].y + LETTER if found else LETTER / 2
        found.append(mark._replace(y=max(mark.y, lowest)))
    overhang = found[-1].y - (HEIGHT - LETTER / 3) if found else 0
    if overhang > 0:
        for place in range(len(found) - 1, -1, -1):
            limit = HEIGHT - LETTER / 3 - LETTER * (len(found) - 1 - place)
            found[place] = found[place]._replace(y=min(found[place].y, limit))
    return found


#: Once on a page: lines across, seen at any width and in one colour.
HATCH: SafeString = mark_safe(
    '<svg class="dhara-defs" width="0" height="0" aria-hidden="true"><defs>'
    '<pattern id="dhara-hatch" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<rect class="dhara-hatch-ground" width="4" height="4"/><rect class="dhara-hatch-line" width="4" height="2"/>'
    "</pattern></defs></svg>"
)
