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
        names, weights = list(lane.faults), list(lane.faults.values())
        while not self._arena.ends.wait(draw.expovariate(1 / lane.gap)):
            [name] = draw.choices(names, weights)
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
