"""pgqueuer over asyncpg with uvloop: the fastest of the drivers that it documents."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import harness

_CHUNK = 1000


class Producer:
    """Enqueues over one connection."""

    def __init__(self, queries):
        self.queries = queries

    async def one(self, function, i):
        """Enqueue one job."""
        await self.queries.enqueue(function, b"%d" % i)

    async def many(self, function, count):
        """Enqueue by lists, which become one INSERT each."""
        for first in range(0, count, _CHUNK):
            payloads = [b"%d" % i for i in range(first, min(first + _CHUNK, count))]
            await self.queries.enqueue([function] * len(payloads), payloads, [0] * len(payloads))


@contextlib.asynccontextmanager
async def producer():
    """Connect."""
    connection = await asyncpg.connect(harness.DSN)
    yield Producer(Queries(AsyncpgDriver(connection)))
    await connection.close()


def setup():
    """Make the tables, all of them logged."""
    uvloop.run(_install())


async def _install():
    async with producer() as each:
        await each.queries.install()


def worker(slots):
    """Run until SIGTERM."""
    uvloop.run(_work(slots))


async def _work(slots):
    queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(harness.DSN))
    _register(queue)
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, queue.shutdown.set)
    await queue.run(**_settings(slots))


def _settings(slots):
    if harness.SHORT:
        return {"batch_size": 100}
    # A limit has to be twice the batch at least. Jobs count until their log entries are written, a batch at a time, so
    # a larger batch leaves slots idle.
    return {"batch_size": 1, "max_concurrent_tasks": slots}


def _register(queue):
    @queue.entrypoint("noop")
    async def noop(job):
        pass

    @queue.entrypoint("sleep")
    async def sleep(job):
        await asyncio.sleep(harness.nap(int(job.payload)))

    @queue.entrypoint("hold")
    async def hold(job):
        await asyncio.sleep(harness.hold(int(job.payload)))

    @queue.entrypoint("stamp")
    async def stamp(job):
        await harness.astamp(int(job.payload))


if __name__ == "__main__":
    harness.main(setup, producer, worker, run=uvloop.run)
