"""The demo's processes. None of them outlives the demo, whatever that ends by."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from django.conf import settings
from django.core.management import CommandError

#: The leader of the processes' group. It reads a pipe that only the demo holds open: when the demo is gone, even by
#: SIGKILL, the pipe ends, and the leader removes the logs and ends the group.
_LEADER = """
import os, shutil, signal, sys, time
for word in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(word, signal.SIG_IGN)
sys.stdin.buffer.read()
os.killpg(0, signal.SIGTERM)
time.sleep(5)
shutil.rmtree(sys.argv[1], ignore_errors=True)
os.killpg(0, signal.SIGKILL)
"""
START_SECONDS = 30.0
STOP_SECONDS = 8.0


class Crew:
    """Processes by name: `with Crew() as crew`. At the end of the block all of them are stopped."""

    def __init__(self) -> None:
        self.members: dict[str, subprocess.Popen] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="dhara-demo-")
        self._leader = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LEADER, self._logs.name], stdin=subprocess.PIPE, process_group=0
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        os.killpg(self._leader.pid, signal.SIGKILL)
        self._leader.wait()
        self._leader.stdin.close()
        self._logs.cleanup()

    def start(self, name: str, *words: str, **environment: str) -> None:
        """Start `manage.py WORDS`; what it prints goes to a file that is read if it fails."""
        with self._log(name).open("wb") as log:
            self.members[name] = subprocess.Popen(
                [sys.executable, settings.BASE_DIR / "manage.py", *words],
                cwd=settings.BASE_DIR,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._leader.pid,
            )

    def wait_until(self, is_up: Callable[[], bool]) -> None:
        """Wait for what was started.

        Raises:
            CommandError: a process ended, or it takes too long.
        """
        give_up = time.monotonic() + START_SECONDS
        while not is_up():
            self.check()
            if time.monotonic() > give_up:
                said = "; ".join(f"{name}: {self._last_lines(name)}" for name in self.members)
                raise CommandError(f"the processes are not ready after {START_SECONDS:g} s. {said}")
            time.sleep(0.05)

    def check(self) -> None:
        """See that all of them live.

        Raises:
            CommandError: one has ended, with the last lines it said.
        """
        for name, process in self.members.items():
            if process.poll() is not None:
                raise CommandError(f"{name} ended with code {process.returncode}. It said: {self._last_lines(name)}")

    def freeze(self, name: str) -> None:
        self.members[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.members[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """kill -9; returns once it is dead."""
        process = self.members.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Ask all of them to stop, as a deploy would; after a while without asking."""
        for process in self.members.values():
            process.terminate()
        give_up = time.monotonic() + STOP_SECONDS
        for process in self.members.values():
            try:
                process.wait(max(give_up - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.members.clear()

    def _log(self, name: str) -> Path:
        return Path(self._logs.name) / f"{name}.log"

    def _last_lines(self, name: str, count: int = 3) -> str:
        lines = [line.strip() for line in self._log(name).read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-count:]) or "nothing"
