"""What a run was made on: the machine, and the versions of what matters."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
import time
from pathlib import Path

import django
import psycopg

import django_dhara
from benchmarks.environments import ROOT
from benchmarks.measure import percentile

_FLUSHES = 200


def describe(data: str) -> dict[str, str]:
    """The machine; `data` is a folder on the disk of the database, empty if that is elsewhere."""
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f} when the run began",
        "flush": f"{_flush_ms(data):.2f} ms (p50 of fdatasync, 8 kB)" if data else "unknown",
    }


def versions(server: str) -> dict[str, str]:
    """What runs here; `server` is PostgreSQL's version."""
    return {
        "django_dhara": f"{django_dhara.__version__} ({_commit()})",
        "PostgreSQL": server,
        "Python": platform.python_version(),
        "Django": django.get_version(),
        "psycopg": psycopg.__version__,
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _flush_ms(folder: str) -> float:
    seconds = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(8192), 0)
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    return percentile(seconds, 50) * 1000


def _commit() -> str:
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or "no commit"
