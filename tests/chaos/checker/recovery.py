"""How fast it is back: after the death of a worker, after a fault of the database, and when it is told to stop."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import islice
from math import inf
from signal import SIGTERM

from tests.chaos.checker.evidence import Violation

#: Throughput is counted in windows of so many seconds; before a fault over more of them.
WINDOW, BEFORE = 2.0, 8.0
#: Below so many tasks a second the count says nothing.
LEAST_RATE = 3.0


def percentile(values, share):
    """The value below which this share of them lies; None of nothing."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


class Recovery:
    """The times of one run, in seconds: `deaths`, `outages`, `throughput`, `pickups`, `handed_back`."""

    def __init__(self, evidence):
        self._e = evidence
        self._claims = sorted((c.t, c.run_at, c.id) for c in evidence.changes if c.verb == "claim")
        self._acked = {id_: ack["t"] for ack in evidence.of("ack") for _, id_, _ in ack["made"]}
        self._done = [c.t for c in evidence.changes if c.state == "COMPLETED"]
        self.deaths = list(self._deaths())
        self.outages = list(self._outages())
        self.throughput = list(self._throughput())
        self.pickups = list(self._pickups())
        self.handed_back = list(self._handed_back())

    def _deaths(self):
        """From the death of a worker with running functions until each of its tasks may start again, or has ended.

        (seconds, whether only process faults were going on, the start that was lost)
        """
        ended = {(event["id"], event["lease"]) for event in self._e.of("end")}
        starts = defaultdict(list)
        for start in self._e.of("start"):
            if (start["id"], start["lease"]) not in ended:
                starts[start["p"]].append(start)
        for fault in self._e.of("fault"):
            if not fault["kind"].startswith("kill"):
                continue
            for start in (s for pid in fault["pids"] for s in starts.get(pid, ()) if s["t"] < fault["t"]):
                yield from self._death(fault, start)

    def _death(self, fault, start):
        after = [c for c in self._e.changes_of.get(start["id"], ()) if c.t > fault["t"]]
        back = next((c.t for c in after if c.was == "RUNNING" and c.state != "RUNNING"), None)
        if back is not None:
            is_alone = not any(b <= back and e >= fault["t"] for b, e in self._e.disturbances)
            yield back - fault["t"], is_alone, start

    def _outages(self):
        """From the server's return to the first claim, where somebody was waiting for it."""
        for _, back in self._e.outages:
            later = bisect_right(self._claims, (back,))
            if back < self._e.load[1] and any(
                due < back and self._acked.get(id_, back) < back for _, due, id_ in islice(self._claims, later, None)
            ):
                yield self._claims[later][0] - back, back

    def _throughput(self):
        """From the end of a fault of the database until a window begins in which 90 % as much is done as before it.

        (seconds, when the fault was over, seconds until the next fault or the end of the load); None instead of the
        first: that came too early.
        """
        faults = [(b, e) for b, e in self._e.disturbances if self._e.load[0] + BEFORE < b < self._e.load[1]]
        for begins, back in faults:
            before = self._rate(begins - BEFORE, begins)
            nexts = [b for b, _ in self._e.disturbances if b > back]
            until = min([self._e.load[1], *nexts])
            if before >= LEAST_RATE:
                yield self._back_at(back, until, 0.9 * before), back, until - back

    def _back_at(self, back, until, wanted):
        at = back
        while at + WINDOW <= until:
            if self._rate(at, at + WINDOW) >= wanted:
                return at - back
            at += 0.1
        return None

    def _rate(self, since, until):
        return (bisect_left(self._done, until) - bisect_left(self._done, since)) / (until - since)

    def _pickups(self):
        """From the acknowledgement to the start, of tasks without a delay; as a rule in times without faults."""
        acked = {id_: ack["t"] for ack in self._e.of("ack") for _, id_, duplicate in ack["made"] if not duplicate}
        ahead = {event["uid"] for event in self._e.of("try") if event["mode"] == "ahead"}
        always = self._e.limits.pickup_in_faults
        for id_, starts in self._e.starts_of.items():
            if id_ not in acked or starts[0]["uid"] in ahead:
                continue
            if always or self._e.was_quiet(acked[id_] - 3 * self._e.limits.lease, starts[0]["t"]):
                yield max(starts[0]["t"] - acked[id_], 0.0), id_

    def _handed_back(self):
        """From the moment in which a worker that was told to stop gave a task back until another one claims it.

        (seconds, the id of the task); what is given back after the load nobody is left to take.
        """
        stops = {fault["pids"][0]: fault["t"] for fault in self._e.of("fault") if fault["kind"] == "term"}
        for event in self._e.of("settle"):
            if not stops.get(event["p"], inf) < event["t"] < self._e.load[1]:
                continue
            for id_, lease, verb, said in event["runs"]:
                if verb in ("interrupt", "hand back") and said == "PENDING":
                    claim = next((c for c in self._e.changes_of.get(id_, ()) if c.old_lease == lease < c.lease), None)
                    yield max((claim.t if claim else inf) - event["t"], 0.0), id_


