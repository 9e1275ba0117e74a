"""The heartbeat file: its time says when the control loop turned last, to a probe that starts no interpreter."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from time import monotonic

from django_dhara import events

#: The file's time is changed at most once in so many seconds.
BEAT_SECONDS = 1.0
#: How a heartbeat file begins.
_BEGINNING = b'{"pid": '
#: An idle loop, which may sleep for longer, turns at least so often for it.
IDLE_SECONDS = 5.0


class Pulse:
    """Shows that the control loop turns.

    Args:
        path: of the file; empty: nothing is shown. It should be on a disk of this machine, or in memory: the control
            loop waits for it.
    """

    def __init__(self, path: str = "") -> None:
        self._path = Path(path) if path else None
        self._next_at = 0.0 if path else float("inf")
        #: When the control loop turned last, by the monotonic clock.
        self.turned_at = monotonic()

    @property
    def due_at(self) -> float:
        """When the loop should turn for this."""
        return self._next_at - BEAT_SECONDS + IDLE_SECONDS

    def beat(self) -> None:
        """The loop turns."""
        self.turned_at = monotonic()
        if self.turned_at >= self._next_at:
            self._next_at = self.turned_at + BEAT_SECONDS
            self._touch()

    def _touch(self) -> None:
        assert self._path is not None
        try:
            try:
                os.utime(self._path)
            except FileNotFoundError:
                self._write()
        except OSError as error:  # no beat is worth a worker; the probe will tell
            events.HEARTBEAT_FAILED.murmur("", path=str(self._path), reason=error)

    def begin(self) -> None:
        """A file of an earlier process says nothing of this one, and is replaced; anything else that is there is not.

        Raises:
            OSError: it cannot be written there.
            ValueError: something else is there, or the path cannot be one.
        """
        if self._path is not None:
            if not self._is_free(self._path):
                raise ValueError("this is there already, and is no heartbeat file")
            self._write()

    def _is_free(self, path: Path) -> bool:
        """Is there nothing, an empty file, or one that a worker has left behind?"""
        if not path.exists():
            return not path.is_symlink()
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) in (b"", _BEGINNING)

    def _write(self) -> None:
        """At once, under its name: no probe sees half of it."""
        assert self._path is not None
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        draft.write_text(json.dumps({"pid": os.getpid()}) + "\n", encoding="utf-8")
        draft.replace(self._path)

    def end(self) -> None:
        """The loop turns no more."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
