"""Is the queue fit for work? Questions for probes, each answered with a reason, all of them cheap.

They ask the database, not the processes: a worker says in its row that its control loop turns, at least every third of
its lease. `manage.py dhara_health` asks on a session of its own with a deadline, the site on the request's connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_dhara.backend import DharaBackend
from django_dhara.compat import task_backends
from django_dhara.events import one_line
from django_dhara.sql import Execute
from django_dhara.worker import presence


class Finding(NamedTuple):
    """The answer to one question."""

    name: str
    is_good: bool
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "status": "ok" if self.is_good else "failed", "reason": self.reason}


def backends() -> list[DharaBackend]:
    """The queue backends of this project whose settings can be read; mistakes are told by the system checks."""
    found = []
    for alias in task_backends.settings:
        with suppress(ImproperlyConfigured):
            backend = task_backends[alias]
            if isinstance(backend, DharaBackend):
                _ = backend.settings
                found.append(backend)
    return found


_DATABASE = "/* dhara:health */ SELECT pg_is_in_recovery()"


def database(execute: Execute, alias: str) -> Iterator[Finding]:
    """It answers and can write, and has the tables that this version cannot do without.

    Raises:
        Whatever `execute` does; see `unreachable`.
    """
    [(recovering,)] = execute(_DATABASE, {})
    reason = f"database '{alias}' is a standby and only reads" if recovering else f"database '{alias}' answers"
    yield Finding("database", not recovering, reason)
    missing = presence.missing_migrations(execute)
    reason = f"missing: {', '.join(missing)}" if missing else "all that are needed are applied"
    yield Finding("migrations", not missing, f"migrations of database '{alias}': {reason}")


def unreachable(alias: str, error: BaseException) -> Finding:
    """What there is to say where a question got no answer."""
    return Finding("database", False, f"database '{alias}' does not answer: {one_line(error)}")


#: The worker's own lease is the measure: it says at least three times in one that it lives.
_WORKERS = """/* dhara:health_workers */
SELECT name, extract(epoch FROM statement_timestamp() - heartbeat_at)::float8, lease_seconds, stopped_at IS NOT NULL,
       draining_at IS NOT NULL
FROM dhara_worker
WHERE backend = ANY (%(backends)s)
  AND (%(who)s = '' OR name = %(who)s OR id::text = %(who)s OR host || ':' || pid = %(who)s)
  AND (%(queue)s = '' OR ((jsonb_array_length(queues) = 0 OR queues ? %(queue)s) AND NOT exclude_queues ? %(queue)s))
ORDER BY stopped_at IS NOT NULL, heartbeat_at DESC LIMIT 1
"""


class Wanted(NamedTuple):
    """Which worker must live; of several that fit one is enough.

    Args:
        who: its name, its id, or HOST:PID; empty: any.
        queue: one that it serves; empty: any.
        max_age: seconds since its last sign of life; None: its lease.
    """

    who: str = ""
    queue: str = ""
    max_age: float | None = None


def worker(execute: Execute, backends: list[str], wanted: Wanted) -> Finding:
    """Does the control loop of a worker turn? It is idle or busy, or drains; it is not hung, gone or cut off."""
    rows = execute(_WORKERS, {"backends": backends, "who": wanted.who, "queue": wanted.queue})
    if not rows:
        what = f" that is {wanted.who}" if wanted.who else ""
        served = f" that serves queue '{wanted.queue}'" if wanted.queue else ""
        return Finding("worker", False, f"there is no worker{what}{served} of {' or '.join(backends)}")
    [(name, silent, lease, has_stopped, drains)] = rows
    limit = lease if wanted.max_age is None else wanted.max_age
    if has_stopped:
        return Finding("worker", False, f"worker {name} has stopped")
    if silent > limit:
        return Finding(
            "worker", False, f"worker {name} has given no sign of life for {silent:.0f} s (limit {limit:g} s)"
        )
    state = "drains" if drains else "lives"
    return Finding("worker", True, f"worker {name} {state}, last sign of life {max(silent, 0):.0f} s ago")


#: A lease that ran out is taken back within a sweep, or, after an outage or while its worker gives signs of life,
#: within a lease more; after twice that nobody is there who does it.
_OVERDUE = """/* dhara:health_overdue */
SELECT 1 FROM dhara_task
WHERE state = 'RUNNING' AND backend = %(backend)s
  AND lease_until < statement_timestamp() - make_interval(secs => %(seconds)s)
LIMIT 1
"""


def reaper(execute: Execute, backend: DharaBackend) -> Finding:
    """Are the tasks of lost workers taken back?"""
    seconds = 2 * (backend.settings.lease_seconds + backend.settings.sweep_seconds)
    if execute(_OVERDUE, {"backend": backend.alias, "seconds": seconds}):
        reason = (
            f"nobody takes back the tasks of lost workers of '{backend.alias}': is there a worker, or dhara_reaper?"
        )
        return Finding("reaper", False, reason)
    return Finding("reaper", True, f"no task of '{backend.alias}' has been lost for more than {seconds:g} s")


def examine(connect: Callable[[str], Execute], chosen: list[DharaBackend], wanted: Wanted | None) -> list[Finding]:
    """Ask everything.

    Args:
        connect: gives what runs statements on a database; it may raise, and so may that.
        wanted: None: workers are not asked about.
    """
    if not chosen:
        return [
            Finding("settings", False, "TASKS has no DharaBackend whose OPTIONS can be read; run `manage.py check`")
        ]
    found: list[Finding] = []
    for alias in dict.fromkeys(backend.settings.database for backend in chosen):
        of_this = [backend for backend in chosen if backend.settings.database == alias]
        try:
            found += _examine_one(connect(alias), alias, of_this, wanted)
        except Exception as error:  # noqa: BLE001  # an engine of the project's own may raise anything
            found.append(unreachable(alias, error))
    return found


def _examine_one(execute: Execute, alias: str, chosen: list[DharaBackend], wanted: Wanted | None) -> Iterator[Finding]:
    fit = True
    for finding in database(execute, alias):
        fit = fit and finding.is_good
        yield finding
    if fit and wanted is not None:
        names = [backend.alias for backend in chosen]
        for group in [names] if wanted.who else [[name] for name in names]:
            yield worker(execute, group, wanted)
        yield from (reaper(execute, backend) for backend in chosen)
