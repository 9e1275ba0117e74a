"""What happens to tasks: who may settle, how often they run, and that all of them end."""

from collections import Counter
from itertools import pairwise

from tests.chaos.checker.evidence import FINAL, SLACK, Violation

#: Allowed changes of state, by the tag of the statement.
EDGES = {
    "claim": {("PENDING", "RUNNING")},
    "settle": {("RUNNING", "COMPLETED"), ("RUNNING", "PENDING"), ("RUNNING", "DEAD"), ("RUNNING", "CANCELED")},
    "rescue": {("RUNNING", "PENDING"), ("RUNNING", "DEAD"), ("RUNNING", "CANCELED")},
    "cancel": {("PENDING", "CANCELED"), ("RUNNING", "RUNNING")},
    "revive": {("DEAD", "PENDING"), ("CANCELED", "PENDING")},
}


def unfinished(e):
    """I2: when all is healed and drained, every task that was due has ended."""
    for row in e.rows:
        if row.state not in FINAL and row.is_due:
            shown = tuple(e.starts_of.get(row.id, ())[-3:])
            yield Violation("I2", f"task {row.id} ({row.uid}) is left {row.state}", shown)


def false_starts(e):
    """I5: a run starts under a lease that was claimed before, no two under the same, a later one under a later."""
    claimed = {(c.id, c.lease): c.t for c in e.changes if c.verb == "claim"}
    for id_, starts in e.starts_of.items():
        for lease, count in Counter(start["lease"] for start in starts).items():
            if count > 1:
                yield Violation("I5", f"{count} runs of task {id_} have the lease {lease}", tuple(starts))
            first = min(start["t"] for start in starts if start["lease"] == lease)
            if claimed.get((id_, lease), float("inf")) > first + SLACK:
                text = f"a run of task {id_} has the lease {lease}, which nobody had claimed"
                yield Violation("I7", text, tuple(starts))
        for before, after in pairwise(starts):
            late = after["lease"] < before["lease"]
            if late and not e.was_harmed(after["p"], before["t"] - e.limits.lease * 4, after["t"]):
                yield Violation("I5", f"an older run of task {id_} started after a newer one", (before, after))


def stale_settles(e):
    """I5: a settle that changed a row is that of its newest lease."""
    for event in e.of("settle"):
        for id_, lease, _, answer in event["runs"]:
            if answer not in (None, "refused"):
                newer = [s for s in e.starts_of.get(id_, ()) if s["lease"] > lease and s["t"] < event["began"]]
                if newer:
                    text = f"task {id_} was settled by the run with the lease {lease}, which was no longer its own"
                    yield Violation("I5", text, (*newer, event))


def wrong_edges(e):
    """I6: every change of state is an arrow, made with the newest lease, and follows from the one before."""
    for id_, changes in e.changes_of.items():
        state, lease = "PENDING", 0
        for change in changes:
            if (change.was, change.old_lease) != (state, lease):
                yield Violation("I6", f"task {id_} went from {state} to {change.was} unseen", (change,))
            if (change.was, change.state) not in EDGES.get(change.verb, ()):
                yield Violation("I6", f"task {id_}: no {change.verb} from {change.was} to {change.state}", (change,))
            if change.lease != change.old_lease + (change.verb == "claim"):
                yield Violation("I6", f"task {id_}: a {change.verb} changed the lease", (change,))
            state, lease = change.state, change.lease


def attempts(e):
    """I7: each run that failed or was lost is counted once, has a row, and no budget is overdrawn."""
    for row in e.rows:
        changes = e.changes_of.get(row.id, [])
        losses = [c for c in changes if c.verb == "rescue"]
        since = max((place for place, c in enumerate(changes) if c.verb == "revive"), default=-1)
        counted = [c for c in changes[since + 1 :] if c.verb == "rescue"]
        if row.lost != len(counted):
            yield Violation("I7", f"task {row.id} was lost {len(counted)} times and says {row.lost}", tuple(counted))
        if row.lost > e.limits.max_lost or row.failures + row.lost > row.max_attempts:
            yield Violation("I7", f"task {row.id} has overdrawn its budget: {row}")
        if row.interrupted > e.limits.max_interrupted:
            yield Violation("I7", f"task {row.id} was interrupted {row.interrupted} times")
        rows = [attempt for attempt in e.attempts_of.get(row.id, ()) if attempt.ended == "LOST"]
        if len(rows) != len(losses):
            yield Violation("I7", f"task {row.id}: {len(losses)} losses, {len(rows)} rows of them", tuple(losses))
        yield from _accounts(row, changes)


