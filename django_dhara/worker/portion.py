"""How many rows one statement changes: all at once while that works, fewer where the server is slow.

A statement that is given up for want of time has done nothing. The same one again would do nothing either, until the
leases that it was to keep have run out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from django_dhara.worker.session import Busy

T = TypeVar("T")


class Portion:
    """The size of the next statement.

    Args:
        most: rows, at first and at best.
    """

    LEAST = 10

    def __init__(self, most: int) -> None:
        self.size = self._most = most

    def each(self, rows: Sequence[T], say: Callable[[Sequence[T]], None]) -> None:
        """Say one statement after the other, until all rows have had theirs; at least one, be there no rows.

        Raises:
            Busy: from `say`; the rest comes again.
        """
        while True:
            part, rows = rows[: self.size], rows[self.size :]
            try:
                say(part)
            except Busy:
                self.failed(len(part))
                raise
            self.succeeded()
            if not rows:
                return

    def failed(self, size: int) -> None:
        """A statement of so many rows came to nothing: the next one has a quarter of them.

        Each failure takes almost a third of a lease, so that there is time for few.
        """
        self.size = max(size // 4, self.LEAST)

    def succeeded(self) -> None:
        """The next one may have a few more."""
        self.size = min(self.size + self.size // 4 + 1, self._most)
