"""dj-queue: threads in one process, woken by NOTIFY; no dispatcher, as nothing is scheduled."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import django_project
import harness

_CHUNK = 1000
#: What is claimed ahead for each thread matters for short tasks only; the default is 2.
_SHORT = {"threads": 20, "prefetch_multiplier": 20}

django_project.configure("dj_queue", "dj_queue.backend.DjQueueBackend", mode="async")

from django.conf import settings


def many(task, numbers):
    """Enqueue in bulk."""
    for first in range(0, len(numbers), _CHUNK):
        task.get_backend().enqueue_all([(task, [i], {}) for i in numbers[first : first + _CHUNK]])


def worker(slots):
    """Run until SIGTERM."""
    settings.TASKS["default"]["OPTIONS"]["workers"] = [_SHORT if harness.SHORT else {"threads": slots}]
    django_project.manage("dj_queue", "--only-work")


if __name__ == "__main__":
    harness.main(django_project.setup, django_project.producer(many), worker)
