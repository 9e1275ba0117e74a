"""Targets as data: what a figure of ours has to reach, alone or beside another's of the same run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Figures by row of the table and name.
Figures = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Target:
    """One target.

    Args:
        row: whose figure, a row of the workload's table.
        metric: which figure.
        must: what closes the issue: a figure, or a ratio where there is an `of`.
        aim: what we are after.
        at_most: smaller is better.
        of: rows with whose best the figure is compared; those that were not run do not count.
        of_metric: the figure of theirs; the same by default.
        says: what stands in the table in the place of the figure's name and rows.
    """

    row: str
    metric: str
    must: float
    aim: float | None = None
    at_most: bool = False
    of: tuple[str, ...] = ()
    of_metric: str = ""
    says: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of a target; `must_held` and `aim_held` are None where that cannot be said."""

    says: str
    value: float | None
    beside: str
    reference: float | None
    ratio: float | None
    sign: str
    must: float
    must_held: bool | None
    aim: float | None
    aim_held: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(target: Target, figures: Figures) -> Verdict:
    """Compare a figure of ours with its target."""
    value = figures.get(target.row, {}).get(target.metric)
    beside, reference = _best(target, figures)
    ratio = value / reference if value is not None and reference else None
    judged = ratio if target.of else value
    return Verdict(
        says=target.says or _words(target),
        value=value,
        beside=beside,
        reference=reference,
        ratio=ratio,
        sign="≤" if target.at_most else "≥",
        must=target.must,
        must_held=_held(judged, target.must, target.at_most),
        aim=target.aim,
        aim_held=None if target.aim is None else _held(judged, target.aim, target.at_most),
    )


def _best(target: Target, figures: Figures) -> tuple[str, float | None]:
    metric = target.of_metric or target.metric
    found = {row: figures[row][metric] for row in target.of if metric in figures.get(row, {})}
    if not found:
        return ", ".join(target.of), None
    row = (min if target.at_most else max)(found, key=lambda name: found[name])
    return row, found[row]


def _held(value: float | None, bound: float, at_most: bool) -> bool | None:
    if value is None:
        return None
    return value <= bound if at_most else value >= bound


def _words(target: Target) -> str:
    words = f"{target.row}: {target.metric}"
    if target.of:
        words += f" beside {' or '.join(target.of)}"
    return words
