"""The workloads, by name."""

from benchmarks.workloads.drain import W1, W5, W10
from benchmarks.workloads.enqueue import W2, W3
from benchmarks.workloads.growth import W7
from benchmarks.workloads.pages import W11
from benchmarks.workloads.posts import W9
from benchmarks.workloads.quiet import W4, W6
from benchmarks.workloads.snapshot import W8
from benchmarks.workloads.workload import Workload

WORKLOADS: dict[str, Workload] = {
    each.name: each for each in (W1(), W2(), W3(), W4(), W5(), W6(), W7(), W8(), W9(), W10(), W11())
}
