"""Tasks that kill their worker, and those beside them."""

from bisect import bisect_right

from tests.chaos.checker.evidence import Violation
from tests.chaos.checker.recovery import percentile

#: Below so many harmless tasks on either side their waits say nothing; what is within so many seconds is no difference.
LEAST, NO_DIFFERENCE = 100, 0.5


def neighbours(e):
    """poison: tasks that kill their worker end DEAD after their budget, and take nobody with them."""
    for row in e.rows if e.limits.poison else ():
        kills = row.function.endswith(".kills")
        if kills and row.state != "DEAD":
            yield Violation("poison", f"task {row.id}, which kills its worker, is {row.state}")
        if not kills and row.state == "DEAD" and row.lost >= 2:
            yield Violation("poison", f"task {row.id} is DEAD, lost {row.lost} times, and harmless")


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
