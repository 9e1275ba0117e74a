"""What a workload is: what it asks of a contender, what it predicts, and what has to come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.contender import Contender
from benchmarks.ours import BARE, OURS
from benchmarks.targets import Target
from benchmarks.trial import Lane, Told

#: The peers that are Django's own kind, and what most Django projects have instead.
DJANGO_PEERS = ("dj-queue", "django-tasks-db", "django-ox", "django-vtasks")
CELERY = "celery"
GRAPHILE = "graphile-worker"
PGQUEUER = "pgqueuer"
US, LIMIT = OURS.name, BARE.name


@dataclass(frozen=True)
class Metric:
    """A figure, and how it is shown.

    Args:
        digits: after the point.
        worst: the rounds' largest is what counts, not their median.
    """

    name: str
    title: str
    digits: int = 0
    worst: bool = False


@dataclass(frozen=True)
class Scale:
    """How much of everything: all of it, or a tenth for a look whether things work."""

    quick: bool = False
    long: bool = False

    def count(self, full: int, contender: Contender | None = None) -> int:
        """How many tasks: of `full`, the contender's share, and few if it has to be quick."""
        share = contender.slow if contender else 1.0
        return max(int(full * share * (0.1 if self.quick else 1.0)), min(full, 200))

    def seconds(self, full: float) -> float:
        return full / 10 if self.quick else full


@dataclass
class Outcome:
    """What one measurement gave: figures, and lists for the plots."""

    figures: dict[str, float]
    series: dict[str, list[Any]] = field(default_factory=dict)


class Workload(ABC):
    """One workload. Its parts are measured one after the other, each with all contenders in turn."""

    name: ClassVar[str]
    title: ClassVar[str]
    #: One sentence: what it measures.
    measures: ClassVar[str]
    #: Said before the run, in words and in figures of our row.
    prediction: ClassVar[str]
    predicted: ClassVar[Mapping[str, float]]
    metrics: ClassVar[tuple[Metric, ...]]
    targets: ClassVar[tuple[Target, ...]]
    #: Figures that others have published, by row: shown beside ours, and compared with nothing.
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    #: The figure by which rows are compared with ours.
    primary: ClassVar[str]

    def parts(self, scale: Scale) -> tuple[str, ...]:
        """What it consists of."""
        return ("",)

    def takes(self, contender: Contender, part: str) -> bool:
        """Is this contender measured in this part?"""
        return contender.name != LIMIT

    def is_once(self, part: str) -> bool:
        """Is it measured in the first round only, because it takes so long?"""
        return False

    def row(self, contender: Contender, part: str) -> str:
        """The row of the table."""
        return contender.name

    @abstractmethod
    def measure(self, lane: Lane, part: str, scale: Scale, told: Told) -> Outcome:
        """Measure one contender once.

        Args:
            told: is told how far it is, from 0 to 1.

        Raises:
            DriverFailed
        """
