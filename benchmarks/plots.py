"""Pictures of a section, as SVG, into `plots/`; they need matplotlib, which only they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "plots"
_MISSING = "no plots: matplotlib is not installed (`uv pip install --group bench`, or pip install matplotlib)"
_INCHES = (8, 4.5)


def draw(section: Mapping[str, Any], say: Callable[[str], None], folder: Path = FOLDER) -> list[str]:
    """Draw what there is to draw of a section; return the names of the files.

    Args:
        say: is told when there is no matplotlib.
    """
    drawers = _DRAWERS.get(section["workload"], ())
    if not drawers:
        return []
    try:
        import matplotlib
    except ImportError:
        say(_MISSING)
        return []
    matplotlib.use("svg")
    # The same data give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "dhara"
    folder.mkdir(exist_ok=True)
    return [name for drawer in drawers for name in drawer(section, folder)]


def _latencies(section: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """For each contender, how many per cent of the tasks had started after so many milliseconds."""
    with _picture(folder / "w4-latency.svg", "from enqueue to start, ms", "% of the tasks") as axes:
        for name, series in section["series"].items():
            latencies = series.get("latencies", [])
            percents = [(i + 1) / len(latencies) * 100 for i in range(len(latencies))]
            axes.plot(latencies, percents, label=name)
        axes.set_xscale("log")
    yield "w4-latency.svg"


def _shapes(section: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Throughput by what else is in the table."""
    rows = section["rows"]
    with _picture(folder / "w7-shapes.svg", "tasks/s", "") as axes:
        axes.barh(list(rows), [row["medians"]["rate"] for row in rows.values()])
        axes.invert_yaxis()
    yield "w7-shapes.svg"


def _over_time(section: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Tasks that ended in each second, with the old snapshot and without."""
    for kind, name in (("churn", "w8-churn.svg"), ("pace", "w8-pace.svg")):
        found = {row: series[kind] for row, series in section["series"].items() if kind in series}
        if found:
            with _picture(folder / name, "seconds", "tasks/s") as axes:
                for row, points in found.items():
                    axes.plot([second for second, _ in points], [tasks for _, tasks in points], label=row)
                axes.set_ylim(bottom=0)
            yield name


@contextmanager
def _picture(path: Path, across: str, up: str) -> Iterator[Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})


_DRAWERS: dict[str, tuple[Callable[[Mapping[str, Any], Path], Iterator[str]], ...]] = {
    "W4": (_latencies,),
    "W7": (_shapes,),
    "W8": (_over_time,),
}
