"""Child processes for plain functions: for those that hold the interpreter, and those that have to be killable.

Each child is a fresh interpreter (see `child.py`), not a fork: a fork inherits connections, locks and threads in
whatever state they are. It has one thread here that gives it one run at a time and waits for the end of it, so the
control loop is the same as with threads, and never waits for a pipe. What goes over the pipe is pickled, which is safe
between a process and its own child; of an exception only its text does, since to unpickle one would run its code here.

A function that is overdue is killed with its child. One that was canceled gets a CancelledError, and is killed when it
has not ended after a while. Only a child that dies by itself costs its run an attempt, and only that run.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import Empty
from time import monotonic, sleep
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_dhara import execution
from django_dhara.errors import ChildDied, LeaseLost
from django_dhara.execution import Run
from django_dhara.states import HandedBack, Outcome
from django_dhara.worker.executors import Crew, Done

#: How often a waiting thread looks whether its run is still wanted, and its child still lives.
TICK_SECONDS, IDLE_TICK_SECONDS = 0.1, 1.0
#: A canceled function has so long to end.
STOP_SECONDS = 5.0
#: A child that is not ready after so many seconds never will be.
START_SECONDS = 120.0
#: After so many children in a row that did not start the worker gives up. Between two tries it waits, longer each time.
MOST_FAILURES, PAUSE_SECONDS = 5, 0.2
#: For children that are idle to end by themselves.
CLOSE_SECONDS = 2.0

_BOOT = (
    "import json, sys; fd, path = json.loads(sys.argv[1]); sys.path[:] = path; "
    "import django; django.setup(); from django_dhara.worker.child import main; main(fd)"
)


class ChildError(Exception):
    """Stands for what a function raised in a child process; its text is the traceback there."""


class Children(Crew):
    """Plain functions, each in a child process of its own out of a fixed number.

    Args:
        size: how many children there are.
        done, pass_on: as for `Threads`.
        ring: called when the first child is ready.
        fail: called with a reason when children do not start.

    Raises:
        ImproperlyConfigured: the settings have no module that a child could import.
    """

    def __init__(
        self, size: int, done: Done, pass_on: Done, *, ring: Callable[[], None], fail: Callable[[str], None]
    ) -> None:
        if not settings.SETTINGS_MODULE:
            raise ImproperlyConfigured(
                "PROCESSES needs DJANGO_SETTINGS_MODULE: child processes cannot import settings made by configure()."
            )
        super().__init__(size, done, pass_on)
        self._ring, self._fail = ring, fail
        self._closed = False
        self._children: set[_Child] = set()
        self._failures = 0
        for _ in range(size):
            threading.Thread(target=self._serve, name="dhara-child", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        return bool(self._children)

    def replace(self, run: Run) -> None:
        """Kill the child that runs this overdue function; another takes its place."""
        for child in list(self._children):
            child.kill(run)

    def stop(self, run: Run) -> None:
        """Kill the child that runs it."""
        self.replace(run)

    def close(self) -> None:
        """Let idle children end, and end the others."""
        self._closed = True
        super().close()
        children = list(self._children)
        for child in children:
            child.close()
        deadline = monotonic() + CLOSE_SECONDS
        for child in children:
            child.end(max(deadline - monotonic(), 0.0))

    def _serve(self) -> None:
        while not self._closed:
            child = self._new_child()
            if child is None:
                return
            self._children.add(child)
            self._ring()
            while child.lives and self._serve_one(child):
                pass
            self._children.discard(child)
            child.close()
            child.end(0.0)

    def _serve_one(self, child: _Child) -> bool:
        """Give the child a run; False when it has to be replaced, or nothing comes any more."""
        try:
            is_wanted = self._tickets.get(timeout=IDLE_TICK_SECONDS)
        except Empty:
            return True
        if is_wanted and not child.lives:
            self._tickets.put(True)  # for a child that lives
            return False
        run = self._next() if is_wanted else None
        if run is not None:
            self._take(run, child.perform)
        return is_wanted

    def _new_child(self) -> _Child | None:
        while not self._closed:
            child = _Child()
            if child.is_ready():
                self._failures = 0
                return child
            code = child.end(0.0)
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._fail(f"child processes do not start: {how_it_ended(code)}. What they printed is above.")
                return None
            sleep(PAUSE_SECONDS * self._failures)
        return None


class _Child:
    """One child process, from here."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [
                    sys.executable,
                    *[f"-W{option}" for option in sys.warnoptions],
                    "-c",
                    _BOOT,
                    json.dumps([theirs.fileno(), sys.path]),
                ],
                env=os.environ | {"DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is the worker's business
            )
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._run: Run | None = None
        self._guard = threading.Lock()
        self._told = (False, False, False)
        self._kill_at = float("inf")

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def is_ready(self) -> bool:
        """Wait until it has said so, or has died."""
        deadline = monotonic() + START_SECONDS
        while self.lives and monotonic() < deadline:
            try:
                if self._connection.poll(TICK_SECONDS):
                    return bool(self._connection.recv() == ("ready",))
            except (EOFError, OSError):
                break
        return False

    def perform(self, run: Run) -> Outcome:
        """Let it run the function; returns how that ended, whatever becomes of the child."""
        with self._guard:
            self._run = run
        self._told, self._kill_at = (False, False, False), float("inf")
        begun = False
        try:
            self._connection.send(("run", run.claim, run.worker, run.alias, run.options))
            while (message := self._next_message(run))[0] != "ended":
                begun = True
                self._pass_on(run, *message)
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._without_answer(run) if begun else HandedBack()
        finally:
            run.ended = monotonic()
            with self._guard:
                self._run = None
        _, outcome, run.settled, run.unknown = message
        error = getattr(outcome, "error", None)
        if error is not None:
            run.exception = ChildError(error.traceback or f"{error.class_path}: {error.message}")
        return outcome  # type: ignore[no-any-return]

    def _next_message(self, run: Run) -> Any:
        while not self._connection.poll(TICK_SECONDS):
            if not self.lives and not self._connection.poll(0):
                raise EOFError  # a process that the function has forked may keep the pipe open
            self._tell(run)
        return self._connection.recv()

    def _tell(self, run: Run) -> None:
        """Tell the function what has become known of its run, and end its patience with a canceled one."""
        told = (run.canceled or run.lost, run.stopping, run.at_risk)
        if told != self._told:
            self._kill_at = monotonic() + STOP_SECONDS if told[0] else float("inf")
            self._told = told
            self._connection.send(("told", *told))
        if monotonic() > self._kill_at:
            self.kill(run)

    def _pass_on(self, run: Run, kind: str, *words: Any) -> None:
        if kind == "progress":
            run.reporter.progress(run, *words)
        elif kind == "checkpoint":
            number, text = words
            try:
                run.reporter.checkpoint(run, text)
            except LeaseLost:
                self._connection.send(("answer", number, False))
            else:
                self._connection.send(("answer", number, True))

    def _without_answer(self, run: Run) -> Outcome:
        """It died. If the function had settled its task in its own transaction, settling will find that out."""
        code = self.end(STOP_SECONDS)
        if run.canceled or run.abandoned or run.lost:
            return execution.judge(run, CancelledError())
        return execution.judge(run, ChildDied(f"the child process that ran it ended: {how_it_ended(code)}"))

    def kill(self, run: Run) -> None:
        """End the process, if it is this run that keeps it busy. From any thread."""
        with self._guard:
            if self._run is run:
                self._process.kill()

    def close(self) -> None:
        """Say that nothing more comes."""
        with self._guard:
            if self._run is not None:
                self._process.kill()
            self._connection.close()

    def end(self, seconds: float) -> int:
        """Wait for its end, kill it then, and return its exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def how_it_ended(code: int) -> str:
    """An exit code for people, as subprocess gives it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (by hand, or by the kernel for lack of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
