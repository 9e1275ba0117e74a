"""The figures of all recorded runs, and the part of docs/explanation/reliability.md that is made of them.

A record is a line of JSON in `results.jsonl`: `python -m tests.chaos --record` appends one for each run and writes the
page anew. A run that failed stays, until its fault is mended and somebody removes the line and says so in the commit.
"""

import json
from collections import Counter
from pathlib import Path

from tests.chaos.checker.recovery import percentile

HERE = Path(__file__).parent
RECORDS = HERE / "results.jsonl"
PAGE = HERE.parents[1] / "docs" / "explanation" / "reliability.md"

#: Codes of the faults that have a witness, and what to call them.
FAULTS = {
    "F1": "worker or child killed in mid-task",
    "F2": "write of a run refused that was no longer the owner",
    "F3": "worker starved",
    "F4": "server crashed",
    "F5": "sessions ended",
    "F5c": "session of a clerk ended in the middle of a settle",
    "F6": "failover with promotion",
    "F7": "PgBouncer restarted or paused",
    "F8": "network cut, slow, refusing or silent",
    "F9": "disk full",
    "F10": "worker with a wrong clock",
    "F10s": "server's clock stepped by an hour",
    "F11": "connection slots used up",
    "F12": "small timeouts met",
    "F13": "snapshot held",
    "F13p": "prepared transaction held",
    "F13s": "replication slot unread, log of writes kept",
    "F14": "table locked",
    "F15": "listener deaf",
    "F16": "worker told to stop, exit 0",
    "F18": "abusive function",
    "F20": "slow writes and checkpoints",
    "clerk": "settles of a hundred runs or more, said by the clerk",
    "refused atomic": "atomic functions that ended DEAD above READ COMMITTED, as the system check says",
    "cancels": "cancels that took effect",
    "racers": "enqueues that met their key",
}
TIMES = {
    "death": "worker killed, until its tasks are free again (lease 2 s)",
    "outage": "database back, until the first claim",
    "throughput": "database back, until 90 % of the throughput before",
}


def record(results):
    """Append runs to the records, and write the page."""
    with RECORDS.open("a", encoding="utf-8") as file:
        for result in results:
            file.write(json.dumps(result.as_dict()) + "\n")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(text):
    """The text of the page with its figures as the records have them."""
    head, begin, rest = text.partition("<!-- begin figures -->\n")
    _, end, tail = rest.partition("\n<!-- end figures -->")
    assert begin, "the page has no part for figures"
    assert end, "the part of the page for figures has no end"
    return head + begin + figures() + end + tail


def figures():
    """The generated part of the page."""
    runs = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    blocks = [_summary(runs), _targets(runs), _profiles(runs), _faults(runs), _recoveries(runs), _notes(runs)]
    blocks.append(_machines(runs))
    return "\n\n".join(blocks)


def _summary(runs):
    tasks, minutes = sum(run["tasks"] for run in runs), sum(run["minutes"] for run in runs)
    violations = sum(len(run["violations"]) for run in runs)
    vacuous = sum(run["verdict"] == "VACUOUS" for run in runs)
    return (
        f"**{violations} violations** in {tasks:,} tasks, {len(runs)} runs, {minutes:,.0f} minutes under faults. "
        f"{vacuous} of the runs are vacuous: a fault did not hit often enough."
    )


def _targets(runs):
    """What a whole night should have, and what there was; a run that fails makes the last column say so."""
    failed = any(run["violations"] for run in runs)
    rows = ["| of what | wanted | was | failures in 100 are fewer than (95 %) |", "|---|--:|--:|--:|"]
    for what, wanted, count in TARGETS:
        if n := count(runs):
            rows.append(f"| {what} | {wanted:,} | {n:,} | {'see above' if failed else f'{300 / n:.2g}'} |")
    return "\n".join(rows)


def _hits(*codes):
    return lambda runs: sum(run["hits"].get(code, 0) for run in runs for code in codes)


