"""A run: every contender in every workload, in turn, round after round; what comes out is plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

from psycopg import Error as DatabaseError

from benchmarks import machine, targets
from benchmarks.contender import Contender
from benchmarks.environments import NotInstalled
from benchmarks.measure import medians
from benchmarks.ours import OURS
from benchmarks.process import DriverFailed
from benchmarks.progress import Progress
from benchmarks.server import Server
from benchmarks.trial import Lane
from benchmarks.workloads.workload import Outcome, Scale, Workload


class Section(TypedDict):
    """What is kept of one workload: this is what `results.json` and `--json` hold."""

    workload: str
    title: str
    measures: str
    prediction: str
    predicted: dict[str, float]
    published: dict[str, dict[str, float]]
    primary: str
    metrics: list[dict[str, Any]]
    date: str
    rounds: int
    quick: bool
    machine: dict[str, str]
    versions: dict[str, str]
    server: dict[str, str]
    contenders: dict[str, str]
    rows: dict[str, dict[str, Any]]
    failed: dict[str, str]
    targets: list[dict[str, Any]]
    series: dict[str, dict[str, list[Any]]]


class Run:
    """Contenders on one server.

    Args:
        contenders: ours, the limit and the peers, in the order of the table.
        rounds: how often each is measured.
    """

    def __init__(
        self, server: Server, contenders: Sequence[Contender], rounds: int, scale: Scale, progress: Progress
    ) -> None:
        self._server, self._contenders, self._rounds = server, contenders, rounds
        self._scale, self._progress = scale, progress
        self._lanes: dict[str, Lane] = {}
        #: Why a contender cannot take part at all.
        self._out: dict[str, str] = {}
        self.machine, self.versions = machine.describe(server.data), machine.versions(server.version())

    def sections(self, workloads: Sequence[Workload]) -> Iterator[Section]:
        """Measure one workload after the other."""
        for workload in workloads:
            yield self._section(workload)

    def _section(self, workload: Workload) -> Section:
        rounds: dict[str, list[dict[str, float]]] = {}
        failed: dict[str, str] = {}
        series: dict[str, dict[str, list[Any]]] = {}
        for number in range(self._rounds):
            for part, contender in steps(workload, self._contenders, self._scale, number):
                row = workload.row(contender, part)
                self._progress.step(f"{workload.name} round {number + 1}: {row} {part if part != row else ''}")
                if row not in failed:
                    try:
                        outcome = self._measure(workload, contender, part)
                    except (DriverFailed, NotInstalled, DatabaseError, OSError, ValueError) as error:
                        failed[row] = self._complaint(row, error)
                    else:
                        _keep(rounds.setdefault(row, []), number, outcome)
                        series.setdefault(row, {}).update(outcome.series)
                self._progress.step_done()
        return self._described(workload, rounds, failed, series)

    def _measure(self, workload: Workload, contender: Contender, part: str) -> Outcome:
        name = contender.name
        if name in self._out:
            raise NotInstalled(self._out[name])
        if name not in self._lanes:
            try:
                self._lanes[name] = Lane(self._server, contender)
            except (DriverFailed, NotInstalled) as error:
                self._out[name] = str(error)
                raise
        return workload.measure(self._lanes[name], part, self._scale, self._progress.told)

    def _complaint(self, row: str, error: Exception) -> str:
        reason = " ".join(str(error).split()) or type(error).__name__
        self._progress.say(f"{row} failed: {reason}")
        for line in getattr(error, "tail", "").splitlines():
            self._progress.say(f"    {line}")
        return reason

    def _described(
        self, workload: Workload, rounds: dict[str, Any], failed: dict[str, str], series: dict[str, Any]
    ) -> Section:
        figures = {row: _folded(workload, each) for row, each in rounds.items()}
        ours = figures.get(OURS.name, {})
        taking = {contender for part in workload.parts(self._scale) for contender in self._contenders
                  if workload.takes(contender, part)}  # fmt: skip
        return {
            "workload": workload.name,
            "title": workload.title,
            "measures": workload.measures,
            "prediction": workload.prediction,
            "predicted": dict(workload.predicted),
            "published": {row: dict(figures) for row, figures in workload.published.items()},
            "primary": workload.primary,
            "metrics": [vars(metric) for metric in workload.metrics],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": self._rounds,
            "quick": self._scale.quick,
            "machine": self.machine,
            "versions": self.versions,
            "server": self._server.settings(),
            "contenders": {each.name: _settings(each) for each in self._contenders if each in taking},
            "rows": {
                row: {"medians": figures[row], "rounds": rounds[row], "ratios": _ratios(ours, figures[row])}
                for row in rounds
            },
            "failed": failed,
            "targets": [targets.judge(target, figures).as_dict() for target in workload.targets],
            "series": series,
        }


def steps(
    workload: Workload, contenders: Sequence[Contender], scale: Scale, number: int
) -> Iterator[tuple[str, Contender]]:
    """What is measured in round `number`, from 0: all contenders one after the other, part by part."""
    for part in workload.parts(scale):
        if number == 0 or not workload.is_once(part):
            for contender in contenders:
                if workload.takes(contender, part):
                    yield part, contender


def count_steps(workloads: Sequence[Workload], contenders: Sequence[Contender], rounds: int, scale: Scale) -> int:
    """How many measurements a run is made of."""
    return sum(1 for each in workloads for n in range(rounds) for _ in steps(each, contenders, scale, n))


def _keep(rounds: list[dict[str, float]], number: int, outcome: Outcome) -> None:
    while len(rounds) <= number:
        rounds.append({})
    rounds[number] |= outcome.figures


def _folded(workload: Workload, rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    folded = medians(rounds)
    for metric in workload.metrics:
        if metric.worst and metric.name in folded:
            folded[metric.name] = max(each[metric.name] for each in rounds if metric.name in each)
    return folded


def _ratios(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """Our figure as a multiple of theirs."""
    return {name: ours[name] / theirs[name] for name in theirs if name in ours and theirs[name]}


def _settings(contender: Contender) -> str:
    packages = ", ".join(contender.requirements)
    return f"{packages}; {contender.settings}" if packages else contender.settings
