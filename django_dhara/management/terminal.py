"""A terminal that is drawn on as a whole, and given back as it was, however the drawing ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from django_dhara.management.board import Line

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
_LOOKS = {"head": "\x1b[1m", "harm": "\x1b[1;31m", "title": "\x1b[7m", "old": "\x1b[2m"}


class Terminal:
    """The terminal of this process. Nothing is left on it, and its modes are as before."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._wakes, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        self._is_plain = bool(os.environ.get("NO_COLOR"))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Draw on it while this lasts; Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP SystemExit."""
        handlers = {
            signal.SIGTERM: _end,
            signal.SIGHUP: _end,
            signal.SIGTSTP: self._suspend,
            signal.SIGWINCH: lambda *_: None,  # it wakes `key`
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        woken = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            self._enter()
            yield
        finally:
            self._leave()
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines, from the top, by one write: nothing flickers."""
        rows = "\r\n".join(f"{self._looks(line)}\x1b[K" for line in lines)
        self._write(f"\x1b[H{rows}\x1b[J")

    def size(self) -> tuple[int, int]:
        """Its width and height in cells."""
        return shutil.get_terminal_size((80, 24))

    def key(self, seconds: float) -> str:
        """The key that is pressed within `seconds`, or "": also when the size has changed."""
        ready, _, _ = select.select([self._input, self._wakes], [], [], seconds)
        if self._wakes in ready:
            os.read(self._wakes, 1024)
        if self._input in ready:
            # End of input: whoever typed is gone.
            return os.read(self._input, 1).decode("ascii", "replace") or "q"
        return ""

    def _looks(self, line: Line) -> str:
        look = "" if self._is_plain and line.kind != "title" else _LOOKS.get(line.kind, "")
        return f"{look}{line.text}\x1b[0m" if look else line.text

    def _enter(self) -> None:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        self._write(_ENTER)

    def _leave(self) -> None:
        if self._before is None:
            return
        # It may be gone: then there is nothing to give back.
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
        with suppress(OSError):
            self._write(_LEAVE)
        self._before = None

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: give the terminal back, and take it again when the process goes on."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
