"""How many tasks are completed, counted so that each is read about once however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: After so long a task that was completed is seen by everybody: statements of a worker take less.
_OVERLAP = "interval '2 s'"


class Done:
    """The tasks completed after `since`.

    Args:
        ask: runs a statement, returns its rows.
        since: a time as SQL; by default the beginning of time.
    """

    def __init__(self, ask: Callable[[str], Sequence[tuple[Any, ...]]], since: str = "'-infinity'") -> None:
        self._ask = ask
        [(self._since,)] = ask(f"SELECT ({since}::timestamptz)::text")
        self._settled = 0

    def count(self) -> int:
        """The number as of now. Those of the last seconds are counted again: they commit in any order."""
        [(settled, all_, until)] = self._ask(
            f"SELECT count(*) FILTER (WHERE finished_at < now() - {_OVERLAP}), count(*), "
            f"greatest(now() - {_OVERLAP}, '{self._since}')::text "
            f"FROM dhara_task WHERE state = 'COMPLETED' AND finished_at >= '{self._since}'"
        )
        total = self._settled + int(all_)
        self._settled, self._since = self._settled + int(settled), until
        return total