def slow_handovers(e, recovery):
    """I19: what a worker gave back when it was told to stop, another one has soon."""
    for seconds, id_ in recovery.handed_back:
        if seconds > e.limits.handover:
            yield Violation("I19", f"task {id_} was given back, and claimed {seconds:.1f} s later")


def slow_recoveries(e, recovery):
    """I14: a dead worker's tasks start again soon, and the database's return is noticed soon."""
    limits = e.limits
    for seconds, is_alone, start in recovery.deaths:
        if is_alone and seconds > limits.lease + limits.sweep + limits.recovery:
            yield Violation("I14", f"task {start['id']} was back {seconds:.1f} s after its worker's death", (start,))
    for seconds, back in recovery.outages:
        if seconds > limits.back and not any(
            b < back + seconds and ends > back for b, ends in e.disturbances if b > back
        ):
            yield Violation("I14", f"the first claim came {seconds:.1f} s after the server was back, at {back:.1f}")
    if limits.pickup is not None:
        for seconds, id_ in recovery.pickups:
            if seconds > limits.pickup:
                yield Violation("I14", f"task {id_} started {seconds:.1f} s after its acknowledgement")


def slow_throughput(e, recovery):
    """throughput: 90 % of what was done before a fault of the database is done again soon after it."""
    allowed = e.limits.throughput
    for seconds, back, quiet in recovery.throughput if allowed else ():
        if (seconds is None and quiet > allowed + WINDOW) or (seconds is not None and seconds > allowed):
            yield Violation("throughput", f"not back at 90 % within {allowed:g} s of {back:.1f}")


def unasked_exits(e):
    """I15: no process ends that nobody has killed or told to stop, and no worker that was told to fails to."""
    asked = {pid for fault in e.of("fault") for pid in fault.get("pids", ()) if not _only_a_child(fault)}
    for event in e.of("exit"):
        if event["pid"] not in asked:
            yield Violation("I15", f"{event['slot']} ended by itself with {event['code']}", (event,))


def _only_a_child(fault):
    return fault["kind"] == "kill child"


def bad_stops(e):
    """I19: a worker that gets SIGTERM leaves in time with 0, and starts nothing more."""
    began = {event["p"] for event in e.of("start", "settle")}
    stops = {f["pids"][0]: f["t"] for f in e.of("fault") if f["kind"] == "term"}
    for event in e.of("exit"):
        stop = stops.get(event["pid"])
        if stop is None or not event["slot"].startswith("worker"):
            continue
        is_harmed = e.was_harmed(event["pid"], 0, event["t"], ("kill", "freeze", "starve"))
        is_early = event["code"] == -SIGTERM and event["pid"] not in began  # not yet in the worker's code
        if not is_harmed and not is_early and e.was_up(stop, event["t"]):
            yield from _bad_stop(e, event, stop)
    for event in e.of("stuck"):
        yield Violation("I19", f"{event['slot']} did not stop at all", (event,))


def _bad_stop(e, event, stop):
    if event["code"] != 0:
        yield Violation("I19", f"{event['slot']} ended with {event['code']} after SIGTERM", (event,))
    if late := [start for start in e.of("start") if start["p"] == event["pid"] and start["t"] > stop + 1.0]:
        yield Violation("I19", f"{event['slot']} started tasks after SIGTERM", tuple(late))
    if event["t"] - stop > e.limits.drain + 4.0:
        yield Violation("I19", f"{event['slot']} took {event['t'] - stop:.1f} s to stop", (event,))


RULES = (slow_recoveries, slow_throughput, slow_handovers)
PLAIN_RULES = (unasked_exits, bad_stops)
