"""How much memory this process and its children have, where the kernel says so in /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def resident(children: Iterable[int] = ()) -> int | None:
    """Bytes of resident memory of this process and of those with the given ids; None where nobody tells.

    `resource` would tell the most that there ever was, which never shows that memory was given back. What processes
    share, such as the code of libraries, is counted for each.
    """
    own = _resident("self")
    return None if own is None else own + sum(_resident(str(pid)) or 0 for pid in children)


def _resident(process: str) -> int | None:
    try:
        pages = (_PROC / process / "statm").read_text().split()[1]
    except OSError:  # no /proc, or a child that is gone
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
