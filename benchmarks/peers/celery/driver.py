"""Celery with Redis and no results, which nobody reads here: threads, late acknowledgement, much prefetched if short.

Late acknowledgement is what makes Celery run a task at least once, as the other queues do; it is also faster here.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

import celery

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import harness

app = celery.Celery("benchmark", broker=os.environ.get("BENCH_REDIS"))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=128 if harness.SHORT else 1,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(i):
    """Do nothing."""


@app.task(name="sleep")
def sleep(i):
    """Stand for input and output."""
    time.sleep(harness.nap(i))


@app.task(name="hold")
def hold(i):
    """Hold a slot, once."""
    time.sleep(harness.hold(i))


@app.task(name="stamp")
def stamp(i):
    """Write down the time."""
    harness.stamp(i)


class Producer:
    """Publishes over one connection."""

    def __init__(self, publisher):
        self.publisher = publisher

    def one(self, function, i):
        """Publish one message."""
        app.tasks[function].delay(i)

    def many(self, function, count):
        """Publish in pipelines."""
        with self.publisher.batch():
            for i in range(count):
                app.tasks[function].apply_async((i,), producer=self.publisher, retry=False)


@contextlib.contextmanager
def producer():
    """Connect."""
    with app.producer_or_acquire() as publisher:
        yield Producer(publisher)


def setup():
    """Nothing: Redis needs no schema."""


def worker(slots):
    """Run until SIGTERM."""
    threads = 20 if harness.SHORT else slots
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
    app.worker_main(["--quiet", "worker", "--pool=threads", f"--concurrency={threads}", *quiet])


if __name__ == "__main__":
    harness.main(setup, producer, worker)
