"""The history: what every process of a run saw, one event a line, in one file a process.

An event is one `os.write` on a descriptor that appends, so that a process may be killed at any moment, and it needs no
database. One machine has one CLOCK_MONOTONIC: the times of all processes are in one order.
"""

import json
import os
import sys
from pathlib import Path
from time import monotonic, time


class Ledger:
    """The events of this process; a fork gets a file of its own.

    Args:
        folder: of the run.
        role: what this process is, such as "worker".
    """

    def __init__(self, folder, role):
        self._folder, self._role = Path(folder), role
        self._pid = self._file = None

    def write(self, event, **fields):
        """Say that something happened now; returns the time, in seconds."""
        if self._pid != os.getpid():
            self._open()
        at = monotonic()
        self._append({"t": at, "e": event, "p": self._pid, **fields})
        return at

    def _open(self):
        self._pid = os.getpid()
        path = self._folder / f"{self._role}-{self._pid}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._append(
            {"t": monotonic(), "e": "hello", "p": self._pid, "role": self._role, "parent": os.getppid(), "wall": time()}
        )

    def _append(self, event):
        os.write(self._file, json.dumps(event, default=str, separators=(",", ":")).encode() + b"\n")


def read(folder):
    """All events of a run in the order in which they happened. A line that a kill cut off is left out."""
    events = []
    for path in Path(folder).glob("*.jsonl"):
        with path.open("rb") as file:
            events += [json.loads(line, object_pairs_hook=_interned) for line in file if line.endswith(b"\n")]
    events.sort(key=lambda event: event["t"])
    return events


def _interned(pairs):
    """An event. Names and ids are in memory once, however many events have them: a run may have millions."""
    return {sys.intern(name): sys.intern(value) if type(value) is str else value for name, value in pairs}
