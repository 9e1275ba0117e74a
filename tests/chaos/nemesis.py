"""When which fault strikes: one thread a lane, each with a random generator of its own, so that the seed fixes both."""

import random
import signal
import threading
import traceback
from contextlib import suppress

from tests.chaos.faults import FAULTS


class Nemesis:
    """Lets faults strike until it is told to end."""

    def __init__(self, arena, lanes):
        self._arena = arena
        self._threads = [
            threading.Thread(target=self._serve, args=(lane, random.Random(f"{arena.plan.seed} lane {number}")))
            for number, lane in enumerate(lanes)
        ]
        self.failures = []

    def start(self):
        for thread in self._threads:
            thread.start()

    def _serve(self, lane, draw):
        for name in _order(lane.faults, draw):
            if self._arena.ends.wait(draw.expovariate(1 / lane.gap)):
                return
            try:
                FAULTS[name](self._arena, draw)
            except Exception:
                self._failed(name)

    def _failed(self, name):
        """Two lanes can get in each other's way, such as a session that is asked while the server is down."""
        self._arena.ledger.write("fault failed", name=name, why=traceback.format_exc(limit=3))
        self.failures.append(name)

    def end(self):
        """Wait for the last faults; each puts right what it did."""
        self._arena.ends.set()
        for thread in self._threads:
            thread.join()


def _order(faults, draw):
    """Without end: each of them once, then the rest of their weights, so that a short run has them all."""
    while True:
        firsts, rest = list(faults), [name for name, weight in faults.items() for _ in range(weight - 1)]
        draw.shuffle(firsts)
        draw.shuffle(rest)
        yield from firsts + rest


def heal(arena):
    """Whatever a fault that failed may have left."""
    with suppress(Exception):
        arena.server.start()
    if arena.proxy is not None:
        arena.proxy.refuses, arena.proxy.delay = False, 0.0
        arena.proxy.thaw()
    for slot in arena.fleet.workers:
        with suppress(ProcessLookupError):
            slot.process.signal(signal.SIGCONT)
