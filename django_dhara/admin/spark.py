"""Small charts, drawn on the server as SVG: a bar for each minute, those of failed runs below the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString


class Bar(NamedTuple):
    """A step of time."""

    #: What goes up and what goes down, on the same scale.
    above: float
    below: float
    #: What is told where a pointer rests.
    title: str = ""


#: The part of the height that is for what goes down, if anything does.
_DOWN = 0.3


def chart(bars: Sequence[Bar], label: str, *, width: int, height: int, kind: str) -> SafeString:
    """The bars as an image.

    Args:
        label: what a screen reader says.
        width, height: in units of its own; dhara/fleet.css gives it its size.
        kind: the end of its CSS class.
    """
    down = height * _DOWN if any(bar.below for bar in bars) else 1.0
    most = max((bar.above for bar in bars), default=0.0) or 1.0
    worst = max((bar.below for bar in bars), default=0.0) or 1.0
    step = width / max(len(bars), 1)
    drawn = format_html_join(
        "\n",
        '<g><title>{}</title><rect class="dhara-hit" x="{}" y="0" width="{}" height="{}"/>{}{}</g>',
        (
            (
                bar.title,
                f"{number * step:.2f}",
                f"{step:.2f}",
                height,
                _rect("dhara-up", number * step, height - down - up, step, up),
                _rect("dhara-down", number * step, height - down, step, bar.below / worst * down),
            )
            for number, bar in enumerate(bars)
            for up in [bar.above / most * (height - down)]
        ),
    )
    return format_html(
        '<svg class="dhara-chart dhara-{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '{}<line class="dhara-base" x1="0" x2="{}" y1="{}" y2="{}"/></svg>',
        kind,
        width,
        height,
        label,
        drawn,
        width,
        height - down,
        height - down,
    )


def _rect(kind: str, x: float, y: float, step: float, height: float) -> SafeString | str:
    """A bar that is seen however small its value is."""
    if not height:
        return ""
    tall = max(height, 1.0)
    top = y if kind == "dhara-down" else y + height - tall
    return format_html(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>',
        kind,
        f"{x + step * 0.1:.2f}",
        f"{top:.2f}",
        f"{step * 0.8:.2f}",
        f"{tall:.2f}",
    )
