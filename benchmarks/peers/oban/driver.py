"""Oban for Python as its command line runs it: uvloop, a pool of connections, one queue."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import uvloop
from oban import Oban, job
from oban.schema import install

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import harness

_CHUNK = 1000


@job()
async def noop(i):
    """Do nothing."""


@job()
async def sleep(i):
    """Stand for input and output."""
    await asyncio.sleep(harness.nap(i))


@job()
async def hold(i):
    """Hold a slot, once."""
    await asyncio.sleep(harness.hold(i))


@job()
async def stamp(i):
    """Write down the time."""
    await harness.astamp(i)


_FUNCTIONS = {"noop": noop, "sleep": sleep, "hold": hold, "stamp": stamp}


class Producer:
    """Enqueues through one instance."""

    def __init__(self, oban):
        self.oban = oban

    async def one(self, function, i):
        """Enqueue one job."""
        await self.oban.enqueue(_FUNCTIONS[function].new(i))

    async def many(self, function, count):
        """Enqueue many by a call."""
        for first in range(0, count, _CHUNK):
            numbers = range(first, min(first + _CHUNK, count))
            await self.oban.enqueue_many(_FUNCTIONS[function].new(i) for i in numbers)


@contextlib.asynccontextmanager
async def producer():
    """Connect."""
    pool = await Oban.create_pool(harness.DSN)
    async with Oban(pool=pool) as oban:
        yield Producer(oban)
    await pool.close()


def setup():
    """Make the tables."""
    uvloop.run(_install())


async def _install():
    pool = await Oban.create_pool(harness.DSN)
    await install(pool)
    await pool.close()


def worker(slots):
    """Run until SIGTERM."""
    uvloop.run(_work(500 if harness.SHORT else slots))


async def _work(limit):
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    pool = await Oban.create_pool(harness.DSN)
    async with Oban(pool=pool, queues={"default": limit}):
        await stop.wait()
    await pool.close()


if __name__ == "__main__":
    harness.main(setup, producer, worker, run=uvloop.run)
