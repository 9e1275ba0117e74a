"""django-ox: threads in one process."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import django_project
import harness

django_project.configure("django_ox", "django_ox.backend.OxBackend")

from django_ox.bulk import enqueue_many


def many(task, numbers):
    """Enqueue in bulk."""
    enqueue_many(task, [((i,), {}) for i in numbers])


def worker(slots):
    """Run until SIGTERM. Verbosity 0, or it logs each task."""
    threads = 20 if harness.SHORT else slots
    pause = "0.1" if harness.WORKLOAD == "W4" else "1"
    django_project.manage("ox_worker", "--concurrency", str(threads), "--interval", pause, "--verbosity", "0")


if __name__ == "__main__":
    harness.main(django_project.setup, django_project.producer(many), worker)
