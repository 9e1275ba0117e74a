"""Running drivers: each in a process group of its own, which is gone when we are."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

FOLDER = Path(__file__).resolve().parent
#: How long a worker may take for its end after SIGTERM.
_STOP_SECONDS = 40
_TAIL_LINES = 12


class DriverFailed(Exception):
    """A driver did not do what it was asked; the message is one line, `tail` what it said last.

    Args:
        what: the line.
    """

    def __init__(self, what: str, tail: str = "") -> None:
        super().__init__(what)
        self.tail = tail


class Process:
    """A driver at work; use it as a context manager, which ends it.

    Args:
        command: the driver's command.
        words: what it is asked to do.
        variables: all of its environment.
    """

    def __init__(self, command: Sequence[str], words: Sequence[str], variables: Mapping[str, str]) -> None:
        self._words = " ".join(words)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self._process = subprocess.Popen(
            [*command, *words], cwd=FOLDER, env=dict(variables), stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._output.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """See that it is still at work.

        Raises:
            DriverFailed
        """
        if self._process.poll() is not None:
            raise self.failure(f"`{self._words}` ended by itself with exit code {self._process.returncode}")

    def finish(self, seconds: float) -> None:
        """Wait for its end, at most so long.

        Raises:
            DriverFailed: it is late, or its exit code is not 0.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"`{self._words}` has not ended after {seconds:g} s") from None
        if code:
            raise self.failure(f"`{self._words}` ended with exit code {code}")

    def stop(self) -> None:
        """Ask it to end, and wait for that; what does not listen is killed. Its figures are taken before."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End all that is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def failure(self, what: str) -> DriverFailed:
        """An error with what the driver said last."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return DriverFailed(what, "\n".join(lines[-_TAIL_LINES:]))

    def cpu_seconds(self) -> float:
        """What it and its children have used of the processors so far."""
        return sum(_cpu_seconds(pid) for pid in _family(self.pid))


def _family(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def _cpu_seconds(pid: int) -> float:
    """By the scheduler's own count in nanoseconds; the usual one ticks a hundred times a second."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(thread.read_text().split()[0])
    return total / 1e9


def wait_until(moment: float) -> None:
    """Sleep until `time.monotonic()` is `moment`."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 1.0))
