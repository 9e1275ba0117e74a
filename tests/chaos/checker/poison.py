"""Tasks that kill their worker, and those beside them."""

from bisect import bisect_right
from collections import defaultdict

from tests.chaos.checker.evidence import Violation
from tests.chaos.checker.recovery import percentile

#: Below so many harmless tasks on either side their waits say nothing; what is within so many seconds is no difference.
LEAST, NO_DIFFERENCE = 100, 0.5


def neighbours(e):
    """poison: tasks that kill their worker end DEAD after their budget, and cost each neighbour one run at most."""
    if not e.limits.poison:
        return
    victims = _victims(e)
    killers = {row.id for row in e.rows if row.function.endswith(".kills")}
    for row in e.rows:
        if row.id in killers and row.state != "DEAD":
            yield Violation("poison", f"task {row.id}, which kills its worker, is {row.state}")
        if row.id not in killers and row.state == "DEAD" and row.lost >= 2:
            beside = set().union(*(ids & killers for ids in victims.values() if row.id in ids))
            if len(beside) < row.lost:
                text = (
                    f"task {row.id} is DEAD, lost {row.lost} times, and harmless; beside it were {len(beside)} killers"
                )
                yield Violation("poison", text, tuple(e.changes_of.get(row.id, ())))


def _victims(e):
    """By worker: the tasks that were lost with it."""
    owner = {(c.id, c.lease): c.worker for c in e.changes if c.verb == "claim"}
    found = defaultdict(set)
    for change in e.changes:
        if change.verb == "rescue":
            found[owner.get((change.id, change.lease))].add(change.id)
    return found


def waits(e, *, poisoned):
    """From the acknowledgement to the start of harmless tasks, before there was poison or since, in seconds.

    Not of those that were lost with their worker, which wait for its lease to end, nor while a worker is starved or
    hardly any process has come back yet: how long one takes to start is not the queue's.
    """
    begins = e.poisoned_since
    if begins is None:
        return []
    short = e.undermanned(e.limits.few)
    acked = {id_: ack["t"] for ack in e.of("ack") for _, id_, _ in ack["made"]}
    found = []
    for row in e.rows:
        at, starts = acked.get(row.id), e.starts_of.get(row.id)
        if at is None or not starts or row.lost or row.function.endswith((".kills", ".abuses")):
            continue
        if (at >= begins) == poisoned and not _is_without(e, short, at, starts[0]["t"]):
            found.append(max(starts[0]["t"] - at, 0.0))
    return found


def _is_without(e, short, since, until):
    """Then, or in the moments before, of which what had piled up is still being worked off."""
    return any(_touches(spans, since - 3 * e.limits.lease, until) for spans in (e.starvations, short))


def _touches(spans, since, until):
    place = bisect_right(spans, (until, float("inf")))
    return place > 0 and spans[place - 1][1] >= since


def held_up(e):
    """I15: harmless tasks start about as soon with poison beside them as without."""
    before, since = waits(e, poisoned=False), waits(e, poisoned=True)
    if min(len(before), len(since)) < LEAST:
        return
    calm, poisoned = percentile(before, 0.99), percentile(since, 0.99)
    if poisoned > e.limits.calm_share * calm + NO_DIFFERENCE:
        yield Violation("I15", f"p99 of the wait of harmless tasks: {poisoned:.2f} s with poison, {calm:.2f} s without")


RULES = (neighbours, held_up)
