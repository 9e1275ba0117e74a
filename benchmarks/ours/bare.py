"""The limit: what PostgreSQL does at most with our statements and our rows, when nothing of ours stands in between."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID, uuid4

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.ours.settings")

import django

django.setup()

import psycopg
from django.core.management import call_command

from benchmarks.peers.shared import harness
from django_dhara import lifecycle
from django_dhara.enqueue import uuid7
from django_dhara.lifecycle import Claim, Ending, Settled, Wanted
from django_dhara.states import Completed

_BATCH = 500
_LEASE_SECONDS = 30.0
#: The columns that an enqueue fills, in the order of `row`.
_COLUMNS = (
    "id", "backend", "function", "queue", "priority", "run_at", "payload", "payload_hash", "idempotency_key",
    "max_attempts", "timeout", "metadata", "parent_id", "state", "enqueued_at",
)  # fmt: skip


def connect() -> psycopg.Connection[Any]:
    """A session as the worker has it: autocommit, statements prepared."""
    return psycopg.connect(harness.DSN, autocommit=True)


class Loop:
    """Claim and settle, nothing else."""

    def __init__(self, connection: psycopg.Connection[Any], worker: UUID, batch: int) -> None:
        self._connection, self._worker, self._batch = connection, worker, batch

    def claim(self) -> list[Claim]:
        """Claim a batch."""
        return lifecycle.claim(
            self._execute, "default", Wanted("default"), self._worker,
            limit=self._batch, suspects=1, lease_seconds=_LEASE_SECONDS,
        ).claims  # fmt: skip

    def settle(self, claims: list[Claim]) -> None:
        """Complete what was claimed."""
        endings = [Ending(claim.id, claim.lease, Completed("null"), 0.0) for claim in claims]
        while endings:
            answers = lifecycle.settle(self._execute, self._worker, endings, max_interrupted=20)
            # Rows that another's claim is just looking at come again.
            endings = [ending for ending, answer in zip(endings, answers, strict=True) if answer == Settled(None)]

    def _execute(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, parameters).fetchall()


def worker(slots: int) -> None:
    """Drain until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with connect() as connection:
        loop = Loop(connection, uuid4(), _BATCH)
        while True:
            claims = loop.claim()
            loop.settle(claims)
            if not claims:
                time.sleep(0.01)


class Producer:
    """Writes the rows that an enqueue writes."""

    _PLACES = ", ".join(["%s"] * len(_COLUMNS))
    _INSERT = f"INSERT INTO dhara_task ({', '.join(_COLUMNS)}) VALUES ({_PLACES})"
    _COPY = f"COPY dhara_task ({', '.join(_COLUMNS)}) FROM STDIN"

    def __enter__(self) -> Self:
        self._connection = connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def one(self, function: str, i: int) -> None:
        """Insert one row."""
        self._connection.execute(self._INSERT, next(rows(function, i, 1)))

    def many(self, function: str, count: int) -> None:
        """Insert `count` rows."""
        with self._connection.cursor() as cursor, cursor.copy(self._COPY) as copy:
            for row in rows(function, 0, count):
                copy.write_row(row)


def rows(function: str, first: int, count: int) -> Iterator[tuple[Any, ...]]:
    """The rows of calls of a function, from call `first` on."""
    path, at = f"benchmarks.ours.tasks.{function}", datetime.now(UTC)
    for i in range(first, first + count):
        payload = json.dumps({"args": [i], "kwargs": {}})
        yield uuid7(), "default", path, "default", 0, at, payload, None, None, 5, None, None, None, "PENDING", at


def setup() -> None:
    """Make the tables."""
    call_command("migrate", verbosity=0)


if __name__ == "__main__":
    harness.main(setup, Producer, worker)
