"""What is measured and counted beside the tasks: sessions, memory, and the statistics that workers write."""

from bisect import bisect_left
from collections import Counter, defaultdict

from tests.chaos.checker.evidence import Violation

#: Memory may grow by so many megabytes an hour over the last half of a run, if that half lasts for so many seconds.
#: In a shorter run caches still fill: it may grow by so many megabytes in all.
SLOPE, LONG, SHORT_GROWTH = 5.0, 900.0, 30.0
#: Of less than so many seconds, in which a process may just have started, nothing is said.
START = 45.0
#: Workers write their statistics that often, in seconds, with some time to get to it.
WRITTEN_EVERY = 10.0 + 2.0


def sessions(e):
    """I18: no more sessions than the processes may have."""
    for sample in e.of("sample"):
        if sample["sessions"] > e.limits.sessions:
            yield Violation("I18", f"{sample['sessions']} sessions, more than {e.limits.sessions}", (sample,))


def memory(e):
    """I18: the memory of a worker that lived through the last half of the load does not grow."""
    for pid, growth in growths(e).items():
        if growth["seconds"] >= LONG and growth["an_hour"] > SLOPE:
            yield Violation("I18", f"worker {pid} grows by {growth['an_hour']:.1f} MB an hour")
        elif growth["megabytes"] > SHORT_GROWTH:
            yield Violation("I18", f"worker {pid} grew by {growth['megabytes']:.1f} MB in {growth['seconds']:.0f} s")


def growths(e):
    """By pid: how much it grew in the last half of the load, by the line that fits its samples best."""
    begins, ends = e.load
    middle, found = (begins + ends) / 2, defaultdict(list)
    for sample in e.of("sample"):
        if middle <= sample["t"] <= ends:
            for pid, megabytes in sample.get("megabytes", {}).items():
                found[pid].append((sample["t"], megabytes))
    whole = {pid: at for pid, at in found.items() if at[-1][0] - at[0][0] > 0.9 * (ends - middle) > START}
    return {pid: _growth(at) for pid, at in whole.items()}


def _growth(points):
    slope, seconds = _slope(points), points[-1][0] - points[0][0]
    return {"an_hour": slope * 3600, "megabytes": slope * seconds, "seconds": seconds}


def _slope(points):
    """Of the straight line through these, by least squares."""
    x = sum(t for t, _ in points) / len(points)
    y = sum(value for _, value in points) / len(points)
    return sum((t - x) * (value - y) for t, value in points) / sum((t - x) ** 2 for t, _ in points)


def statistics(e):
    """I2: the table of minutes counts as many completed runs of a function as the log of changes.

    What a killed worker had not yet written is missing. What was written on a session that broke may be there twice,
    because nobody knows whether it was.
    """
    if e.minutes is None:
        return
    done, missing, twice = Counter(), Counter(), Counter()
    for change in e.changes:
        if change.state == "COMPLETED":
            name = e.row[change.id].function
            done[name] += 1
            missing[name] += _was_lost(e, change)
            twice[name] += _comes_before(e, change.t)
    counted = Counter()
    for function, completed in e.minutes:
        counted[function] += completed
    for name in {*done, *counted}:
        if not done[name] - missing[name] <= counted[name] <= done[name] + twice[name]:
            text = f"the statistics count {counted[name]} completed runs of {name}, the log {done[name]}"
            yield Violation("I2", f"{text}, of which {missing[name]} may be missing and {twice[name]} there twice")


def _was_lost(e, change):
    """Was the worker that settled this killed before it had to have written its statistics?"""
    return any(change.t - 1 <= at <= change.t + WRITTEN_EVERY for at in e.deaths_of(change.id, change.lease))


def _comes_before(e, t):
    """Was the database disturbed before a worker had to have written what it settled then?"""
    begins = e.disturbed_since
    place = bisect_left(begins, t - 1)
    return place < len(begins) and begins[place] <= t + WRITTEN_EVERY


RULES = (sessions, memory, statistics)
