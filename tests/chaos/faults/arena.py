"""What faults act upon, and how they say what they did."""

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

FAULTS = {}


def fault(name):
    """Make a function of an `Arena` and a random generator known under a name."""

    def named(function):
        FAULTS[name] = function
        return function

    return named


@dataclass
class Arena:
    """The run, as a fault sees it.

    Args:
        ledger: where faults say what they did.
        ends: set when the load is over: faults that last look at it.
        pair: the server and its standby.
    """

    plan: Any
    server: Any
    fleet: Any
    ledger: Any
    ends: Event
    proxy: Any = None
    pooler: Any = None
    pair: Any = None

    @contextmanager
    def during(self, kind, **fields):
        """The time of a fault.

        Args:
            down: nobody can reach the database.
            through_proxy: nobody who goes through the proxy can.
        """
        self.ledger.write("fault", kind=kind, **fields)
        try:
            yield
        finally:
            self.ledger.write("heal", kind=kind, **fields)

    def witness(self, code, **proof):
        """It did harm, and this is how one knows."""
        self.ledger.write("witness", code=code, **proof)

    def pause(self, seconds):
        """Let a fault last, but not beyond the load."""
        self.ends.wait(seconds)
