"""How many tasks a worker claims: those that can run, and some beyond; none of these while functions are long, many
while they are short."""

from __future__ import annotations

#: Waiting tasks should be started within about so many seconds; more would only keep them from other workers.
AHEAD_SECONDS = 0.05
#: Functions that take less than so many seconds do not wait for anything.
BRIEF_SECONDS = 0.001
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
    def is_brief(self) -> bool:
        """Do functions take less time than it takes to hand them from thread to thread?"""
        return self._mean < BRIEF_SECONDS

    @property
    def prefetch(self) -> int:
        return min(int(self.slots * AHEAD_SECONDS / max(self._mean, 1e-6)), self.limit)

    def ended(self, seconds: float) -> None:
        """A function took `seconds`."""
        self._mean += (seconds - self._mean) * _WEIGHT

    def stalled(self) -> None:
        """Nothing has started for a while: the functions that run now are long ones."""
        self._mean = max(self._mean, _UNKNOWN_MEAN)

    @property
    def enough(self) -> int:
        """With more than so many running or waiting here nothing is claimed, until half of the prefetch is used."""
        return self.slots + self.prefetch // 2

    def room(self, held: int) -> int:
        """How many more to claim, with `held` running or waiting here."""
        if held > self.enough:
            return 0
        return max(self.slots + self.prefetch - held, 0)


class Mix:
    """How many to claim where plain functions and coroutines come from the same queues, each with room of its own: as
    many as fit if the next claim is like the last ones. What does not fit waits, and goes back after a moment."""

    def __init__(self) -> None:
        #: Of the tasks that came lately, which share were coroutines; None: nobody has seen any.
        self._share: float | None = None

    def brought(self, coroutines: int, total: int) -> None:
        """A claim brought `total` tasks."""
        if total:
            share = coroutines / total
            self._share = share if self._share is None else (self._share + share) / 2

    def fitting(self, plain: int, coroutines: int) -> int:
        """How many to claim with room for so many of each kind."""
        if self._share is None:
            return min(plain, coroutines)
        # A share below one in a thousand is none: a queue that has changed its kind shall not remember it for long.
        fits = [plain / (1 - self._share)] if self._share < 0.999 else []
        fits += [coroutines / self._share] if self._share > 0.001 else []
        return int(min(fits))
