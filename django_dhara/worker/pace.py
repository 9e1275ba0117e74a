"""How many tasks a worker holds beyond those that run: none while functions are long, many while they are short."""

from __future__ import annotations

#: Waiting tasks should be started within about so many seconds; more would only keep them from other workers.
AHEAD_SECONDS = 0.05
#: Weight of the newest run in the mean.
_WEIGHT = 0.05
#: What is assumed of functions that nobody has seen yet, in seconds: long ones, so that the first claim takes no more
#: than can start at once.
_UNKNOWN_MEAN = 1.0


class Pace:
    """The bounded prefetch: `slots` runs, and as many waiting ones as they work off in `AHEAD_SECONDS`.

    Args:
        slots: functions that run at once.
        limit: the largest prefetch.
    """

    def __init__(self, slots: int, limit: int) -> None:
        self.slots, self.limit = slots, limit
        self._mean = _UNKNOWN_MEAN

    @property
    def prefetch(self) -> int:
        return min(int(self.slots * AHEAD_SECONDS / max(self._mean, 1e-6)), self.limit)

    def ended(self, seconds: float) -> None:
        """A function took `seconds`."""
        self._mean += (seconds - self._mean) * _WEIGHT

    def stalled(self) -> None:
        """Nothing has started for a while: the functions that run now are long ones."""
        self._mean = max(self._mean, _UNKNOWN_MEAN)

    def room(self, held: int) -> int:
        """How many more to claim, with `held` running or waiting here: 0 until half of the prefetch is used up."""
        if held > self.slots + self.prefetch // 2:
            return 0
        return max(self.slots + self.prefetch - held, 0)
