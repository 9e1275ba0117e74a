"""What the control loop has to say is written by the herald, who calls receivers of signals, too.

A handler of the project's log may wait for a mail server, or fail. On the control loop's thread it would keep it from
renewing leases, or end it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

logger = logging.getLogger("django_dhara.worker")


class _Voice(logging.Filter):
    """Hands on what is said on the thread that made it, while somebody takes it."""

    def __init__(self, tell: Callable[[Callable[[], Any]], None], is_heard: Callable[[], bool]) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._tell, self._is_heard = tell, is_heard

    def filter(self, record: logging.LogRecord) -> bool:
        if threading.get_ident() != self._thread or not self._is_heard():
            return True
        self._tell(partial(logger.callHandlers, record))
        return False


@contextmanager
def handed_on(tell: Callable[[Callable[[], Any]], None], is_heard: Callable[[], bool]) -> Iterator[None]:
    """While this lasts, log lines of this thread are written by whoever carries out the calls given to `tell`."""
    voice = _Voice(tell, is_heard)
    logger.addFilter(voice)
    try:
        yield
    finally:
        logger.removeFilter(voice)
