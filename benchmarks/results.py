"""What is kept of the runs: `results.json` with the newest section of each workload, and `RESULTS.md` made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import table

FOLDER = Path(__file__).resolve().parent
#: Workloads stand in the order of their numbers.
Sections = dict[str, Mapping[str, Any]]


def load(folder: Path = FOLDER) -> Sections:
    """The sections of earlier runs."""
    path = folder / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def keep(section: Mapping[str, Any], plots: list[str], folder: Path = FOLDER) -> None:
    """Put a section in the place of its workload's last one, and write both files.

    Args:
        plots: names of the pictures of this section.
    """
    sections = load(folder)
    sections[section["workload"]] = {**section, "plots": plots}
    ordered = dict(sorted(sections.items(), key=lambda item: int(item[0][1:])))
    (folder / "results.json").write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    (folder / "RESULTS.md").write_text(render(ordered), encoding="utf-8")


def render(sections: Sections) -> str:
    """The page."""
    return "\n".join([*_head(), *(line for section in sections.values() for line in _section(section))])


_HEAD = (
    "Written by `python -m benchmarks` from `results.json`; a workload's section is as of its newest run. Figures are",
    "medians of the rounds, and ratios are within one run: contenders took turns on the same server. The last column",
    "is our figure divided by theirs. What each workload does, and by which rules, is in [README.md](README.md).",
)


def _head() -> Iterator[str]:
    yield "# Results"
    yield ""
    yield from _HEAD
    yield ""


def _section(section: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {section['workload']}: {section['title']}"
    yield ""
    yield section["measures"]
    yield ""
    yield f"Predicted before the run: {section['prediction']}"
    yield ""
    yield from table.markdown(section)
    for row, reason in section["failed"].items():
        yield f"- {row} failed: {reason}"
    yield from ["", *(f"![{name}](plots/{name})" for name in section.get("plots", [])), ""]
    yield from _circumstances(section)
    yield ""


def _circumstances(section: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details><summary>{section['date']}: machine, versions, settings, every round</summary>"
    yield ""
    yield f"- Machine: {_pairs(section['machine'])}"
    yield f"- Versions: {_pairs(section['versions'])}"
    yield f"- PostgreSQL: {_pairs(section['server'])}"
    for name, settings in section["contenders"].items():
        yield f"- {name}: {settings}"
    for name, row in section["rows"].items():
        yield f"- Rounds of {name}: {'; '.join(_round(section, each) for each in row['rounds'])}"
    yield ""
    yield "</details>"


def _round(section: Mapping[str, Any], figures: Mapping[str, float]) -> str:
    digits = {metric["name"]: metric["digits"] for metric in section["metrics"]}
    return ", ".join(f"{name} {table.figure(value, digits.get(name, 2))}" for name, value in figures.items())


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
