"""Where a worker looks for tasks, and whether it is worth while: in each lane from where it began at the last look, and
now and then everywhere.

As long as somebody holds an old snapshot (a dump, a report, a forgotten transaction), PostgreSQL cannot remove the
index entries of claimed tasks, and a claim that began at the head of its lane would walk over every one of them. What
comes in behind a place waits for the next whole look: a task whose transaction took long to commit, one that was handed
back. A place is never younger than `lifecycle.claim.LATE_SECONDS`, and whole looks are as frequent as they are cheap:
some milliseconds apart as a rule, a second when a hundred milliseconds of dead entries have gathered.

A claim that leaves functions out, because it has no room for their kind, walks over all of them that wait. If it found
nothing there, it rests for a while, in the same proportion.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from django_dhara import registry
from django_dhara.lifecycle import Claim, Haul, View

if TYPE_CHECKING:
    from django_dhara.worker.hand import Demand

#: Between two whole looks, and after one that left functions out in vain: so many times as long as it took.
PAUSE_RATIO = 10.0


class Lanes:
    """What one worker remembers of the lanes that it serves, between its claims."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The next look is a whole one, from nothing: the server may be another one now."""
        self._view, self._asked_at = View(), 0.0
        #: When everything may be looked at again, and when functions may be left out again.
        self.whole_at = self.rests_until = 0.0
        #: Did the last claim look everywhere?
        self._saw_all = False
        #: Kinds of tasks (see `Demand`) that do not wait, as far as is known, and until when that is believed: until
        #: the next whole look, or for as long as nothing wakes the worker.
        self._absent: dict[str, float] = {}
        #: The kinds of which the last claim has found nothing anywhere.
        self.found_none_of: frozenset[str] = frozenset()

    def look(self) -> View:
        """What the next claim is to look at."""
        self._asked_at = monotonic()
        self._saw_all = self._view.is_whole or self._asked_at >= self.whole_at
        return View(places=self._view.places) if self._saw_all else self._view

    def learn(self, demand: Demand, haul: Haul) -> None:
        """A claim of this has brought that."""
        self._view = haul.view
        now = monotonic()
        pause_ends = now + (now - self._asked_at) * PAUSE_RATIO
        if self._saw_all:
            self.whole_at = pause_ends
        for kind in _kinds(haul.claims):
            self._absent.pop(kind, None)
        self.found_none_of = frozenset()
        if not haul.claims:
            self._absent |= dict.fromkeys(demand.kinds, inf if self._saw_all else self.whole_at)
            if self._saw_all:
                self.found_none_of = demand.kinds
            if demand.left_out:
                self.rests_until = pause_ends

    def rests(self, demand: Demand) -> bool:
        """Was it too much to look for this, and too little time ago?"""
        return bool(demand.left_out) and monotonic() < self.rests_until

    def may_bring(self, demand: Demand) -> bool:
        """Is there anything of this, as far as is known?"""
        now = monotonic()
        return not self.rests(demand) and any(self._absent.get(kind, 0.0) <= now for kind in demand.kinds)

    @property
    def look_again_at(self) -> float:
        """When to look again after a claim that did not look everywhere and found nothing."""
        return min((until for until in self._absent.values() if until > self._asked_at), default=inf)


def _kinds(claims: Iterable[Claim]) -> set[str]:
    found = {"async" if claim.function in registry.async_paths else "plain" for claim in claims}
    return found | {"suspect" for claim in claims if claim.is_suspect}
