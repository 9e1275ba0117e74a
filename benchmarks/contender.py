"""A contender: one queue under test, and how to drive it.

The suite knows a queue only through this description and the command line
of its driver (``benchmarks/README.md``): it runs the driver in the
contender's own environment and reads what happened from the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Ecosystem = Literal["ours", "python", "node"]
#: SQL that gives one number, or, for a queue outside PostgreSQL, a function of the driver's environment variables.
Count = str | Callable[[Mapping[str, str]], int]


@dataclass(frozen=True)
class Contender:
    """One queue under test.

    Args:
        name: What the command line and the tables call it.
        driver: The driver's command, relative to ``benchmarks/``; the first
            word is ``"{python}"`` (the interpreter of the contender's own
            environment) or ``"node"``.
        requirements: Pinned packages of its environment: for pip, or for
            npm when ``ecosystem`` is ``"node"``.
        ecosystem: ``"ours"`` runs in the interpreter of the suite.
        remaining: The tasks not finished yet.
        settings: One line for ``RESULTS.md``: what it was run with.
        needs_redis: Whether a Redis server is started for it, empty for each
            measurement, with its URL in ``BENCH_REDIS``.
        slow: The share of a workload's tasks that it is given, so that a
            slow queue does not take an hour.
        done: The tasks that ended in success, counted as ``remaining`` is.
            Empty: the queue does not keep it.
    """

    name: str
    driver: tuple[str, ...]
    requirements: tuple[str, ...]
    ecosystem: Ecosystem
    remaining: Count
    settings: str
    needs_redis: bool = False
    slow: float = 1.0
    done: Count = ""
