"""How far a run is, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_BAR = 24
_LINE_SECONDS = 15.0
_DRAW_SECONDS = 0.1


class Progress:
    """Told of steps and of the share of the step under way; shows both.

    Args:
        total: how many steps there are.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total, self._stream = max(total, 1), stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._done, self._share, self._label = 0, 0.0, ""
        self._began = time.monotonic()
        self._next = 0.0

    def step(self, label: str) -> None:
        """A step begins."""
        self._label, self._share = label, 0.0
        self._show()

    def told(self, share: float) -> None:
        """The step under way is done to this share."""
        self._share = min(max(share, 0.0), 1.0)
        self._show()

    def step_done(self) -> None:
        """The step has ended, well or not."""
        self._done, self._share = self._done + 1, 0.0
        self._show()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._wipe()
        print(line, file=self._stream, flush=True)
        self._next = 0.0

    def close(self) -> None:
        """Leave a clean line."""
        self._wipe()

    def _show(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_DRAW_SECONDS if self._is_terminal else _LINE_SECONDS)
        line = f"{self._part():4.0%} {self._left(now)} {self._label}"
        if self._is_terminal:
            filled = int(self._part() * _BAR)
            print(f"\r\033[K[{'#' * filled}{'.' * (_BAR - filled)}] {line[:85]}", end="", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)

    def _part(self) -> float:
        return (self._done + self._share) / self._total

    def _left(self, now: float) -> str:
        if self._done < 2:
            return "       "
        seconds = (now - self._began) / self._part() * (1 - self._part())
        return f"{int(seconds) // 60}:{int(seconds) % 60:02} to go,"

    def _wipe(self) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=self._stream, flush=True)
