"""What a process has counted since it began, as families of metrics. Counters are read, not kept, here: `meter` and a
worker's `stats.Recorder` have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from django_dhara import __version__, meter, stats
from django_dhara.worker import Worker
from django_dhara.worker.ledger import Glance

_PAIR = ("backend", "queue", "function")
#: Of the finer buckets of the statistics each fourth, from 1 ms to 19 hours: each step is a factor of four.
_BOUNDS = tuple(range(0, 54, 4))

#: Metric, its help, and what the Recorder calls it.
_COUNTED = (
    ("dhara_tasks_completed", "Runs that ended well; each ended its task.", "completed"),
    ("dhara_runs_failed", "Runs that ended in an error or were overdue.", "failed"),
    ("dhara_tasks_dead", "Tasks that ended DEAD.", "dead"),
    (
        "dhara_tasks_canceled",
        "Tasks whose run was canceled; not those that never ran.",
        "canceled",
    ),
    ("dhara_runs_snoozed", "Runs that asked to run again later.", "snoozed"),
    ("dhara_runs_interrupted", "Runs that were cut off because their worker stopped.", "interrupted"),
)


class ProcessFamilies(Collector):
    """Of any process: what it has enqueued."""

    def collect(self) -> Iterator[Metric]:
        yield of_counts("dhara_tasks_enqueued", "Tasks whose enqueue was committed by this process.", meter.ENQUEUED)

    def describe(self) -> Iterable[Metric]:
        return ()


class WorkerFamilies(Collector):
    """Of a worker process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def describe(self) -> Iterable[Metric]:
        """Nothing that the registry would compare with others."""
        return ()

    def collect(self) -> Iterator[Metric]:
        glance = self._worker.glance()
        yield from _of_runs(glance.totals)
        yield of_counts("dhara_tasks_rescued", "Tasks of lost workers that the reaper here took back.", meter.RESCUED)
        yield of_counts("dhara_leases_lost", "Runs whose task had gone to somebody else.", meter.LEASES_LOST)
        yield from self._of_process(glance)
        yield of_histogram("dhara_claim_tasks", "Tasks that one claim brought.", meter.CLAIM_TASKS)
        yield of_histogram("dhara_claim_seconds", "How long a claim took.", meter.CLAIM_SECONDS)
        yield of_histogram("dhara_settle_runs", "Runs that were settled by one statement.", meter.SETTLE_RUNS)
        yield of_histogram("dhara_settle_seconds", "How long settling by one statement took.", meter.SETTLE_SECONDS)
        yield of_counts("dhara_database_errors", "Statements of the worker that failed.", meter.DATABASE_ERRORS)
        yield of_counts("dhara_database_connects", "Sessions that the worker has opened.", meter.CONNECTS)

    def _of_process(self, glance: Glance) -> Iterator[Metric]:
        worker, options = self._worker, self._worker.options
        about = {
            "backend": worker.wanted.backend,
            "name": worker.presence.name,
            "id": str(worker.id),
            "version": __version__,
        }
        yield gauge("dhara_worker_info", "Who this worker is.", tuple(about), {tuple(about.values()): 1})
        slots = {("plain",): options.slots, ("async",): options.async_concurrency}
        yield gauge("dhara_worker_slots", "Functions that can run at once.", ("kind",), slots)
        load = glance.load
        inflight = {("running",): load.running, ("waiting",): load.waiting, ("ended",): load.ended}
        text = "Tasks in this worker: their function runs, they wait for a slot, or their end is not written yet."
        yield gauge("dhara_worker_inflight", text, ("state",), inflight)
        text = "Overdue functions on threads that cannot be stopped."
        yield gauge("dhara_worker_abandoned_threads", text, (), {(): load.abandoned})
        text = "Signals and lines of the log that wait for their receivers."
        yield gauge("dhara_worker_waiting_signals", text, (), {(): load.receivers})
        yield gauge("dhara_worker_draining", "1 while it stops.", (), {(): glance.is_draining})
        text = "Seconds since the control loop turned last."
        yield gauge("dhara_worker_silent_seconds", text, (), {(): glance.silent_seconds})
        yield gauge("dhara_database_up", "1 while the worker has its session.", (), {(): glance.has_database})


def _of_runs(totals: Mapping[tuple[str, str, str], stats.Counts]) -> Iterator[Metric]:
    for name, text, what in _COUNTED:
        family = CounterMetricFamily(name, text, labels=_PAIR)
        for pair, counts in totals.items():
            family.add_metric(pair, counts.counts.get(what, 0))
        yield family
    text = "From when a task was due until it was claimed."
    yield _of_times("dhara_task_wait_seconds", text, totals, lambda it: (it.wait_histogram, it.wait_seconds))
    text = "How long functions ran."
    yield _of_times("dhara_task_run_seconds", text, totals, lambda it: (it.run_histogram, it.run_seconds))


def _of_times(
    name: str,
    text: str,
    totals: Mapping[tuple[str, str, str], stats.Counts],
    of: Callable[[stats.Counts], tuple[Mapping[int, int], float]],
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_PAIR)
    for pair, counts in totals.items():
        histogram, seconds = of(counts)
        family.add_metric(pair, buckets=_buckets(histogram), sum_value=seconds)
    return family


def _buckets(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """Cumulative, by upper bound."""
    found: list[tuple[str, float]] = []
    for bound in _BOUNDS:
        number = sum(count for at, count in histogram.items() if at <= bound)
        found.append((_go(stats.upper_bound(bound)), number))
    return [*found, ("+Inf", sum(histogram.values()))]


def _go(bound: float) -> str:
    """A number as Prometheus writes it."""
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


def of_counts(name: str, text: str, counts: meter.Counts) -> Metric:
    """A counter of `meter`; without labels it is there before anything happened."""
    family = CounterMetricFamily(name, text, labels=counts.labels)
    for values, number in counts.all().items():
        family.add_metric(values, number)
    return family


def of_histogram(name: str, text: str, histogram: meter.Histogram) -> Metric:
    """A histogram of `meter`."""
    bounds, counts, total = histogram.sum()
    seen, found = 0, []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        seen += count
        found.append((_go(bound), float(seen)))
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets=found, sum_value=total)
    return family


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """A gauge with a value for each combination of labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family
