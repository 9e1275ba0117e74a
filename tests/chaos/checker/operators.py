"""What the operator was told, against what happened."""

from collections import Counter

from tests.chaos.checker.evidence import FINAL, SLACK, Violation


def cancels(e):
    """I10: `canceled` never starts, `requested` never starts again, `finished` had ended; until somebody revives it."""
    for event in e.of("cancel"):
        changes = e.changes_of.get(event["id"], [])
        match event["answer"]:
            case "canceled":
                yield from _is_final(event, changes, lambda c: c.verb == "cancel" and c.state == "CANCELED")
            case "requested":
                yield from _is_final(event, changes, lambda c: c.asked and c.state == "RUNNING")
            case "finished":
                yield from _had_ended(event, changes)


def _is_final(event, changes, is_cancel):
    """After the cancel, which is in the log before the answer, nobody claims the task before it is revived."""
    done = [place for place, c in enumerate(changes) if is_cancel(c) and c.t <= event["t"] + SLACK]
    if not done:
        text = f"task {event['id']}: the answer was {event['answer']!r}, and no cancel is in the log"
        yield Violation("I10", text, (event,))
        return
    for change in changes[done[-1] + 1 :]:
        if change.verb == "revive":
            return
        if change.verb == "claim":
            text = f"task {event['id']} was claimed after the answer {event['answer']!r}"
            yield Violation("I10", text, (event, change))


def _had_ended(event, changes):
    """At some moment between the question and the answer it was in a final state."""
    times = [change.t for change in changes[1:]] + [float("inf")]
    for change, until in zip(changes, times, strict=False):
        if change.state in FINAL and change.t <= event["t"] + SLACK and until >= event["began"] - SLACK:
            return
    yield Violation("I10", f"task {event['id']} was said to have ended and had not", (event, *changes))


def asked_to_stop(e):
    """I10: of a run that was asked to stop, only a success and CANCELED come."""
    for change in e.changes:
        if change.asked and change.was == "RUNNING" and change.state in ("PENDING", "DEAD"):
            yield Violation("I10", f"task {change.id} was asked to stop and is {change.state}", (change,))


def revivals(e):
    """I11: as many tasks were put back as answers said yes, no more and no fewer, and the rows of attempts stay."""
    said, unclear = Counter(), Counter()
    for event in e.of("revive"):
        said[event["id"]] += event["answer"] is True
        unclear[event["id"]] += event["answer"] == "unknown"
    done = Counter(change.id for change in e.changes if change.verb == "revive")
    for id_ in {*said, *done}:
        if not said[id_] <= done[id_] <= said[id_] + unclear[id_]:
            yield Violation("I11", f"task {id_} was revived {done[id_]} times, and {said[id_]} answers said yes")


RULES = (cancels, asked_to_stop, revivals)
