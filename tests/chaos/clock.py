"""The server's clock and the history's: what the trigger log says, in the times of the history."""

from bisect import bisect
from time import monotonic

from tests.chaos.checker import Change
from tests.chaos.server import STEP


class Clock:
    """The clock of the system may be put right while a run lasts, and the server's may be stepped.

    Args:
        events: of a run; its samples have the time of both clocks.
        offset: between the two now, without what the server's clock is ahead.
        steps: the server's clock was stepped; then the run is shorter than half a step.
    """

    def __init__(self, events, offset, *, steps):
        samples = sorted((event["wall"], event["t"]) for event in events if event["e"] == "sample")
        self._walls = [wall for wall, _ in samples]
        offsets = [t - wall for wall, t in samples]
        self._offsets = [*offsets[:1], *offsets] or [offset]  # before the first sample that of the first
        self._offset, self._now, self._steps = offset, monotonic(), steps

    def change(self, row):
        """A row of the log; its times are as the server's own clock was at that moment."""
        change = Change(*row)
        offset = -STEP * round((change.t + self._offset - self._now) / STEP) if self._steps else 0
        offset += self._offsets[bisect(self._walls, change.t + offset)]
        return change._replace(t=change.t + offset, run_at=change.run_at + offset)
