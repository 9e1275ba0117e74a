"""The processes of a run. Those that die are started again, as a supervisor would; how each ended is written down."""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import sleep

from tests.workers.harness import Process, until


class Slot:
    """A place for one process: what runs there is replaced when it dies."""

    def __init__(self, name, words, env):
        self.name, self.words, self.env = name, words, env
        self.process = None

    @property
    def pid(self):
        return self.process.pid

    @property
    def is_worker(self):
        return self.name.startswith("worker")

    @property
    def children(self):
        """Child processes of a worker."""
        with suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []


class Fleet:
    """All processes of a run but the server.

    Args:
        ledger: gets an event for each start and each end.
        env: for all of them.
    """

    def __init__(self, ledger, folder, env):
        self._ledger, self._folder, self._env = ledger, folder, env
        self.slots = []
        self._keeps_up = True
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def add(self, name, *words, **env):
        slot = Slot(name, [sys.executable, *words], {**self._env, "CHAOS_ROLE": name, **env})
        self.slots.append(slot)

    def start(self):
        for slot in self.slots:
            self._start(slot)
        self._thread.start()

    @property
    def workers(self):
        return [slot for slot in self.slots if slot.is_worker]

    def _start(self, slot):
        prefix = slot.env.get("CHAOS_PREFIX", "").split()
        slot.process = Process([*prefix, *slot.words], self._folder / f"{slot.name}.log", **slot.env)
        self._ledger.write("started", slot=slot.name, pid=slot.pid)

    def _supervise(self):
        while self._keeps_up:
            with self._guard:
                for slot in self.slots if self._keeps_up else ():
                    self._look_at(slot)
            sleep(0.05)

    def _look_at(self, slot):
        if not slot.process.lives:
            self._note_end(slot)
            self._start(slot)

    def _note_end(self, slot):
        self._ledger.write("exit", slot=slot.name, pid=slot.pid, code=slot.process.popen.returncode)

    def stop(self, which, seconds):
        """SIGTERM to those that `which` chooses; true if all ended with 0 in time. They are not started again."""
        with self._guard:
            leaving = [slot for slot in self.slots if which(slot)]
            self.slots = [slot for slot in self.slots if not which(slot)]
        for slot in leaving:
            with suppress(ProcessLookupError):
                slot.process.signal(signal.SIGTERM)
            self._ledger.write("fault", kind="term", pids=[slot.pid], last=True)
        return [self._await_end(slot, seconds) for slot in leaving]

    def _await_end(self, slot, seconds):
        try:
            until(lambda: not slot.process.lives, seconds)
        except AssertionError:
            self._ledger.write("stuck", slot=slot.name, pid=slot.pid)
            slot.process.kill()
        self._note_end(slot)
        return slot.process.popen.returncode

    def end(self):
        """Kill whatever is left."""
        self._keeps_up = False
        if self._thread.is_alive():
            self._thread.join()
        for slot in self.slots:
            for pid in slot.children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            slot.process.kill()
