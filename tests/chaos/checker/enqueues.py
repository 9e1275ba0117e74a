"""What callers were promised: committed means queued, rolled back means never existed, one row for a key."""

from collections import Counter, defaultdict

from tests.chaos.checker.evidence import Violation


def made(event):
    """(uid, id, duplicate) of each call of an operation."""
    return [tuple(each) for each in event.get("made", ())]


def lost(e):
    """I1: what was acknowledged is a row, and what its caller wrote beside it is there."""
    for ack in e.of("ack"):
        for uid, id_, _ in made(ack):
            if id_ not in e.row:
                yield Violation("I1", f"task {id_} ({uid}) was acknowledged and is not there", (ack,))
        if e.written and ack["op"] not in e.written and _wrote(e, ack):
            yield Violation("I1", f"what {ack['op']} wrote beside its tasks is not there", (ack,))


def _wrote(e, ack):
    """Autocommitted enqueues write nothing beside themselves."""
    return e.modes.get(ack["op"]) != "autocommit"


def phantoms(e):
    """I3: what was rolled back, or ended quietly without a commit, never runs, and is no row."""
    acked = {uid for ack in e.of("ack") for uid, _, _ in made(ack)}
    started = {event["uid"] for event in e.of("start")}
    rows = {row.uid for row in e.rows}
    keys = {event["uid"] for event in e.of("try") if event.get("key")}
    for event in e.of("rb", "silent"):
        for uid, id_, _ in made(event):
            if uid in keys:
                continue  # others race for the key; see I9
            if uid in started:
                yield Violation("I3", f"{uid} was rolled back and ran", (event,))
            elif uid in rows and uid not in acked:
                yield Violation("I3", f"{uid} was rolled back and is task {id_}", (event,))


def strangers(e):
    """I1: nothing runs that nobody has tried to enqueue."""
    tried = {event["uid"] for event in e.of("try")}
    for row in e.rows:
        if row.uid not in tried:
            yield Violation("I1", f"task {row.id} ({row.uid}) was enqueued by nobody")


def too_early(e):
    """I4: none starts before its caller was about to commit."""
    precommits = {}
    for event in e.of("precommit"):
        precommits.setdefault(event["op"], event["t"])
    earliest = {}
    for event in e.of("try"):
        if event["op"] in precommits:
            known = earliest.get(event["uid"], float("inf"))
            earliest[event["uid"]] = min(known, precommits[event["op"]])
    for start in e.of("start"):
        if start["t"] < earliest.get(start["uid"], 0.0):
            yield Violation("I4", f"{start['uid']} started before its caller committed", (start,))


def keys(e):
    """I9: one row for a key; all who were acknowledged got its id, and all but one were told that it is a duplicate."""
    per_key = Counter(row.key for row in e.rows if row.key is not None)
    for key, count in per_key.items():
        if count > 1:
            yield Violation("I9", f"{count} rows have the key {key!r}")
    for key, got in _answers_by_key(e).items():
        shown = tuple(ack for _, _, ack in got[:5])
        if len({id_ for id_, _, _ in got}) > 1:
            yield Violation("I9", f"callers with the key {key!r} got different tasks", shown)
        if sum(not duplicate for _, duplicate, _ in got) > 1:
            yield Violation("I9", f"several callers were told that the key {key!r} was new", shown)


def _answers_by_key(e):
    """(id, duplicate, event) of each acknowledged call."""
    keyed = {event["uid"]: event["key"] for event in e.of("try") if event.get("key")}
    answers = defaultdict(list)
    for ack in e.of("ack"):
        for uid, id_, duplicate in made(ack):
            if uid in keyed:
                answers[keyed[uid]].append((id_, duplicate, ack))
    return answers


RULES = (lost, phantoms, strangers, too_early, keys)
