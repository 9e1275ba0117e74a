"""What the Python drivers share: the command line of a driver, and the tables that the suite reads afterwards.

A driver gives `main` three things: how to set up, a *producer* (a context manager around what an application would keep
open, with `one(function, i)` and `many(function, count)`; of either colour, sync or async), and how to run a worker.
"""

import argparse
import asyncio
import logging
import os
import threading
import time

import psycopg

DSN = os.environ["BENCH_DSN"]
WORKLOAD = os.environ.get("BENCH_WORKLOAD", "")
#: Whether this workload's functions take next to no time, so that a worker may run as many at once as suits it.
SHORT = WORKLOAD in {"W1", "W4", "W6", "W7", "W8", "W10"}
_UNMEASURED = 50

_own = threading.local()
_places = asyncio.Semaphore(20)
_idle = []


def nap(i):
    """Return how long sleep(i) sleeps, in seconds: 50 to 200 ms, 125 ms on average."""
    return 0.050 + (i * 37 % 151) / 1000


def hold(i):
    """Return how long hold(i) sleeps, in seconds: the first one holds its slot for 10 s."""
    return 10 if i == 0 else 0


def stamp(i):
    """Write down when stamp(i) started, over a connection of this thread."""
    at = time.time()
    if not hasattr(_own, "connection"):
        _own.connection = psycopg.connect(DSN, autocommit=True)
    _own.connection.execute("INSERT INTO bench_started (i, at) VALUES (%s, %s)", (i, at))


async def astamp(i):
    """Write down when stamp(i) started, over one of as many connections as a worker with threads would have."""
    at = time.time()
    async with _places:
        connection = _idle.pop() if _idle else await psycopg.AsyncConnection.connect(DSN, autocommit=True)
        await connection.execute("INSERT INTO bench_started (i, at) VALUES (%s, %s)", (i, at))
        _idle.append(connection)


def main(setup, producer, worker, run=asyncio.run):
    """Do what the command line says.

    Args:
        setup: Called without arguments.
        producer: Called without arguments, returns the context manager.
        worker: Called with the number of slots; runs until SIGTERM.
        run: What runs the coroutine of an async producer.
    """
    logging.basicConfig(level=logging.WARNING)
    choice = _parser().parse_args()
    if choice.command == "setup":
        setup()
    elif choice.command == "worker":
        worker(choice.slots)
    else:
        opening = producer()
        run(_produce_async(opening, choice)) if hasattr(opening, "__aenter__") else _produce(opening, choice)


def _produce(opening, choice):
    with opening as producer:
        if choice.command == "fill":
            producer.many(choice.function, choice.count)
        elif choice.command == "bulk":
            _bulk(producer, choice.count)
        elif choice.command == "single":
            _single(producer, choice.count)
        else:
            _trickle(producer, choice.count, choice.rate)


async def _produce_async(opening, choice):
    async with opening as producer:
        if choice.command == "fill":
            await producer.many(choice.function, choice.count)
        elif choice.command == "bulk":
            await _bulk_async(producer, choice.count)
        elif choice.command == "single":
            await _single_async(producer, choice.count)
        else:
            await _trickle_async(producer, choice.count, choice.rate)


def _bulk(producer, count):
    began = time.perf_counter()
    producer.many("noop", count)
    save("bench_call (seconds)", [(time.perf_counter() - began,)])


async def _bulk_async(producer, count):
    began = time.perf_counter()
    await producer.many("noop", count)
    save("bench_call (seconds)", [(time.perf_counter() - began,)])


def _single(producer, count):
    calls = []
    for i in range(_UNMEASURED + count):
        began = time.perf_counter()
        producer.one("noop", i)
        calls.append((time.perf_counter() - began,))
    save("bench_call (seconds)", calls[_UNMEASURED:])


async def _single_async(producer, count):
    calls = []
    for i in range(_UNMEASURED + count):
        began = time.perf_counter()
        await producer.one("noop", i)
        calls.append((time.perf_counter() - began,))
    save("bench_call (seconds)", calls[_UNMEASURED:])


def _trickle(producer, count, rate):
    producer.one("noop", 0)  # Connects.
    sent, began = [], time.perf_counter()
    for i in range(count):
        time.sleep(max(0, began + i / rate - time.perf_counter()))
        sent.append((i, time.time()))
        producer.one("stamp", i)
    save("bench_sent (i, at)", sent)


async def _trickle_async(producer, count, rate):
    await producer.one("noop", 0)  # Connects.
    sent, began = [], time.perf_counter()
    for i in range(count):
        await asyncio.sleep(max(0, began + i / rate - time.perf_counter()))
        sent.append((i, time.time()))
        await producer.one("stamp", i)
    save("bench_sent (i, at)", sent)


def save(table, rows):
    places = ", ".join(["%s"] * len(rows[0]))
    with psycopg.connect(DSN) as connection:
        connection.cursor().executemany(f"INSERT INTO {table} VALUES ({places})", rows)


def _parser():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup")
    fill = commands.add_parser("fill")
    fill.add_argument("function", choices=["noop", "sleep", "stamp", "hold"])
    fill.add_argument("count", type=int)
    commands.add_parser("single").add_argument("count", type=int)
    commands.add_parser("bulk").add_argument("count", type=int)
    trickle = commands.add_parser("trickle")
    trickle.add_argument("count", type=int)
    trickle.add_argument("rate", type=float)
    worker = commands.add_parser("worker")
    worker.add_argument("--slots", type=int, required=True)
    worker.add_argument("--async", action="store_true", help="asked of queues that have both kinds; here there is one")
    return parser
