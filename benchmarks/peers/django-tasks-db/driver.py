"""django-tasks-db: its worker runs one task at a time, its backend enqueues one at a time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import django_project
import harness

django_project.configure("django_tasks_db", "django_tasks_db.DatabaseBackend")

from django.db import transaction


def many(task, numbers):
    """Enqueue all in one transaction, which spares a commit each."""
    with transaction.atomic():
        for i in numbers:
            task.enqueue(i)


def worker(slots):
    """Run until SIGTERM. Verbosity 0, or it logs each task."""
    pause = "0.1" if harness.WORKLOAD == "W4" else "1"
    django_project.manage("db_worker", "--verbosity", "0", "--no-startup-delay", "--interval", pause)


if __name__ == "__main__":
    harness.main(django_project.setup, django_project.producer(many), worker)