def _accounts(row, changes):
    """Since the last revival, every claim is accounted for by what became of it."""
    claims, outcomes, before = 0, Counter(), None
    for change in changes:
        if change.verb == "revive":
            claims, outcomes = 0, Counter()
        elif change.verb == "claim":
            claims += 1
        elif change.was == "RUNNING" and change.state != "RUNNING":
            outcomes[_became(before, change)] += 1
        before = change
    if row.state != "RUNNING" and claims != sum(outcomes.values()):
        yield Violation("I7", f"task {row.id}: {claims} claims, and {dict(outcomes)} came of them", tuple(changes))
    for name in ("failures", "interrupted", "snoozed"):
        if getattr(row, name) != outcomes[name]:
            text = f"task {row.id} counts {getattr(row, name)} {name}, the log {outcomes[name]}"
            yield Violation("I7", text, tuple(changes))


def _became(before, change):
    """Which counter the end of a run went to; all others went to none."""
    if change.verb == "rescue":
        return "lost"
    for name in ("failures", "interrupted", "snoozed"):
        if before is not None and getattr(change, name) > getattr(before, name):
            return name
    return "free"


def repeats(e):
    """I8: a body that ended well is not run again, unless its process was killed, frozen or stopped meanwhile.

    Nothing else explains one but a step of the server's clock, by which leases are measured: not an outage of any
    length, not ended sessions. An atomic run ends with its transaction, not with its body, so its repeats are looked at
    by I20.
    """
    atomic = {row.id for row in e.rows if row.is_atomic}
    for id_, ends in e.ends_of.items():
        if id_ in atomic:
            continue
        for end in ends:
            if not end["ok"]:
                continue
            again = [s for s in e.starts_of.get(id_, ()) if s["t"] > end["t"] and s["lease"] > end["lease"]]
            began = min([end["t"], *(c.t for c in e.changes_of.get(id_, ()) if c.lease == end["lease"])])
            revived = any(c.verb == "revive" and c.t > began for c in e.changes_of.get(id_, ()))
            if not again or revived or e.was_stepped(began, again[0]["t"]):
                continue
            if not e.was_harmed(end["p"], began, again[0]["t"]):
                yield Violation("I8", f"task {id_} had ended well and ran again", (end, again[0]))


def early_claims(e):
    """I13: nothing is claimed before its time, by the database's clock.

    A statement goes by the time of its beginning; while that clock steps, the log of it may have another hour.
    """
    for change in e.changes:
        if change.verb == "claim" and change.t < change.run_at - 0.001 and not e.is_at_a_step(change.t):
            yield Violation("I13", f"task {change.id} was claimed {change.run_at - change.t:.3f} s early", (change,))


def effects(e):
    """I20: one effect of an atomic function for each task of it that is COMPLETED, by the run that settled it."""
    found = Counter(id_ for id_, _ in e.effects)
    lease_of = dict(e.effects)
    for row in e.rows:
        if not row.is_atomic:
            continue
        wanted = int(row.state == "COMPLETED")
        if found[row.id] != wanted:
            text = f"task {row.id} is {row.state} and has {found[row.id]} effects"
            yield Violation("I20", text, tuple(e.changes_of.get(row.id, ())))
        elif wanted and lease_of[row.id] != row.lease:
            yield Violation("I20", f"the effect of task {row.id} is not that of the run that settled it")


def language(e):
    """clean: no run finds the language that another one has left."""
    for start in e.of("start"):
        if start.get("lang", "en-us") != "en-us":
            yield Violation("clean", f"a run of {start['uid']} began in the language {start['lang']}", (start,))


RULES = (
    unfinished,
    false_starts,
    stale_settles,
    wrong_edges,
    attempts,
    repeats,
    early_claims,
    effects,
    language,
)
