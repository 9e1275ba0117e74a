"""Child processes for plain functions: for those that hold the interpreter, and those that have to be killable.

Each child is a fresh interpreter (see `child.py`), not a fork: a fork inherits connections, locks and threads in
whatever state they are. It has one thread here that gives it one run at a time and waits for the end of it, so the
control loop is the same as with threads, and never waits for a pipe. What goes over the pipe is pickled, which is safe
between a process and its own child; of an exception only its text does, since to unpickle one would run its code here.

A function that is overdue is killed with its child. One that was canceled gets a CancelledError, and is killed when it
has not ended after CANCEL_SECONDS. Only a child that dies by itself costs its run an attempt, and only that run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_dhara import __version__, execution, hygiene, meter
from django_dhara.errors import ChildDied, LeaseLost, UnknownFunction
from django_dhara.execution import Run
from django_dhara.states import HandedBack, Outcome
from django_dhara.worker import stacks
from django_dhara.worker.executors import Crew, Done, Fail, start_thread

#: How often a waiting thread looks whether its run is still wanted, and its child still lives.
TICK_SECONDS, IDLE_TICK_SECONDS = 0.1, 1.0
#: So long before its timeout a function is looked at.
LOOK_SECONDS = 0.3
#: For the end of a process that has closed its pipe.
LEFTOVER_SECONDS = 5.0
#: A child that is not ready after so many seconds never will be.
START_SECONDS = 120.0
#: After so many children in a row that did not start the worker gives up. Between two tries it waits, longer each time.
MOST_FAILURES, PAUSE_SECONDS = 5, 0.5
#: For children that are idle to end by themselves.
CLOSE_SECONDS = 2.0

_BOOT = (
    "import json, sys; fd, path = json.loads(sys.argv[1]); sys.path[:] = path; "
    "import django; django.setup(); from django_dhara.management.console import log_here; log_here(); "
    "from django_dhara.worker.child import main; main(fd)"
)


class ChildError(Exception):
    """Stands for what a function raised in a child process; its text is the traceback there."""


class Children(Crew):
    """Plain functions, each in a child process of its own out of a fixed number.

    Args:
        size: how many children there are.
        done, pass_on: as for `Threads`.
        ring: called when the first child is ready.
        fail: called with a reason when children do not start, or a thread that serves one has died.
        max_tasks: so many runs, and a child makes room for a new one; 0: as many as come.

    Raises:
        ImproperlyConfigured: the settings have no module that a child could import.
    """

    def __init__(
        self,
        size: int,
        done: Done,
        pass_on: Done,
        *,
        ring: Callable[[], None],
        fail: Fail,
        max_tasks: int = 0,
    ) -> None:
        if not settings.SETTINGS_MODULE:
            raise ImproperlyConfigured(
                "PROCESSES needs DJANGO_SETTINGS_MODULE: child processes cannot import settings made by configure()."
            )
        super().__init__(size, done, pass_on, fail)
        self._ring = ring
        self._max_tasks = max_tasks
        self._closed = False
        self._children: set[_Child] = set()
        #: Runs whose functions are being imported, and those of them that took too long.
        self._importing: set[Run] = set()
        self._given_up: set[Run] = set()
        self._guard = threading.Lock()
        for _ in range(size):
            self._start_thread()

    @property
    def is_ready(self) -> bool:
        return bool(self._children)

    @property
    def children(self) -> list[int]:
        return [child.pid for child in list(self._children)]

    def replace(self, run: Run) -> bool:
        """Kill the child that runs this overdue function; another takes its place.

        While its function is still being imported, which is done here first, only its thread can be given up.
        """
        with self._guard:
            is_importing = run in self._importing
            if is_importing:
                self._given_up.add(run)
        if is_importing:
            self._start_thread()
        else:
            self.stop(run)
        return not is_importing

    def stop(self, run: Run) -> None:
        """Kill the child that runs it."""
        for child in list(self._children):
            child.kill(run)

    def show_stack(self, run: Run, tell: stacks.Tell) -> None:
        """Its child is asked; while its function is being imported, which is done here, its thread is looked at."""
        if run in self._importing:
            super().show_stack(run, tell)
        elif not any(child.ask(run, tell) for child in list(self._children)):
            tell(stacks.ENDED)

    def place(self, run: Run) -> TracebackType | None:
        """Only while its function is being imported; what it did then its child has told before, see `_look`."""
        return super().place(run) if run in self._importing else None

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

    def _start_thread(self) -> None:
        start_thread("dhara-child", self._serve, self._fail)

    def _serve(self) -> None:
        goes_on = True
        while goes_on and (child := self._new_child()) is not None:
            self._children.add(child)
            self._ring()
            goes_on = self._serve_with(child)
            self._children.discard(child)
            child.close()
            child.end(CLOSE_SECONDS)

    def _serve_with(self, child: _Child) -> bool:
        """Give the child one run after the other while it lives; False: this thread is not needed any more."""
        while self._is_fit(child):
            try:
                is_wanted = self._tickets.get(timeout=IDLE_TICK_SECONDS)
            except Empty:
                continue
            if not is_wanted:
                return False
            if not self._is_fit(child):
                self._tickets.put(True)  # it died meanwhile; this is for one that lives
            elif (run := self._next()) is not None and not self._serve_one(child, run):
                return False
        return True

    def _is_fit(self, child: _Child) -> bool:
        return child.lives and (not self._max_tasks or child.tasks < self._max_tasks)

    def _serve_one(self, child: _Child, run: Run) -> bool:
        self._importing.add(run)
        self._take(run, partial(self._perform, child))
        hygiene.close_all()  # the import of the function, or its backoff, may have opened connections here
        with self._guard:
            self._importing.discard(run)
            is_given_up = run in self._given_up
            self._given_up.discard(run)
        return not is_given_up

    def _perform(self, child: _Child, run: Run) -> Outcome:
        self._importing.discard(run)
        return child.perform(run)

    def _new_child(self) -> _Child | None:
        """None: the worker ends, or children do not start."""
        reason = ""
        for failures in range(MOST_FAILURES):
            sleep(PAUSE_SECONDS * failures)
            if self._closed:
                return None
            try:
                child = _Child()
            except OSError as error:  # memory, descriptors or processes are short
                reason = str(error)
                continue
            reason = child.problem()
            if not reason:
                return child
        self._fail(f"child processes do not start: {reason}")
        return None


class _Child:
    """One child process, from here."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for end in (ours, theirs):
                end.setblocking(True)  # a function may have called socket.setdefaulttimeout()
            theirs.set_inheritable(True)
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [
                    sys.executable,
                    *[f"-W{option}" for option in sys.warnoptions],
                    "-c",
                    _BOOT,
                    json.dumps([theirs.fileno(), [*map(str, sys.path)]]),
                ],
                env=os.environ | {"DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is the worker's business
            )
            self._connection: Connection[Any, Any] = Connection(ours.detach())
        #: How many runs it was given.
        self.tasks = 0
        self._run: Run | None = None
        self._guard = threading.Lock()
        #: Who wants to see what it does, asked and not asked yet.
        self._curious: list[stacks.Tell] = []
        self._asked: dict[int, stacks.Tell] = {}
        self._questions = 0
        self._told = (False, False, False)
        self._kill_at = float("inf")
        self._has_looked = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def problem(self) -> str:
        """Wait until it is ready; returns what is wrong with it, which is then ended, or nothing."""
        if self._first_word() == ("ready", __version__):
            return ""
        if self.lives:
            self.end(0.0)
            return f"no word of one with django_dhara {__version__}; was the code replaced under this worker?"
        return f"{how_it_ended(self.end(0.0))}. What they printed is above."

    def _first_word(self) -> Any:
        deadline = monotonic() + START_SECONDS
        try:
            while self.lives and monotonic() < deadline:
                if self._connection.poll(TICK_SECONDS):
                    return self._connection.recv()
        except (EOFError, OSError):
            self.end(TICK_SECONDS)
        return None

    def perform(self, run: Run) -> Outcome:
        """Let it run the function; returns how that ended, whatever becomes of the child."""
        with self._guard:
            self._run = run
        self.tasks += 1
        self._told, self._kill_at, self._has_looked = (False, False, False), float("inf"), False
        begun = False
        try:
            self._connection.send(("run", run.claim, run.worker, run.alias, run.options))
            while (message := self._next_message(run))[0] != "ended":
                begun = begun or message[0] != "stack"  # which may be a late word on the run before
                self._pass_on(run, *message)
            _, outcome, run.settled, unknown, enqueued = message
            meter.ENQUEUED.add_all(enqueued)
        except (EOFError, OSError):
            return self._without_answer(run) if begun else HandedBack()
        except Exception as problem:  # noqa: BLE001 - whatever unpickling makes of what a function wrote into the pipe
            self.end(0.0)
            return execution.judge(run, ChildDied(f"its child process said what cannot be read: {problem!r:.200}"))
        finally:
            run.ended = monotonic()
            self._disappoint()
        if unknown is not None:
            run.unknown, run.exception = True, UnknownFunction(unknown)
        error = getattr(outcome, "error", None)
        if error is not None:
            run.exception = ChildError(error.traceback or f"{error.class_path}: {error.message}")
        return outcome  # type: ignore[no-any-return]

    def _next_message(self, run: Run) -> Any:
        self._tell(run)
        while not self._connection.poll(TICK_SECONDS):
            if not self.lives and not self._connection.poll(0):
                raise EOFError  # a process that the function has forked may keep the pipe open
            self._tell(run)
        return self._connection.recv()

    def _tell(self, run: Run) -> None:
        """Tell the function what has become known of its run, and end its patience with a canceled one."""
        told = (run.canceled or run.lost, run.stopping, run.at_risk)
        if told != self._told:
            if told[0] and not self._told[0]:
                self._kill_at = monotonic() + run.options.cancel_seconds
            self._told = told
            self._connection.send(("told", *told))
        self._look(run)
        self._ask_for_stacks()
        if run.abandoned or monotonic() > self._kill_at:
            self.kill(run)

    def _look(self, run: Run) -> None:
        """Shortly before its time is over: when it is, the child is killed, and cannot say any more where it hung."""
        if not self._has_looked and (run.seconds or 0.0) > run.timeout - LOOK_SECONDS:
            self._has_looked = True
            self._curious.append(partial(_remember, run))

    def _pass_on(self, run: Run, kind: str, *words: Any) -> None:
        if kind == "progress":
            run.reporter.progress(run, *words)
        elif kind == "stack":
            number, text = words
            if tell := self._asked.pop(number, None):
                tell({"where": f"child process {self._process.pid}", "stack": text})
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
        code = self.end(LEFTOVER_SECONDS)
        if run.canceled or run.abandoned or run.lost:
            return execution.judge(run, CancelledError())
        return execution.judge(run, ChildDied(f"the child process that ran it ended: {how_it_ended(code)}"))

    def ask(self, run: Run, tell: stacks.Tell) -> bool:
        """Ask for its stack, if it is this run that keeps it busy. From any thread: the one that serves it will."""
        with self._guard:
            is_busy_with_it = self._run is run
            if is_busy_with_it:
                self._curious.append(tell)
        return is_busy_with_it

    def _ask_for_stacks(self) -> None:
        while self._curious:
            self._questions += 1
            self._asked[self._questions] = self._curious.pop()
            self._connection.send(("stack", self._questions))

    def _disappoint(self) -> None:
        """The run has ended: who asked hears that."""
        with self._guard:
            self._run = None
            waiting, self._curious, self._asked = [*self._curious, *self._asked.values()], [], {}
        for tell in waiting:
            tell(stacks.ENDED)

    def kill(self, run: Run) -> None:
        """End the process, if it is this run that keeps it busy, and what that has started. From any thread."""
        with self._guard:
            if self._run is run:
                self._kill()

    def close(self) -> None:
        """Say that nothing more comes."""
        with self._guard:
            if self._run is not None:
                self._kill()
            self._connection.close()

    def end(self, seconds: float) -> int:
        """Wait for its end, kill it then, and return its exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()

    def _kill(self) -> None:
        """Its session is its own, so its group is what functions have started, but for daemons that left it."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _remember(run: Run, answer: dict[str, str]) -> None:
    run.seen = answer.get("stack", "")


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