def _tasks(*, pressed):
    return lambda runs: sum(run["tasks"] for run in runs if (run["profile"] == "E") == pressed)


def _sessions(runs):
    """Ended in all profiles; those of L are all listeners."""
    return sum(run["hits"].get("sessions", 0) for run in runs)


def _listeners(runs):
    return sum(run["hits"].get("sessions", 0) for run in runs if run["profile"] == "L")


def _living(runs):
    return sum(run.get("lived", {}).get("n", 0) for run in runs)


#: What, how many of it a night should have, and how many there were.
TARGETS = (
    ("tasks at 500 a second or more (E)", 1_000_000, _tasks(pressed=True)),
    ("tasks in the other profiles", 200_000, _tasks(pressed=False)),
    ("kills in mid-task", 1_000, _hits("F1")),
    ("writes refused of runs that were no longer owners", 300, _hits("F2")),
    ("crashes of the server", 200, _hits("F4")),
    ("live runs over a crash that lasts two leases or more, none of them taken", 300, _living),
    ("failovers", 50, _hits("F6")),
    ("sessions ended", 1_000, _sessions),
    ("... of listeners, with no wake-up lost", 100, _listeners),
    ("enqueues that met their key", 100_000, _hits("racers")),
    ("cancels", 20_000, _hits("cancels")),
    ("stop signals, exit 0", 500, _hits("F16")),
)


def _profiles(runs):
    rows = ["| profile | what | runs | seeds | minutes | tasks | violations |", "|---|---|--:|---|--:|--:|--:|"]
    for name in dict.fromkeys(run["profile"] for run in runs):
        mine = [run for run in runs if run["profile"] == name]
        seeds = ", ".join(str(run["seed"]) for run in mine)
        rows.append(
            f"| {name} | {mine[-1]['title']} | {len(mine)} | {seeds} | {sum(run['minutes'] for run in mine):g} "
            f"| {sum(run['tasks'] for run in mine):,} | {sum(len(run['violations']) for run in mine)} |"
        )
    return "\n".join(rows)


def _faults(runs):
    hits = sum((Counter(run["hits"]) for run in runs), Counter())
    rows = ["| what hit | times |", "|---|--:|"]
    rows += [f"| {what} ({code}) | {hits[code]:,} |" for code, what in FAULTS.items() if hits[code]]
    return "\n".join(rows)


def _recoveries(runs):
    rows = ["| time to recover | n | p50 | p95 | max |", "|---|--:|--:|--:|--:|"]
    for name, what in TIMES.items():
        times = [seconds for run in runs for seconds in run["times"][name]]
        if times:
            found = " | ".join(f"{percentile(times, share):.1f} s" for share in (0.5, 0.95, 1.0))
            rows.append(f"| {what} | {len(times):,} | {found} |")
    return "\n".join(rows)


def _notes(runs):
    """Figures of single runs."""
    lines = []
    for run in runs:
        name = f"{run['profile']}, seed {run['seed']}"
        if run["profile"] == "E":
            lines.append(f"{name}: {run['tasks'] / run['minutes'] / 60:,.0f} tasks a second")
        if run["minutes"] >= 20:
            growths = ", ".join(f"{growth:+.1f}" for growth in run["megabytes an hour"].values())
            lines.append(f"{name}: memory of each worker over the last half of the run, MB an hour: {growths}")
        for key, what in SPREADS.items():
            if found := run.get(key):
                lines.append(f"{name}: {what}, n {found['n']:,}, p99 {found['p99']} s, max {found['max']} s")
    return "\n".join(f"- {line}" for line in lines)


#: Figures of a run that are told of each.
SPREADS = {
    "calm": "wait of harmless tasks without poison",
    "poisoned": "... beside poison",
    "handed back": "given back by a worker that stops, until claimed by another one",
}


def _machines(runs):
    """Each kind of machine and of software that the records come from, once."""
    return "\n".join(f"- {line}" for line in dict.fromkeys(run["on"] for run in runs))
