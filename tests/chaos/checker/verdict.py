"""All rules over one run, and whether its faults hit often enough for the answer to mean anything."""

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.checker import bounds, enqueues, operators, order, outages, poison, recovery, runs
from tests.chaos.checker.evidence import Violation


@dataclass
class Verdict:
    """What a run came to.

    Args:
        hits: how often each fault hit.
        floors: how often it had to.
    """

    violations: list[Violation]
    hits: Counter
    floors: dict = field(default_factory=dict)
    figures: dict = field(default_factory=dict)

    @property
    def missed(self):
        """Faults that did not hit often enough."""
        return {code: floor for code, floor in self.floors.items() if self.hits[code] < floor}

    @property
    def word(self):
        if self.violations:
            return "FAIL"
        return "VACUOUS" if self.missed else "pass"


def check(evidence, floors=None):
    """Every rule over the evidence.

    Args:
        floors: the least number of hits of each fault.
    """
    plain = (
        *enqueues.RULES,
        *runs.RULES,
        *operators.RULES,
        *order.RULES,
        *recovery.PLAIN_RULES,
        *bounds.RULES,
        *outages.RULES,
        *poison.RULES,
    )
    violations = [violation for rule in plain for violation in rule(evidence)]
    times = recovery.Recovery(evidence)
    violations += [violation for rule in recovery.RULES for violation in rule(evidence, times)]
    return Verdict(violations, hits(evidence), floors or {}, figures(evidence, times))


def hits(e):
    """How often each fault did harm that can be seen."""
    found = Counter(event["code"] for event in e.of("witness"))
    ended = {(event["id"], event["lease"]) for event in e.of("end")}
    cut_off = {s["p"] for s in e.of("start") if (s["id"], s["lease"]) not in ended}
    for fault in e.of("fault"):
        if fault["kind"].startswith("kill"):
            found["F1"] += any(pid in cut_off for pid in fault["pids"])
    found["F10"] += sum(abs(skew) > 5 for skew in _skews(e))
    found["F2"] += len(_refused(e))
    found["refused atomic"] = sum(row.state == "DEAD" and row.function.endswith(".long_effect") for row in e.rows)
    found["sessions"] = sum(event.get("sessions", 0) for event in e.of("witness"))
    found["cancels"] = sum(event["answer"] in ("canceled", "requested") for event in e.of("cancel"))
    found["racers"] = len({ack["op"] for ack in e.of("ack") if any(duplicate for _, _, duplicate in ack["made"])})
    return found


def _skews(e):
    """By how much the clock of each worker differs from ours, in seconds."""
    walls = {event["role"]: event["wall"] - event["t"] for event in e.of("hello") if "wall" in event}
    ours = walls.get("stage", 0.0)
    for event in e.of("hello"):
        if event["role"].startswith("worker"):
            yield event.get("wall", 0.0) - event["t"] - ours if "wall" in event else 0.0


def _refused(e):
    """Runs of a frozen process that wrote something, or were about to renew, when the task was no longer theirs."""
    refused = {(event["id"], event["lease"]) for event in e.of("lease lost")}
    refused |= {(id_, lease) for event in e.of("settle") for id_, lease, _, said in event["runs"] if said == "refused"}
    return refused


def figures(e, times):
    """Numbers for the report."""
    deaths = [seconds for seconds, _, _ in times.deaths]
    back = [seconds for seconds, _, _ in times.throughput if seconds is not None]
    return {
        "tasks": len(e.rows),
        "starts": len(e.of("start")),
        "changes": len(e.changes),
        "states": dict(Counter(row.state for row in e.rows)),
        "acknowledged": sum(len(event["made"]) for event in e.of("ack")),
        "rolled back": sum(len(event.get("made", ())) for event in e.of("rb", "silent")),
        "unclear": len(e.of("unknown")),
        "effects": len(e.effects),
        "lived": _lived(e),
        "recovered": len(deaths),
        "death": _spread(deaths),
        "outage": _spread([seconds for seconds, _ in times.outages]),
        "throughput": _spread(back),
        "pickup": _spread([seconds for seconds, _ in times.pickups]),
        "handed back": _spread([seconds for seconds, _ in times.handed_back]),
        "calm": _spread(poison.waits(e, poisoned=False)),
        "poisoned": _spread(poison.waits(e, poisoned=True)),
        "times": {
            "death": [round(seconds, 2) for seconds in deaths],
            "outage": [round(seconds, 2) for seconds, _ in times.outages],
            "throughput": [round(seconds, 2) for seconds in back],
        },
        "sessions": max((sample["sessions"] for sample in e.of("sample")), default=None),
        "megabytes an hour": {pid: round(growth["an_hour"], 2) for pid, growth in bounds.growths(e).items()},
    }


def _lived(e):
    """Runs at work when the server was gone for two leases or more, and of how many the task was taken."""
    long = [run for run in outages.lived(e) if run.is_long]
    return {"n": len(long), "taken": sum(run.rescue is not None for run in long)}


def _spread(values):
    """n, p50, p95 and the largest, in seconds."""
    if not values:
        return None
    found = [recovery.percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)]
    return {"n": len(values), **dict(zip(("p50", "p95", "p99", "max"), [round(v, 2) for v in found], strict=True))}
