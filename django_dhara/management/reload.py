"""Restart a worker when its code changes.

Django's own `run_with_reloader` would put the worker's loop into a thread, where signals do not arrive, and install a
SIGTERM handler of its own. Here the loop stays in the main thread; a thread beside it watches the files and asks for a
drain, and then the process starts itself anew.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from django.utils import autoreload


class Reloader(autoreload.StatReloader):
    """Watches from now on.

    Args:
        stop: called when a file has changed.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self.changed: Path | None = None
        self._stop = stop
        threading.Thread(target=self._watch, name="dhara-reload", daemon=True).start()

    def _watch(self) -> None:
        autoreload.autoreload_started.send(sender=self)
        for _ in self.tick():
            if self.changed is not None:
                self._stop()
                return

    def notify_file_changed(self, path: str | os.PathLike[str]) -> None:
        """Called by Django's watcher; receivers such as the template loader may say that they have dealt with it."""
        if not any(answer for _, answer in autoreload.file_changed.send(sender=self, file_path=path)):
            self.changed = Path(path)

    def restart(self) -> None:
        """Become a new process with the same command line."""
        sys.stdout.write(f"{self.changed} changed, restarting.\n")
        sys.stdout.flush()
        os.execv(sys.executable, autoreload.get_child_arguments())  # noqa: S606
