"""The driver of our contender: the commands of every driver, and those that only we can be asked for.

claims COUNT            claim COUNT times 100 tasks, settle them; the seconds of each claim go into bench_call (W7)
feed COUNT BACKLOG      enqueue COUNT calls of noop in bulk, never more than BACKLOG ahead of the worker (W8)
serve PORT              the site with the HTTP API, under gunicorn (W9)
post COUNT RATE PORT    post COUNT calls of sleep to that site, RATE each second (W9)
pace SECONDS RATE       enqueue RATE calls of noop each second, one by one, for SECONDS seconds (W8)
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Self
from uuid import uuid4

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.ours.settings")

import django

django.setup()

import psycopg
from django.core.management import call_command, execute_from_command_line

from benchmarks.ours import bare, posts, tasks
from benchmarks.ours.done import Done
from benchmarks.peers.shared import harness
from django_dhara import enqueue_many

#: Calls that one enqueue_many gets.
_CHUNK = 10_000
#: Those that `feed` sends at a time.
_MEAL = 2_000
_CLAIM = 100
#: Claims before those that count: a worker's statements are prepared once for its life.
_UNMEASURED = 10


class Producer:
    """Enqueues as an application does; the connection is Django's and stays open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def one(self, function: str, i: int) -> None:
        """Enqueue one call in a transaction of its own."""
        _function(function).enqueue(i)

    def many(self, function: str, count: int) -> None:
        """Enqueue `count` calls."""
        chosen = _function(function)
        for start in range(0, count, _CHUNK):
            enqueue_many([chosen.bind(i) for i in range(start, min(start + _CHUNK, count))])


def _function(name: str) -> Any:
    return tasks.asleep if name == "sleep" and os.environ.get("BENCH_WORKLOAD") == "W5 async" else getattr(tasks, name)


def setup() -> None:
    """Make the tables."""
    call_command("migrate", verbosity=0)


def worker(slots: int) -> None:
    """Run `manage.py dhara_worker` with so many threads or, for `--async`, coroutines."""
    flag = "--async-concurrency" if "--async" in sys.argv else "--concurrency"
    execute_from_command_line(["manage.py", "dhara_worker", flag, str(slots)])


def claims(count: str) -> None:
    """Time the claim where the table is as it is; settling in between is not timed."""
    seconds = []
    with bare.connect() as connection:
        loop = bare.Loop(connection, uuid4(), _CLAIM)
        for _ in range(_UNMEASURED + int(count)):
            began = time.perf_counter()
            claimed = loop.claim()
            seconds.append((time.perf_counter() - began,))
            loop.settle(claimed)
        connection.cursor().executemany("INSERT INTO bench_call VALUES (%s)", seconds[_UNMEASURED:])


def feed(count: str, backlog: str) -> None:
    """Keep the worker fed; how far it is comes from the index of finished tasks, each entry of which is read once."""
    producer, sent = Producer(), 0
    with psycopg.connect(harness.DSN, autocommit=True) as connection:
        done = Done(lambda statement: connection.execute(statement).fetchall())
        while sent < int(count):
            if sent - done.count() + _MEAL > int(backlog):
                time.sleep(0.02)
                continue
            producer.many("noop", min(_MEAL, int(count) - sent))
            sent += _MEAL


def pace(seconds: str, rate: str) -> None:
    """Enqueue at an even rate; what fell behind is made up for."""
    began = time.monotonic()
    for i in range(int(float(seconds) * float(rate))):
        time.sleep(max(0.0, began + i / float(rate) - time.monotonic()))
        tasks.noop.enqueue(i)


if __name__ == "__main__":
    own = {"claims": claims, "feed": feed, "pace": pace, "serve": posts.serve, "post": posts.post}
    if sys.argv[1] in own:
        own[sys.argv[1]](*sys.argv[2:])
    else:
        harness.main(setup, Producer, worker)
