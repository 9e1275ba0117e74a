"""A section as a table: for the terminal, and for RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: The widest table that a terminal shows.
WIDTH = 120
_REASON = 60


def lines(section: Mapping[str, Any]) -> Iterator[str]:
    """A section for the terminal."""
    yield f"{section['workload']}  {section['title']}{'  (--quick: no measurement)' if section['quick'] else ''}"
    yield ""
    yield from _aligned([heads(section), *rows(section)])
    for row, reason in section["failed"].items():
        yield f"  {row} FAILED: {reason}"[:WIDTH]
    yield ""
    yield from _aligned([["target", "measured", "must", "", "aim", ""], *verdicts(section)])
    yield ""


def markdown(section: Mapping[str, Any]) -> Iterator[str]:
    """The two tables of a section for RESULTS.md."""
    yield from _piped([heads(section), *rows(section)])
    yield from _piped([["target", "measured", "must", "", "aim", ""], *verdicts(section)])


def heads(section: Mapping[str, Any]) -> list[str]:
    """The titles of the columns."""
    return ["", *(metric["title"] for metric in section["metrics"]), "ours beside it"]


def rows(section: Mapping[str, Any]) -> Iterator[list[str]]:
    """Medians, a row for each contender and the prediction, the failed ones included."""
    metrics = section["metrics"]
    for name, row in section["rows"].items():
        ratio = row["ratios"].get(section["primary"])
        beside = "" if ratio is None or name.startswith("django-dhara") else f"{ratio:.2f} x"
        yield [name, *(figure(row["medians"].get(m["name"]), m["digits"]) for m in metrics), beside]
    for name in section["failed"]:
        if name not in section["rows"]:
            yield [name, "failed", *[""] * len(metrics)]
    for name, published in section.get("published", {}).items():
        yield [name, *(figure(published.get(m["name"]), m["digits"]) for m in metrics), ""]
    yield ["predicted", *(figure(section["predicted"].get(m["name"]), m["digits"]) for m in metrics), ""]


def verdicts(section: Mapping[str, Any]) -> Iterator[list[str]]:
    """Each target with what was measured."""
    for each in section["targets"]:
        yield [
            each["says"],
            _measured(each),
            _bound(each, "must"),
            _word(each, "must"),
            _bound(each, "aim"),
            _word(each, "aim"),
        ]


def figure(value: float | None, digits: int) -> str:
    """A number with its thousands apart; nothing where there is none."""
    return "" if value is None else f"{value:,.{digits}f}"


def _measured(verdict: Mapping[str, Any]) -> str:
    if verdict["beside"]:
        ratio = verdict["ratio"]
        return f"without {_shortened(verdict['beside'])}" if ratio is None else f"{ratio:.2f} x {verdict['beside']}"
    return "not measured" if verdict["value"] is None else f"{verdict['value']:,.4g}"


def _shortened(names: str) -> str:
    return names if len(names) <= 30 else f"{names[:27]}..."


def _bound(verdict: Mapping[str, Any], which: str) -> str:
    bound = verdict[which]
    if bound is None:
        return ""
    return f"{verdict['sign']} {bound:,g}" + (" x" if verdict["beside"] else "")


def _word(verdict: Mapping[str, Any], which: str) -> str:
    held = verdict[f"{which}_held"]
    if verdict[which] is None:
        return ""
    return "?" if held is None else "held" if held else "MISSED"


def _aligned(table: list[list[str]]) -> Iterator[str]:
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        first, *rest = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join(["", first.strip().ljust(widths[0]), *rest]).rstrip()


def _piped(table: list[list[str]]) -> Iterator[str]:
    head, *body = table
    yield f"| {' | '.join(head)} |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    for line in body:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in line)} |"
    yield ""
