"""A child process: it runs one plain function at a time, and may be killed whatever that function does.

It is a fresh interpreter with the project's settings and tasks, started by `children.py` with one end of a socket pair.
Tuples go over that: runs, and what the parent knows of them, come in; what a function says and how it ends go out.
A thread listens, so that the function hears of a cancel, and so that a child whose parent is gone does not live on.
"""

from __future__ import annotations

import contextvars
import ctypes
import locale
import os
import signal
import sys
import threading
from asyncio import CancelledError
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any, NoReturn
from uuid import UUID

from django_dhara import __version__, execution, hygiene, meter, registry
from django_dhara.compat import task_backends
from django_dhara.conf import Options
from django_dhara.errors import LeaseLost
from django_dhara.execution import Run
from django_dhara.lifecycle import Claim
from django_dhara.states import Outcome
from django_dhara.worker import stacks

#: With nothing to do for so many seconds a child closes its connections, as an idle thread does.
IDLE_SECONDS = 60.0
#: From the end of the parent to the end of a child that is idle, and takes its leave.
LEAVE_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


def _surroundings() -> tuple[str, str]:
    """What a function can change of its process that the next one would notice: locale and working directory."""
    try:
        return locale.setlocale(locale.LC_ALL), str(Path.cwd())
    except OSError:  # the directory is gone
        return locale.setlocale(locale.LC_ALL), ""


def main(socket: int) -> None:
    """The life of a child, with Django set up; `socket` is the descriptor that it inherited."""
    _die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # a supervisor tells the whole group; when to stop the parent says
        signal.signal(number, lambda *_: None)
    registry.discover()
    hygiene.watch()
    hygiene.close_all()  # what apps opened while they were set up is not watched, and functions would get it
    os.set_inheritable(socket, False)  # not for the programs that functions start
    Child(Connection(socket)).serve()


def _die_with_parent() -> None:
    """Where the kernel can (Linux), it ends a child that spins in C when its parent was killed. Elsewhere, and for the
    rest, the listening thread does it."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _stack_of_function() -> str:
    return stacks.text(stacks.of_thread(threading.main_thread().ident))


class Child:
    """The child's side of the pipe."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._orders: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, bool]] = SimpleQueue()
        self._asked = 0
        self._asking = threading.Lock()
        #: The run whose function is being called, and the one that is to be stopped.
        self._current: Run | None = None
        self._unwanted: Run | None = None
        #: The main thread is sending: a message that an exception cut off would spoil all that follow.
        self._is_shielded = False
        #: What the parent has said of this run, maybe while its function was still being imported.
        self._known: tuple[bool, ...] = ()
        self._context = contextvars.copy_context()
        self._surroundings = _surroundings()

    def serve(self) -> None:
        """Run what comes until the parent closes the pipe."""
        self._take_signals()
        threading.Thread(target=self._listen, name="dhara-parent", daemon=True).start()
        self._send("ready", __version__)
        while (order := self._next_order()) is not None:
            self._context.copy().run(self._run, *order)

    def _take_signals(self) -> None:
        """Functions run on the main thread here: they may take signals and timers for themselves, and leave them."""
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_stop)

    def _restore(self) -> None:
        """One run at a time is here, so what it left of its surroundings can be told and undone, unlike on threads."""
        if _surroundings() != self._surroundings:
            name, folder = self._surroundings
            with suppress(locale.Error, OSError):
                locale.setlocale(locale.LC_ALL, name)
                os.chdir(folder)

    def _next_order(self) -> tuple[Any, ...] | None:
        try:
            return self._orders.get(timeout=IDLE_SECONDS)
        except Empty:
            hygiene.close_all()
            return self._orders.get()

    def _run(self, claim: Claim, worker: UUID, alias: str, options: Options) -> None:
        self._send("begun")
        run = Run(
            claim=claim,
            worker=worker,
            backend=type(task_backends[alias]),
            alias=alias,
            options=options,
            reporter=self,
            lease_ends=float("inf"),
        )
        run.outcome = execution.prepare(run)
        if run.outcome is None:
            hygiene.fresh_numbers()
            hygiene.before_run()
            run.outcome = self._call(run)
            hygiene.after_run(claim.function)
            self._restore()
        self._take_signals()
        unknown = str(run.exception) if run.unknown else None
        self._send("ended", run.outcome, run.settled, unknown, meter.ENQUEUED.take())

    def _call(self, run: Run) -> Outcome:
        run.started = monotonic()
        try:
            self._current = run
            if self._known:
                self._hear(run, *self._known)
            return execution.execute(run)
        except BaseException as error:  # noqa: BLE001 - it was stopped on the edge of the function
            return execution.judge(run, error)
        finally:
            self._current = None

    # ------------------------------------------------------------------------------------------ the run's `Reporter`

    def progress(self, run: Run, text: str) -> None:
        """To the parent, which writes it."""
        self._send("progress", text)

    def checkpoint(self, run: Run, text: str) -> None:
        """To the parent, which writes it and says whether it could."""
        with self._asking:
            self._asked += 1
            self._send("checkpoint", self._asked, text)
            number, accepted = 0, False
            while number != self._asked:  # an older answer is one that a stopped run did not wait for
                number, accepted = self._answers.get()
        if not accepted:
            raise LeaseLost(f"task {run.claim.id} is no longer this run's; the checkpoint was not stored")

    # --------------------------------------------------------------------------------------------------- the pipe

    def _send(self, *message: Any) -> None:
        if os.getpid() != self._pid:
            os._exit(1)  # a fork that a function let run on into our code; how the run ends the original says
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._is_shielded = True
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            os._exit(1)
        if is_main:
            self._is_shielded = False
            self._stop_here()

    def _listen(self) -> None:
        try:
            while True:
                self._take_in(*self._connection.recv())
        except BaseException:  # noqa: BLE001 - its end, what is no message of ours, or a fault: who is deaf is of no use
            self._leave()

    def _take_in(self, kind: str, *words: Any) -> None:
        if kind == "run":
            self._known = ()
            self._orders.put(tuple(words))
        elif kind == "answer":
            self._answers.put((words[0], words[1]))
        elif kind == "stack":
            stacks.ask(partial(self._send, "stack", words[0]), _stack_of_function)
        else:
            self._known = tuple(words)
            if self._current is not None:
                self._hear(self._current, *words)

    def _hear(self, run: Run, stops: bool, stopping: bool, at_risk: bool) -> None:
        run.stopping, run.at_risk = stopping, at_risk
        if stops and not run.canceled:
            run.canceled = True
            self._unwanted = run
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _on_stop(self, number: int, frame: Any) -> None:
        """In the main thread, between two steps of the function: what `async def` functions get, plain ones get too."""
        if not self._is_shielded:
            self._stop_here()

    def _stop_here(self) -> None:
        run, self._unwanted = self._unwanted, None
        if run is not None and run is self._current:
            raise CancelledError

    def _leave(self) -> NoReturn:
        """The parent is gone, or has closed the pipe."""
        if self._current is None:
            self._orders.put(None)
            sleep(LEAVE_SECONDS)
        os._exit(1)
