"""procrastinate, asynchronous throughout, which its documentation recommends."""

import asyncio
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
import harness
from jobs import app

_CHUNK = 1000


class Producer:
    """Defers through the app's pool of connections."""

    async def one(self, function, i):
        """Defer one job."""
        await app.tasks[function].defer_async(i=i)

    async def many(self, function, count):
        """Defer many by a call."""
        for first in range(0, count, _CHUNK):
            jobs = [{"i": i} for i in range(first, min(first + _CHUNK, count))]
            await app.tasks[function].batch_defer_async(*jobs)


@contextlib.asynccontextmanager
async def producer():
    """Connect."""
    async with app.open_async():
        yield Producer()


def setup():
    """Make the tables."""
    asyncio.run(_install())


async def _install():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def worker(slots):
    """Run until SIGTERM."""
    app.run_worker(concurrency=10 if harness.SHORT else slots)


if __name__ == "__main__":
    harness.main(setup, producer, worker)
