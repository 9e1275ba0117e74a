"""The functions of the contract (`benchmarks/README.md`) as tasks."""

import asyncio
import time

from benchmarks.peers.shared import harness
from django_dhara import task


@task
def noop(i):
    """Return at once."""


@task
def sleep(i):
    """Wait as for I/O: 50 to 200 ms."""
    time.sleep(harness.nap(i))


@task
async def asleep(i):
    """Wait as long as `sleep`, on the event loop."""
    await asyncio.sleep(harness.nap(i))


@task
def stamp(i):
    """Write down when it started."""
    harness.stamp(i)


@task
def hold(i):
    """Hold a slot for 10 s if it is the first."""
    time.sleep(harness.hold(i))
