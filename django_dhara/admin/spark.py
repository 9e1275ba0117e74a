"""A small chart for a line of a table: a bar for each minute, and below the line another one for its failed runs."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

#: Of one bar, and of the chart; and the part of it for what failed, if anything did. In units of its own.
STEP, HEIGHT, DOWN = 10, 130, 40


def chart(values: Sequence[tuple[float, float]], label: str) -> SafeString:
    """Pairs of what succeeded and what failed as an image.

    Args:
        label: what a screen reader says.
    """
    down = DOWN if any(failed for _, failed in values) else 4
    most, worst = (max((value[place] for value in values), default=0) or 1 for place in (0, 1))
    line, width = HEIGHT - down, STEP * max(len(values), 1)
    bars = [
        bar
        for number, (done, failed) in enumerate(values)
        for bar in (
            ("up", number * STEP, line - _seen(done / most * line), _seen(done / most * line)),
            ("down", number * STEP, line, _seen(failed / worst * down)),
        )
    ]
    rectangle = f'<rect class="dhara-{{}}" x="{{}}" y="{{}}" width="{STEP - 2}" height="{{}}"/>'
    drawn = format_html_join(
        "", rectangle, ((kind, x, f"{y:.1f}", f"{height:.1f}") for kind, x, y, height in bars if height)
    )
    return format_html(
        '<svg class="dhara-spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}'
        '<line class="dhara-base" x1="0" x2="{}" y1="{}" y2="{}"/></svg>',
        width, HEIGHT, label, drawn, width, line, line,
    )  # fmt: skip


def _seen(height: float) -> float:
    """A bar is seen however small its value is."""
    return max(height, 5.0) if height else 0.0
