"""The whole picture at a glance: everything that the overview shows, read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from django_dhara import sql
from django_dhara.sql import TooSlow
from django_dhara.stats import past, present, trouble
from django_dhara.stats.past import RANGES, History, Range
from django_dhara.stats.present import Standing, Waiting, WorkerSeen
from django_dhara.stats.trouble import Facts, Item

_Part = TypeVar("_Part")


@dataclass(slots=True)
class Overview:
    """What happened in a range, what is now, and what needs a person. None: it could not be read in time."""

    now: datetime
    range: Range
    past: History | None = None
    standing: Standing | None = None
    waiting: list[Waiting] | None = None
    workers: list[WorkerSeen] | None = None
    attention: list[Item] = field(default_factory=list)
    #: Names of the parts whose statements were stopped.
    slow: list[str] = field(default_factory=list)

    @property
    def alive(self) -> list[WorkerSeen]:
        """Workers that claim, or finish what they have."""
        return [worker for worker in self.workers or () if worker.lives]

    @property
    def slots(self) -> tuple[int, int]:
        """Of the workers that live: slots in use, and all."""
        return sum(worker.busy for worker in self.alive), sum(worker.concurrency for worker in self.alive)

    @property
    def ready_since(self) -> datetime | None:
        """When the task that has been ready for longest became so; those of paused queues do not count."""
        return min((q.ready_since for q in self.waiting or () if q.ready_since and not q.paused_at), default=None)


def overview(alias: str, backend: str | None, range_: Range) -> Overview:
    """Read everything. A part that takes longer than `LIMIT_SECONDS` is left out and named in `slow`.

    Args:
        alias: the database.
        backend: only of this one; None: of all in the database.
    """
    [[now]] = sql.on(alias)("/* dhara:stats_time */ SELECT statement_timestamp()", {})
    found = Overview(now, range_)
    found.past = _part(found, "past", lambda: past.history(alias, backend, range_))
    found.standing = _part(found, "standing", lambda: present.standing(alias, backend))
    found.waiting = _part(found, "waiting", lambda: present.waiting(alias, backend))
    found.workers = _part(found, "workers", lambda: present.workers(alias, backend))
    died = _part(found, "died", lambda: present.died(alias, backend, range_.seconds))
    holders = _part(found, "holders", lambda: present.holders(alias))
    shortest = range_ == RANGES["5m"]
    lately = found.past if shortest else _part(found, "lately", lambda: past.history(alias, backend, RANGES["5m"]))
    facts = Facts(now, range_, found.past, found.standing, found.waiting, found.workers, died, holders, lately)
    found.attention = trouble.attention(facts)
    return found


def _part(found: Overview, name: str, read: Callable[[], _Part]) -> _Part | None:
    try:
        return read()
    except TooSlow:
        found.slow.append(name)
        return None
