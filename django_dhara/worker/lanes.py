"""Where a worker looks for tasks: in each lane from where it began at the last look, and now and then everywhere.

As long as somebody holds an old snapshot (a dump, a report, a forgotten transaction), PostgreSQL cannot remove the
index entries of claimed tasks, and a claim that began at the head of its lane would walk over every one of them. What
comes in behind a place waits for the next whole look: a task whose transaction took long to commit, one that was handed
back. A place is never younger than `lifecycle.claim.LATE_SECONDS`, and whole looks are as frequent as they are cheap:
some milliseconds apart as a rule, a second when a hundred milliseconds of dead entries have gathered.
"""

from __future__ import annotations

from time import monotonic

from django_dhara.lifecycle import View

#: Between two whole looks: so many times as long as the last one took.
PAUSE_RATIO = 10.0


class Lanes:
    """What one worker remembers of the lanes that it serves, between its claims."""

    def __init__(self) -> None:
        self._view = View()
        self._asked_at = 0.0
        #: When everything may be looked at again.
        self.whole_at = 0.0
        #: Did the last claim look everywhere?
        self.saw_all = False

    def forget(self) -> None:
        """The next look is a whole one, from nothing: the server may be another one now."""
        self._view, self.whole_at = View(), 0.0

    def look(self) -> View:
        """What the next claim is to look at."""
        self._asked_at = monotonic()
        self.saw_all = self._view.is_whole or self._asked_at >= self.whole_at
        return View(places=self._view.places) if self.saw_all else self._view

    def learn(self, view: View) -> None:
        """The claim has brought this."""
        self._view = view
        if self.saw_all:
            now = monotonic()
            self.whole_at = now + (now - self._asked_at) * PAUSE_RATIO
