"""What the pages of queues are made of, read in a handful of bounded queries for all queues of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar
from urllib.parse import quote, unquote

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_dhara import conf, fleet, sql, stats
from django_dhara.admin import audit
from django_dhara.backend import DharaBackend
from django_dhara.fleet import Held
from django_dhara.models import Queue
from django_dhara.stats import RANGES, Point, Tally, Waiting, WorkerSeen
from django_dhara.stats.trouble import BEHIND_SECONDS

T = TypeVar("T")

#: A backend and a queue of it.
Name = tuple[str, str]
#: Rows of `dhara_queue`, and queues on a page.
MOST = 1000
NOTHING = Held(0, 0)
#: The last points of an hour that make the last five minutes.
RECENT = 6


def key(backend: str, queue: str) -> str:
    """What stands for a queue in addresses and in the log; a queue without a row has a page, too."""
    return f"{quote(backend, safe='')}:{queue}"


def name_of(key: str) -> Name | None:
    """The backend and the queue of a key."""
    backend, colon, queue = key.partition(":")
    return (unquote(backend), queue) if colon and backend and queue else None


@dataclass(slots=True, kw_only=True)
class QueueRow:
    """One queue, as far as could be read."""

    backend: str
    queue: str
    #: In QUEUES of its backend.
    is_configured: bool = False
    waiting: Waiting | None = None
    held: Held = NOTHING
    paused_at: datetime | None = None
    #: Who paused it, if that was done in the admin.
    paused_by: str = ""
    #: Workers that live and would claim from it now.
    servers: Sequence[WorkerSeen] = ()
    #: What happened in each minute of the last hour.
    points: Sequence[Point] = ()

    @property
    def key(self) -> str:
        return key(self.backend, self.queue)

    @property
    def ready(self) -> int:
        return self.waiting.ready if self.waiting else 0

    @property
    def scheduled(self) -> int:
        return self.waiting.scheduled if self.waiting else 0

    @property
    def ready_since(self) -> datetime | None:
        return self.waiting.ready_since if self.waiting else None

    @property
    def is_unserved(self) -> bool:
        """Tasks are ready, and no worker would ever take them."""
        return bool(self.ready or self.held.suspects) and not self.servers and not self.paused_at

    def is_behind(self, now: datetime) -> bool:
        """Has a task been ready for long, although somebody would take it?"""
        since = self.ready_since if self.servers and not self.paused_at else None
        return since is not None and (now - since).total_seconds() >= BEHIND_SECONDS

    def past(self, steps: int = 0) -> tuple[Tally, float]:
        """What happened in the last steps, by default all, and in how many seconds that was."""
        total = Tally()
        points = self.points[-steps:]
        for point in points:
            total.add(point.tally)
        return total, sum(point.seconds for point in points)


@dataclass(slots=True)
class Backlog:
    """The queues of a database."""

    database: str
    now: datetime
    rows: list[QueueRow] = field(default_factory=list)
    #: What could not be read in time.
    slow: list[str] = field(default_factory=list)

    @property
    def paused(self) -> list[QueueRow]:
        return [row for row in self.rows if row.paused_at]

    @property
    def unserved(self) -> list[QueueRow]:
        return [row for row in self.rows if row.is_unserved]

    def find(self, name: Name) -> QueueRow | None:
        return next((row for row in self.rows if (row.backend, row.queue) == name), None)


def configured(database: str) -> dict[str, Iterable[str]]:
    """The backends of a database in TASKS, and the queues that each of them names."""
    return {alias: queues for alias, place, queues in _backends() if place == database}


def database_of(backend: str) -> str | None:
    """The database of a backend in TASKS."""
    return next((place for alias, place, _ in _backends() if alias == backend), None)


def _backends() -> Iterator[tuple[str, str, Sequence[str]]]:
    for alias, parameters in getattr(settings, "TASKS", {}).items():
        try:
            if issubclass(import_string(parameters["BACKEND"]), DharaBackend):
                queues = parameters.get("QUEUES", ["default"])
                named = [queue for queue in queues if isinstance(queue, str)] if not isinstance(queues, str) else []
                yield alias, conf.read(alias, parameters.get("OPTIONS", {})).database, named
        except (ImportError, ImproperlyConfigured, KeyError, TypeError):
            continue  # a system check tells it; the other backends stay visible


def read(database: str) -> Backlog:
    """Every queue that is configured, has tasks waiting or running, was ever paused, or was served in the last day."""
    [[now]] = sql.on(database)("/* dhara:now */ SELECT statement_timestamp()", {})
    found = Backlog(database, now)
    given, decided = configured(database), _decided(database)
    waiting: dict[Name, Waiting] = _part(found, "waiting", partial(_waiting, database), {})
    held: dict[Name, Held] = _part(found, "running", partial(_bounded, database, fleet.held), {})
    served: set[Name] = _part(found, "day", partial(_bounded, database, fleet.lately_served), set())
    names = {*waiting, *held, *decided, *served, *_pairs(given)}
    past: dict[str, Mapping[str, Sequence[Point]]] = {}
    for backend in {*given, *(backend for backend, _ in names)}:
        past[backend] = _part(found, "past", partial(stats.series, database, backend, RANGES["1h"], "queue"), {})
        names |= {(backend, queue) for queue in past[backend]}
    workers: list[WorkerSeen] = _part(found, "workers", partial(stats.workers, database, None), [])
    authors = audit.authors(Queue, [(key(*name), at) for name, at in decided.items() if at])
    for backend, queue in sorted(names)[:MOST]:
        found.rows.append(
            QueueRow(
                backend=backend,
                queue=queue,
                is_configured=queue in given.get(backend, ()),
                waiting=waiting.get((backend, queue)),
                held=held.get((backend, queue), NOTHING),
                paused_at=decided.get((backend, queue)),
                paused_by=authors.get(key(backend, queue), ""),
                servers=[worker for worker in workers if worker.serves(backend, queue)],
                points=past[backend].get(queue, ()),
            )
        )
    return found


def _pairs(given: Mapping[str, Iterable[str]]) -> set[Name]:
    return {(backend, queue) for backend, queues in given.items() for queue in queues}


def _part(found: Backlog, name: str, read: Callable[[], T], nothing: T) -> T:
    try:
        return read()
    except stats.TooSlow:
        found.slow.append(name)
        return nothing


def _waiting(database: str) -> dict[Name, Waiting]:
    return {(one.backend, one.queue): one for one in stats.waiting(database, None)}


def _bounded(database: str, read: Callable[[str], T]) -> T:
    with sql.time_limit(database, stats.LIMIT_SECONDS):
        return read(database)


def _decided(database: str) -> dict[Name, datetime | None]:
    """The queues that somebody paused once, and since when they are paused."""
    rows = Queue.objects.using(database).order_by("backend", "name")
    return {(row.backend, row.name): row.paused_at for row in rows[:MOST]}
