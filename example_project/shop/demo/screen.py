"""The terminal: events with their time, and below them one line that changes. Without a terminal, a line a second."""

import shutil
import time

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

_CLEAR = "\r\x1b[K"
_WIDEST_BAR = 40
_PAUSE_TTY, _PAUSE_LINES = 0.1, 1.0


class Screen:
    """Writes to `out`; `style` is the command's, and knows whether colours are wanted."""

    def __init__(self, out: OutputWrapper, style: Style) -> None:
        self.style = style
        self._out, self._is_terminal = out, out.isatty()
        self._began, self._next_draw = time.monotonic(), 0.0
        encoding = getattr(out, "encoding", None) or "ascii"
        self._done, self._begun, self._open = "█▒░" if _can_write("█▒░", encoding) else "#=."

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def say(self, text: str = "") -> None:
        """Write a line, above the line that changes."""
        self._out.write(f"{self._clearing}{text}")
        self._out.flush()

    def event(self, text: str) -> None:
        """Write a line with the time since the beginning."""
        self.say(f"{self.seconds:5.1f} s  {text}")

    def draw(self, done: int, begun: int, total: int, text: str) -> None:
        """Show the progress; calls that come too soon do nothing.

        Args:
            done: finished of `total`.
            begun: begun of `total`, with those that are done.
        """
        if time.monotonic() < self._next_draw:
            return
        self._next_draw = time.monotonic() + (_PAUSE_TTY if self._is_terminal else _PAUSE_LINES)
        share = f"{100 * done // max(total, 1):3d} %"
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns - 1
            width = min(_WIDEST_BAR, columns - len(text) - len(share) - 4)
            bar = f"{self._bar(done, begun, total, width)} " if width >= 8 else ""
            room = columns - (width + 1 if bar else 0)
            self.change(f"{bar}{f'{share}  {text}'[:room]}")
        else:
            self.event(f"{share}  {text}")

    def change(self, text: str) -> None:
        """Write the line that changes; nothing without a terminal."""
        if self._is_terminal:
            self._out.write(f"{_CLEAR}{text}", ending="")
            self._out.flush()

    def clear(self) -> None:
        self.change("")

    @property
    def _clearing(self) -> str:
        return _CLEAR if self._is_terminal else ""

    def _bar(self, done: int, begun: int, total: int, width: int) -> str:
        full = width * done // max(total, 1)
        part = width * begun // max(total, 1) - full
        rest = width - full - part
        return self.style.SUCCESS(self._done * full) + self.style.WARNING(self._begun * part) + self._open * rest


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _can_write(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True
