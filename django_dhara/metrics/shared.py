"""One count for the several processes of a site. Each scrape reaches one of them, and would see its own count only.

prometheus-client has an answer: with `PROMETHEUS_MULTIPROC_DIR` set, counters are kept in files that every process
reads. Then what this process enqueues is counted there as well, from its start on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from django_dhara import meter

NAME = "dhara_tasks_enqueued"


def is_on() -> bool:
    return bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))


def install() -> None:
    """Count in the files, too, if there are any; once in a process."""
    if is_on() and meter.ENQUEUED.also is None:
        text = "Tasks whose enqueue was committed by the processes of this site."
        counter = Counter(NAME, text, meter.ENQUEUED.labels, registry=CollectorRegistry())
        meter.ENQUEUED.also = lambda values, amount: counter.labels(*values).inc(amount)


class SharedFamilies(Collector):
    """What all processes of the site have enqueued, from their files; other counters there are not ours to tell."""

    def collect(self) -> Iterator[Metric]:
        for family in MultiProcessCollector(None).collect():  # type: ignore[no-untyped-call]
            if family.name == NAME:
                yield family
