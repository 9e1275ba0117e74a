"""File locks: how processes agree on who starts the server and who is still using it.

The kernel drops a flock when its holder dies, however it dies. That is the whole reason for using them.
"""

import os
import time
from contextlib import contextmanager
from pathlib import Path

from example_project.localdb.errors import LocalDatabaseError

try:
    import fcntl
except ImportError:  # Windows: ensure() has said what to do long before a lock is taken.
    fcntl = None

_PAUSE_S = 0.02
_LIMIT_S = 600


@contextmanager
def alone(path: Path):
    """Hold the lock file at `path` for this process only, and give its descriptor; waits for the present holder."""
    handle = _take(path)
    try:
        yield handle
    finally:
        # Unlocked by word, not by closing alone: a child forked meanwhile by another thread has the descriptor too.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def share(path: Path) -> int:
    """Return a descriptor that counts as one user of `path` until it is closed here and in every forked child."""
    handle = _open(path)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def unused(path: Path) -> bool:
    """Return whether no process shares `path`; only sure while the caller is `alone`."""
    # A fresh descriptor, never one that shares: a forked child has the parent's lock, not one of its own, so asking
    # for more through the inherited descriptor would succeed and take the lock from both.
    handle = _open(path)
    try:
        return _try(handle)
    finally:
        os.close(handle)


def same_file(handle: int, path: Path) -> bool:
    """Return whether `handle` is still the file at `path`: after `rm -rf` of the folder it is not."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _take(path: Path) -> int:
    give_up = time.monotonic() + _LIMIT_S
    while time.monotonic() < give_up:
        handle = _open(path)
        if _try(handle) and same_file(handle, path):
            return handle
        os.close(handle)
        time.sleep(_PAUSE_S)
    raise LocalDatabaseError(f"another process has been starting or stopping the server for {_LIMIT_S} s ({path})")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
