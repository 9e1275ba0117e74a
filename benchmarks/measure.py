"""Figures from samples; nothing here touches a process or a database."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

#: (seconds by the monotonic clock, tasks not finished yet), in the order of time.
Samples = Sequence[tuple[float, float]]


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of the values that is not below `percent` per cent of them.

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99."""
    return {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}


def rate(samples: Samples, low: float, high: float) -> float:
    """Tasks per second between the shares `low` and `high` of what the first sample had.

    Start-up lies before `low`. Between two samples the tasks are taken to end evenly.
    """
    total = samples[0][1]
    seconds = _reached(samples, total * (1 - high)) - _reached(samples, total * (1 - low))
    return total * (high - low) / seconds if seconds > 0 else math.inf


def _reached(samples: Samples, left: float) -> float:
    for (before, had), (now, has) in pairwise(samples):
        if has <= left:
            share = (had - left) / (had - has) if had > has else 0.0
            return before + (now - before) * share
    raise ValueError(f"there were never as few as {left:g} left")


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds that have it."""
    names = list(dict.fromkeys(name for each in rounds for name in each))
    return {name: median(each[name] for each in rounds if name in each) for name in names}
