"""Runs that were alive when the server crashed: their processes live on, so nobody may take their tasks from them."""

from bisect import bisect_right
from typing import NamedTuple

from tests.chaos.checker.evidence import Violation


class Lived(NamedTuple):
    """A run that was at work when the server was gone, in a process that nothing happened to.

    Args:
        is_long: the server was away for two leases or more.
        rescue: the change that took its task away; None: it kept it.
    """

    start: dict
    is_long: bool
    rescue: object


def lived(e):
    """Every run over every crash; see `Lived`."""
    ended = {(event["id"], event["lease"]): event["t"] for event in e.of("end")}
    starts = sorted(e.of("start"), key=lambda start: start["t"])
    times = [start["t"] for start in starts]
    for begins, back in e.crashes:
        for start in starts[bisect_right(times, begins - LONGEST) : bisect_right(times, begins)]:
            ends = ended.get((start["id"], start["lease"]), float("inf"))
            rescue = _rescue(e, start)
            until = rescue.t if rescue else min(ends, back + 3 * e.limits.lease)  # who has ended has yet to settle
            if ends > begins and not e.was_harmed(start["p"], start["t"], until):
                yield Lived(start, back - begins >= 2 * e.limits.lease, rescue)


#: No function of a run takes longer, in seconds.
LONGEST = 30.0


def _rescue(e, start):
    mine = (c for c in e.changes_of.get(start["id"], ()) if c.old_lease == start["lease"])
    return next((change for change in mine if change.verb == "rescue"), None)


def taken_from_the_living(e):
    """I8: no crash of the server, however long, makes anybody take a task from a worker that lives."""
    for run in lived(e):
        if run.rescue is not None:
            text = f"task {run.start['id']} was taken from a run that lived through a crash of the server"
            yield Violation("I8", text, (run.start, run.rescue))


def needless_rescues(e):
    """I8: no task is taken from a run whose process is well while the database can be reached."""
    for change in e.changes:
        if change.verb != "rescue":
            continue
        start = e.start_of.get((change.id, change.old_lease))
        since = change.t - 3 * e.limits.lease
        if start is None or start["t"] > change.t or e.was_disturbed(since, change.t):
            continue
        if not e.was_harmed(start["p"], start["t"] - e.limits.lease, change.t):
            text = f"task {change.id} was taken from a run that was well, in quiet times"
            yield Violation("I8", text, (start, change))


RULES = (taken_from_the_living, needless_rescues)
