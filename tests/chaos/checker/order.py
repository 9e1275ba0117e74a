"""Who is claimed before whom, where one worker has one slot."""

from typing import NamedTuple

from tests.chaos.checker.evidence import Violation


class Wait(NamedTuple):
    """A time in which a task was ready, up to the claim that ended it."""

    since: float
    place: tuple
    claim: object


def overtaken(e):
    """I12: what is claimed comes first of all that have waited for a moment, by priority, due time and id.

    What was committed or became due just now may be behind a place that the worker has passed, until its next whole
    look. Suspects stand in a line of their own.
    """
    if e.limits.order is None:
        return
    coming = sorted(_waits(e))
    known = set()
    for wait in sorted(coming, key=lambda each: each.claim.n):
        while coming and coming[0].since < wait.claim.t - e.limits.order:
            known.add(coming.pop(0))
        known.discard(wait)
        first = min((other for other in known if other.claim.n > wait.claim.n), key=lambda o: o.place, default=wait)
        if first.place < wait.place:
            text = (
                f"task {first.claim.id} waited for {wait.claim.t - first.since:.1f} s when {wait.claim.id} was claimed"
            )
            yield Violation("I12", text, (first, wait))


def _waits(e):
    """Of tasks that were never lost."""
    acked = {id_: ack["t"] for ack in e.of("ack") for _, id_, _ in ack["made"]}
    for id_, changes in e.changes_of.items():
        since = acked.get(id_)
        for change in changes:
            if change.verb == "claim" and since is not None and not change.lost:
                place = (-e.row[id_].priority, change.run_at, id_)
                yield Wait(max(since, change.run_at), place, change)
            since = change.t


RULES = (overtaken,)
