"""What needs a person, worst first: each thing as a sentence, since when, and what it is about.

Looking finds out nothing new: everything is said of what `past` and `present` have read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dhara.stats.past import History, Range, Tally
from django_dhara.stats.present import COUNT_LIMIT, DEPTH_LIMIT, Died, Holder, Standing, Waiting, WorkerSeen
from django_dhara.words import capped, grouped, isolated, span

Level = Literal["harm", "warning", "notice"]
Kind = Literal[
    "no_workers", "unserved", "behind", "paused", "failing", "dead", "late", "lost", "snapshot", "suspects", "retries"
]

#: A queue falls behind when a task has been ready for so long.
BEHIND_SECONDS = 60
#: After so long it is told that nobody serves a queue: a deploy takes less.
UNSERVED_SECONDS = 15
#: A function fails when so many of its runs did, and such a share of them, in the range or in the last 5 minutes; from
#: the second share on it does harm.
FAILED_RUNS, FAILED_SHARE, BROKEN_SHARE = 5, 0.1, 0.5
#: Of each kind so many are named.
NAMED = 5


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that needs a person."""

    kind: Kind
    level: Level
    #: In the language that is active; names in it are isolated, see `words.plain`.
    sentence: str
    since: datetime | None
    backend: str = ""
    queue: str = ""
    function: str = ""
    #: How many tasks, runs or workers it is about; a queue's count stops at its limit.
    number: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is looked at. None: it could not be read in time."""

    now: datetime
    range: Range
    past: History | None
    standing: Standing | None
    waiting: Sequence[Waiting] | None
    workers: Sequence[WorkerSeen] | None
    died: Sequence[Died] | None
    holders: Sequence[Holder] | None
    #: The shortest range, which tells what goes on and what is over.
    lately: History | None


def attention(facts: Facts) -> list[Item]:
    """What needs a person, in the order of harm."""
    found: list[Item] = []
    for look in (_queues, _failing, _failed, _dead, _gone, _snapshots, _suspects, _retries):
        items = sorted(look(facts), key=lambda item: (_LEVELS.index(item.level), item.since or facts.now))
        found.extend(_few(items))
    return sorted(found, key=lambda item: _LEVELS.index(item.level))


_LEVELS: tuple[Level, ...] = ("harm", "warning", "notice")


def _few(items: list[Item]) -> Iterator[Item]:
    """The worst of a kind, and how many more there are."""
    yield from items[:NAMED]
    if (more := len(items) - NAMED) > 0:
        last = items[NAMED]
        yield replace(last, sentence=_MORE[last.kind](more) % more, queue="", function="", number=more)


def _queues(facts: Facts) -> Iterator[Item]:
    alone = _without_workers(facts)
    yield from alone.values()
    for queue in facts.waiting or ():
        item = _queue(queue, facts)
        if item and (item.kind == "paused" or queue.backend not in alone):
            yield item


def _without_workers(facts: Facts) -> dict[str, Item]:
    """An item for each backend of which tasks are ready and no worker lives."""
    found: dict[str, Item] = {}
    if facts.workers is None or facts.waiting is None:
        return found
    for backend in {queue.backend for queue in facts.waiting} - {w.backend for w in facts.workers if _lives(w)}:
        queues = [queue for queue in facts.waiting if queue.backend == backend and not queue.paused_at]
        since = min((queue.ready_since for queue in queues if queue.ready_since), default=None)
        ready = sum(queue.ready for queue in queues)
        if since and _seconds(facts, since) >= UNSERVED_SECONDS:
            told = ngettext(
                "No worker lives, and %(number)s task is ready.",
                "No worker lives, and %(number)s tasks are ready.",
                ready,
            ) % {"number": capped(ready, COUNT_LIMIT)}
            found[backend] = Item("no_workers", "harm", told, since, backend, number=ready)
    return found


def _queue(queue: Waiting, facts: Facts) -> Item | None:
    names = {"queue": isolated(queue.queue), "number": _depth(queue)}
    about = {"backend": queue.backend, "queue": queue.queue, "number": queue.ready}
    if queue.paused_at:
        if not queue.ready:
            told = _("Queue %(queue)s is paused; no task of it is due.") % names
            return Item("paused", "notice", told, queue.paused_at, **about)  # type: ignore[arg-type]
        told = ngettext(
            "Queue %(queue)s is paused, and %(number)s task waits.",
            "Queue %(queue)s is paused, and %(number)s tasks wait.",
            queue.ready,
        )
        return Item("paused", "warning", told % names, queue.paused_at, **about)  # type: ignore[arg-type]
    waited = _seconds(facts, queue.ready_since) if queue.ready_since else 0.0
    if waited >= UNSERVED_SECONDS and _is_unserved(queue, facts):
        told = ngettext(
            "Nobody serves queue %(queue)s, in which %(number)s task is ready.",
            "Nobody serves queue %(queue)s, in which %(number)s tasks are ready.",
            queue.ready,
        )
        return Item("unserved", "harm", told % names, queue.ready_since, **about)  # type: ignore[arg-type]
    if waited >= BEHIND_SECONDS:
        told = _("Queue %(queue)s falls behind: %(number)s ready, the oldest for %(span)s; %(trend)s.")
        told %= {**names, "span": span(waited), "trend": _trend(queue.queue, facts, waited)}
        return Item("behind", "harm", told, queue.ready_since, **about)  # type: ignore[arg-type]
    return None


def _trend(queue: str, facts: Facts, waited: float) -> str:
    """Does the wait grow? Beside what those waited that started in the last minutes."""
    lately = facts.lately.queues.get(queue) if facts.lately else None
    usual = lately.latency(0.5) if lately else None
    if usual is None:
        return _("none has started in the last 5 minutes")
    if waited > 1.2 * usual:
        return _("it grows")
    return _("it catches up") if waited < 0.8 * usual else _("it keeps its distance")


def _is_unserved(queue: Waiting, facts: Facts) -> bool:
    return facts.workers is not None and not any(w.serves(queue.backend, queue.queue) for w in facts.workers)


class _Failure(NamedTuple):
    """A function of which many runs failed in a range."""

    function: str
    tally: Tally
    range: Range
    #: Its runs of the last minutes; those of the range if these are not known.
    lately: Tally

    @property
    def is_over(self) -> bool:
        """Of late few of its runs failed, or it has not run."""
        return self.lately.failure_share < FAILED_SHARE


def _failures(facts: Facts) -> Iterator[_Failure]:
    seen = set()
    for past in (facts.lately, facts.past):
        for function, tally in (past.functions if past else {}).items():
            if past and function not in seen and tally.failed >= FAILED_RUNS and tally.failure_share >= FAILED_SHARE:
                seen.add(function)
                lately = facts.lately.functions.get(function, Tally()) if facts.lately else tally
                yield _Failure(function, tally, past.range, lately)


def _failing(facts: Facts) -> Iterator[Item]:
    for failure in _failures(facts):
        if not failure.is_over:
            told = _("%(function)s fails: %(failed)s of %(runs)s runs (%(share)s) in %(range)s.")
            yield _failure(failure, told, _level(failure.tally))


def _failed(facts: Facts) -> Iterator[Item]:
    """Functions that failed, and do not now. Nobody need get up for what runs well again; what has not run may fail."""
    for failure in _failures(facts):
        if failure.is_over:
            told = _(
                "%(function)s failed: %(failed)s of %(runs)s runs (%(share)s) in %(range)s, "
                "%(lately)s in the last 5 minutes."
            )
            has_run = failure.lately.completed > 0
            yield _failure(failure, told, "notice" if has_run else _level(failure.tally))


def _level(tally: Tally) -> Level:
    return "harm" if tally.failure_share >= BROKEN_SHARE else "warning"


def _failure(failure: _Failure, sentence: str, level: Level) -> Item:
    function, tally, lately = failure.function, failure.tally, failure.lately
    told = sentence % {
        "function": isolated(function),
        "failed": grouped(tally.failed),
        "runs": grouped(tally.completed + tally.failed),
        "share": f"{tally.failure_share:.0%}",
        "range": in_words(failure.range),
        "lately": _("%(done)s of %(of)s")
        % {"done": grouped(lately.failed), "of": grouped(lately.completed + lately.failed)},
    }
    return Item("failing", level, told, tally.failing_since, function=function, number=tally.failed)


def _dead(facts: Facts) -> Iterator[Item]:
    if not facts.died:
        return
    number = sum(each.number for each in facts.died)
    more = "+" if number >= DEPTH_LIMIT else ""
    named = _listed([f"{isolated(each.function)} {grouped(each.number)}{more}" for each in facts.died])
    told = ngettext(
        "%(number)s task that died in %(range)s is dead now: %(named)s.",
        "%(number)s tasks that died in %(range)s are dead now: %(named)s.",
        number,
    ) % {
        "number": capped(number, DEPTH_LIMIT),
        "range": in_words(facts.range),
        "named": named,
    }
    only = facts.died[0].function if len(facts.died) == 1 else ""
    yield Item("dead", "warning", told, min(each.first for each in facts.died), function=only, number=number)


def _gone(facts: Facts) -> Iterator[Item]:
    for kind, words in _GONE.items():
        gone = [worker for worker in facts.workers or () if worker.status == kind]
        if not gone:
            continue
        gone.sort(key=lambda worker: worker.heartbeat_at, reverse=True)
        named = _listed([_called(worker, facts) for worker in gone])
        told = words(len(gone)) % {"number": len(gone), "named": named}
        yield Item(kind, "warning", told, min(worker.heartbeat_at for worker in gone), number=len(gone))


def _listed(names: Sequence[str]) -> str:
    """The first names of a list, and whether there are others."""
    named = ", ".join(names[:3])
    return _("%s and others") % named if len(names) > 3 else named


def _called(worker: WorkerSeen, facts: Facts) -> str:
    """The name of a worker, and its host and pid where others have the same one."""
    namesakes = sum(other.name == worker.name for other in facts.workers or ())
    return isolated(worker.name) if namesakes < 2 else f"{isolated(worker.name)} ({isolated(worker.host)}:{worker.pid})"


#: What is said of workers that took no leave.
_GONE: dict[Literal["late", "lost"], Callable[[int], str]] = {
    "late": lambda number: ngettext(
        "%(number)s worker is late, silent for longer than its lease: %(named)s.",
        "%(number)s workers are late, silent for longer than their lease: %(named)s.",
        number,
    ),
    "lost": lambda number: ngettext(
        "%(number)s worker is lost, killed or cut off for good: %(named)s.",
        "%(number)s workers are lost, killed or cut off for good: %(named)s.",
        number,
    ),
}


def _snapshots(facts: Facts) -> Iterator[Item]:
    for holder in facts.holders or ():
        what = {
            "session": _("Session %(name)s of %(user)s (process %(pid)s)"),
            "prepared": _("Prepared transaction %(name)s of %(user)s"),
            "slot": _("Replication slot %(name)s"),
        }[holder.kind] % {"name": isolated(holder.name or "?"), "user": isolated(holder.user), "pid": holder.pid}
        told = _("%(what)s holds an old snapshot: until it ends, rows of finished tasks stay in the way of new ones.")
        yield Item("snapshot", "warning", told % {"what": what}, holder.since)


def _suspects(facts: Facts) -> Iterator[Item]:
    if number := facts.standing.suspects if facts.standing else 0:
        told = ngettext(
            "%(number)s pending task was running when a worker died, and may be what killed it.",
            "%(number)s pending tasks were running when a worker died, and may be what killed it.",
            number,
        )
        yield Item("suspects", "notice", told % {"number": capped(number, COUNT_LIMIT)}, None, number=number)


def _retries(facts: Facts) -> Iterator[Item]:
    number = sum(queue.retries for queue in facts.waiting or ())
    times = [queue.next_retry for queue in facts.waiting or () if queue.next_retry]
    if number and times:
        told = ngettext(
            "%(number)s task that failed waits for its next attempt, due in %(span)s.",
            "%(number)s tasks that failed wait for their next attempts, the first due in %(span)s.",
            number,
        )
        told %= {"number": grouped(number), "span": span(max((min(times) - facts.now).total_seconds(), 0))}
        yield Item("retries", "notice", told, None, number=number)


_MORE: dict[Kind, Callable[[int], str]] = {
    "no_workers": lambda more: ngettext("%s more backend has no worker.", "%s more backends have no worker.", more),
    "unserved": lambda more: ngettext("%s more queue needs you.", "%s more queues need you.", more),
    "behind": lambda more: ngettext("%s more queue needs you.", "%s more queues need you.", more),
    "paused": lambda more: ngettext("%s more queue needs you.", "%s more queues need you.", more),
    "failing": lambda more: ngettext("%s more function fails.", "%s more functions fail.", more),
    "snapshot": lambda more: ngettext("%s more holds an old snapshot.", "%s more hold old snapshots.", more),
}


def in_words(range_: Range) -> str:
    """A range in a sentence."""
    return {
        "5m": _("the last 5 minutes"),
        "1h": _("the last hour"),
        "24h": _("the last 24 hours"),
        "7d": _("the last 7 days"),
    }[range_.name]


def _lives(worker: WorkerSeen) -> bool:
    return worker.status == "alive"


def _depth(queue: Waiting) -> str:
    return f"{grouped(queue.ready)}+" if queue.is_capped else grouped(queue.ready)


def _seconds(facts: Facts, since: datetime) -> float:
    return (facts.now - since) / timedelta(seconds=1)
