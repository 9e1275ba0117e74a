"""What wakes the control loop: an ended run, a signal of the system, a notification of the database."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from selectors import EVENT_READ, DefaultSelector
from types import FrameType
from typing import Any


class Alarm:
    """A selector over a pipe to ourselves and, if there is one, the socket of a listening session."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._selector = DefaultSelector()
        self._selector.register(self._reader, EVENT_READ)
        self._asleep = False

    def ring(self) -> None:
        """Wake the loop, from any thread; free while it is awake, and once somebody else has rung."""
        if self._asleep:
            self._asleep = False
            try:
                os.write(self._writer, b"!")
            except BlockingIOError:
                return  # the pipe is full: it will wake

    def wait(self, seconds: float, socket: int | None, anything: Callable[[], bool]) -> None:
        """Sleep for at most `seconds`, unless there is `anything` to do already.

        `anything` is asked after the loop has gone to sleep in the eyes of the others, so no ring is lost in between.
        """
        self._asleep = True
        try:
            if not anything():
                self._select(seconds, socket)
        finally:
            self._asleep = False

    def _select(self, seconds: float, socket: int | None) -> None:
        if socket is not None:
            self._selector.register(socket, EVENT_READ)
        try:
            for key, _ in self._selector.select(max(seconds, 0)):
                if key.fd == self._reader:
                    self._drain_pipe()
        finally:
            if socket is not None:
                self._selector.unregister(socket)

    def _drain_pipe(self) -> None:
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            return

    @contextmanager
    def on_signals(self, handler: Callable[[], Any]) -> Iterator[None]:
        """Call `handler` at SIGTERM and SIGINT; only the main thread may ask for that, elsewhere it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            handler()

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, handle) for number in numbers}
        # Python resumes an interrupted select(); the byte that it writes here ends it.
        wakeup_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_fd)
            for number, old in before.items():
                signal.signal(number, old)

    def close(self) -> None:
        """Not before `on_signals` has ended: a signal would write to whatever has the pipe's number by then."""
        self._selector.close()
        os.close(self._reader)
        os.close(self._writer)
