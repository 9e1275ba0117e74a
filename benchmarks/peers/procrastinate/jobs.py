"""The app and its tasks: a module of their own, as procrastinate wants it."""

import asyncio

import harness
import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=harness.DSN, max_size=10))


@app.task(name="noop")
async def noop(i):
    """Do nothing."""


@app.task(name="sleep")
async def sleep(i):
    """Stand for input and output."""
    await asyncio.sleep(harness.nap(i))


@app.task(name="hold")
async def hold(i):
    """Hold a slot, once."""
    await asyncio.sleep(harness.hold(i))


@app.task(name="stamp")
async def stamp(i):
    """Write down the time."""
    await harness.astamp(i)
