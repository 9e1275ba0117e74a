"""One contender in one fresh database: its driver is run, and what happened is read from the database."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import psycopg

from benchmarks.contender import Contender, Count
from benchmarks.environments import prepare
from benchmarks.process import DriverFailed, Process
from benchmarks.server import Server

#: What drivers write their times into.
_TABLES = """
    CREATE TABLE bench_call (seconds double precision);
    CREATE TABLE bench_sent (i integer, at double precision);
    CREATE TABLE bench_started (i integer, at double precision);
"""
_SETUP_SECONDS, _FILL_SECONDS = 120.0, 900.0
#: A queue of which nothing ends for so long does not work.
_STALL_SECONDS = 60.0
#: Counting takes a tenth of one session's time at most, and is fine enough for the end of a drain.
_SHARE, _PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS = 10, 0.005, 0.5

Told = Callable[[float], None]


class Counters(NamedTuple):
    """What the server has counted so far: in this database, and of WAL also in all (autovacuum's, for one)."""

    statements: float
    commits: float
    wal: float
    full_pages: float
    wal_of_server: float


class Lane:
    """A contender made ready: installed, and with a template of its database.

    Raises:
        NotInstalled, DriverFailed
    """

    def __init__(self, server: Server, contender: Contender) -> None:
        self.server, self.contender = server, contender
        self.command, self.variables = prepare(contender)
        self.template = self._name("template")
        self._made = 0
        server.create(self.template)
        with psycopg.connect(**self._parameters(self.template)) as connection:
            connection.execute(_TABLES)
        with ExitStack() as stack:
            Trial(self, self.template, "", stack).run("setup", seconds=_SETUP_SECONDS)
        server.freeze(self.template)

    @contextmanager
    def trial(self, workload: str, template: str = "") -> Iterator[Trial]:
        """A copy of the template, dropped at the end."""
        self._made += 1
        database = self._name(str(self._made))
        self.server.create(database, template or self.template)
        try:
            with ExitStack() as stack:
                self.server.checkpoint()
                yield Trial(self, database, workload, stack)
        finally:
            self.server.drop(database)

    def further_template(self, name: str, statements: Sequence[str]) -> str:
        """A further template: this contender's with `statements` run in it, when first asked for."""
        template = self._name(name)
        if template in self.server.made:
            return template
        self.server.create(template, self.template)
        with psycopg.connect(**self._parameters(template), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
        self.server.freeze(template)
        return template

    def _name(self, what: str) -> str:
        return re.sub(r"\W", "_", f"bench_{os.getpid()}_{self.contender.name}_{what}")

    def _parameters(self, database: str) -> dict[str, Any]:
        return {"conninfo": self.server.dsn, "dbname": database}


class Trial:
    """A contender's database, while it lasts.

    Args:
        stack: what is started here ends with it.
    """

    def __init__(self, lane: Lane, database: str, workload: str, stack: ExitStack) -> None:
        self._lane, self._stack, self.database = lane, stack, database
        self.variables = {**lane.variables, **lane.server.environment(database), "BENCH_WORKLOAD": workload}
        if lane.contender.needs_redis:
            from benchmarks.peers.redis import redis

            self.variables["BENCH_REDIS"] = stack.enter_context(redis())
        self._session: psycopg.Connection[Any] | None = None
        stack.callback(self._let_go)
        self._asked = 0

    # ------------------------------------------------------------------------------------------------ the driver

    def run(self, *words: object, seconds: float = _FILL_SECONDS) -> None:
        """Run the driver to its end."""
        with self.start(*words) as process:
            process.finish(seconds)

    def start(self, *words: object) -> Process:
        """Start the driver; it is ended with the trial at the latest."""
        return Process(self._lane.command, [str(word) for word in words], self.variables)

    @contextmanager
    def workers(self, count: int, slots: int, *flags: str) -> Iterator[list[Process]]:
        """So many worker processes; they are asked to end when the block does."""
        with ExitStack() as stack:
            workers = [stack.enter_context(self.start("worker", "--slots", slots, *flags)) for _ in range(count)]
            yield workers
            for worker in workers:
                worker.check()
                worker.stop()

    # ------------------------------------------------------------------------------------------- what became of it

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the database, on a session of the suite's own."""
        if self._session is None:
            parameters = {"conninfo": self._lane.server.dsn, "dbname": self.database}
            self._session = self._stack.enter_context(psycopg.connect(**parameters, autocommit=True))
        self._asked += 1
        cursor = self._session.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def remaining(self) -> int:
        """Tasks that are not finished."""
        return self._count(self._lane.contender.remaining)

    def done(self) -> int | None:
        """Tasks that ended in success, if the contender keeps them."""
        return self._count(self._lane.contender.done) if self._lane.contender.done else None

    def _count(self, count: Count) -> int:
        return int(self.query(count)[0][0]) if isinstance(count, str) else int(count(self.variables))

    def drain(
        self, workers: Sequence[Process], told: Told, left: Callable[[], float] | None = None
    ) -> list[tuple[float, float]]:
        """Wait until nothing remains; return how that went, as samples of (time, remaining).

        Args:
            told: is told which share is done, from 0 to 1.
            left: what to ask instead of `remaining`.

        Raises:
            DriverFailed: a worker ended, or does nothing.
        """
        samples: list[tuple[float, float]] = []
        moved = time.monotonic()
        while not samples or samples[-1][1] > 0:
            at = time.monotonic()
            now = float((left or self.remaining)())
            if not samples or now < min(samples[-1][1], samples[0][1]):
                moved = at
            samples.append((at, now))
            if at - moved > _STALL_SECONDS:
                raise workers[0].failure(f"{now:g} tasks are left, and none has ended for {_STALL_SECONDS:g} s")
            for worker in workers:
                worker.check()
            told(1 - now / max(samples[0][1], 1))
            time.sleep(min(max((time.monotonic() - at) * _SHARE, _PAUSE_MIN_SECONDS), _PAUSE_MAX_SECONDS))
        return samples

    def await_ready(self, workers: Sequence[Process], told: Told) -> None:
        """Give the workers one task and wait until it is done."""
        self.run("fill", "noop", 1)
        self.drain(workers, told)

    def counters(self) -> Counters:
        """What the server has counted, less what was asked here. Sessions that ended are counted in full; take it
        when the workers have ended."""
        self._let_go()
        [(statements, commits, *wal)] = self._lane.server.query(
            """
            SELECT coalesce(sum(calls), 0)::float8, pg_stat_get_db_xact_commit(database.oid)::float8,
                   coalesce(sum(statement.wal_bytes), 0)::float8, coalesce(sum(statement.wal_fpi), 0)::float8,
                   (SELECT wal_bytes FROM pg_stat_wal)::float8
            FROM pg_database AS database LEFT JOIN pg_stat_statements AS statement ON statement.dbid = database.oid
            WHERE database.datname = %s GROUP BY database.oid
            """,
            [self.database],
        )
        return Counters(statements - self._asked, commits - self._asked, *wal)

    def mean_ms(self, pattern: str) -> float:
        """What the most frequent statement LIKE `pattern` took on average, by the server's own clock."""
        rows = self._lane.server.query(
            """
            SELECT mean_exec_time FROM pg_stat_statements
            WHERE query LIKE %s AND dbid = (SELECT oid FROM pg_database WHERE datname = %s)
            ORDER BY calls DESC LIMIT 1
            """,
            [pattern, self.database],
        )
        return float(rows[0][0]) if rows else math.nan

    def _let_go(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def no_progress(share: float) -> None:
    """For those who do not want to be told."""


__all__ = ["Counters", "DriverFailed", "Lane", "Trial", "no_progress"]
