"""The doctor: looks at a server and at the tables as somebody who knows them would, and says what to do.

One small function for each examination, in modules by what it looks at; each yields `Finding`s of the `Trouble`s that
stand above it. All questions are bounded (see `case`), and one that fails is a finding, too: an examination of a
sick server must end.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured

from django_dhara.backend import DharaBackend
from django_dhara.doctor import fleet, queues, schema, server, upkeep
from django_dhara.doctor.case import BackendCase, Case, Limits
from django_dhara.doctor.finding import Finding, Severity, Trouble
from django_dhara.worker.session import Busy, Disconnected

UNREACHABLE = Trouble(
    "dhara.D001", Severity.ERROR,
    "The database cannot be used",
    "Nothing can be enqueued, claimed or examined.",
    "Correct DATABASES['{database}'], or start the server. With several hosts, OPTIONS = {{'target_session_attrs': "
    "'read-write'}} finds the one that takes writes.",
)  # fmt: skip
UNFINISHED = Trouble(
    "dhara.D002", Severity.WARNING,
    "An examination could not be finished",
    "What it looks for may be there all the same. A question that takes longer than two seconds is given up.",
    "Look again when the server is less busy. If it says so each time, that is where to look: {examination}.",
)  # fmt: skip

#: What each database is asked; those of the second group need our tables.
OF_SERVER: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    server.role_sees_all, server.version, server.durability, server.autovacuum, server.isolation, server.timeouts,
    server.session_timeouts, server.idle_limit, server.connection_count, server.pooler, server.notification_queue,
    server.clock, schema.applied_migrations, upkeep.snapshots, upkeep.prepared_transactions, upkeep.replication,
)  # fmt: skip
OF_TABLES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    schema.foreign_columns, schema.storage, schema.tables, schema.attachments, upkeep.dead_rows, upkeep.ready_index,
    upkeep.transaction_ids, upkeep.locks,
)  # fmt: skip
#: Where all migrations are applied the tables must be those of the models.
OF_MODELS: tuple[Callable[[Case], Iterator[Finding]], ...] = (schema.columns, schema.indexes, schema.constraints)
#: What each backend is asked.
OF_BACKEND: tuple[Callable[[BackendCase], Iterator[Finding]], ...] = (
    server.wake_ups, fleet.somebody_works, fleet.late_workers, fleet.versions, fleet.heartbeats_ahead,
    fleet.long_functions, fleet.interrupted_runs, queues.unknown_functions, queues.unserved_queues,
    queues.paused_queues, queues.backlog, queues.suspects, queues.dead_letters, queues.abandoned_runs, queues.old_tasks,
)  # fmt: skip


def examine(backends: Iterable[DharaBackend], limits: Limits | None = None) -> list[Finding]:
    """Examine backends and the databases that hold them; the worst findings first.

    Args:
        limits: from when on something is a finding.
    """
    by_database: dict[str, list[DharaBackend]] = {}
    for backend in backends:
        by_database.setdefault(backend.settings.database, []).append(backend)
    findings: list[Finding] = []
    for database, those in by_database.items():
        findings += _of_database(Case(database, those, limits or Limits()))
    return sorted(findings, key=lambda finding: (-finding.severity, finding.id))


def _of_database(case: Case) -> Iterator[Finding]:
    try:
        yield from (dataclasses.replace(finding, database=case.database) for finding in _all(case))
    except (Disconnected, ImproperlyConfigured, psycopg.Error) as error:
        found = UNREACHABLE.seen(" ".join(str(error).split()), database=case.database)
        yield dataclasses.replace(found, database=case.database)
    finally:
        case.session.close()


def _all(case: Case) -> Iterator[Finding]:
    case.session.open()
    has_table = case.has_table
    of_models = OF_MODELS if has_table and _is_current(case) else ()
    for examination in (*OF_SERVER, *of_models, *(OF_TABLES if has_table else ())):
        yield from _tried(case, examination, case)
    for part in case.of_backends():
        for look in OF_BACKEND if has_table else OF_BACKEND[:1]:
            yield from (dataclasses.replace(finding, backend=part.alias) for finding in _tried(case, look, part))


def _is_current(case: Case) -> bool:
    try:
        return not case.unapplied
    except psycopg.Error:  # told where they are examined
        return False


def _tried(case: Case, examination: Callable[[Any], Iterator[Finding]], subject: Case | BackendCase) -> list[Finding]:
    """What it finds; that it failed is a finding.

    Raises:
        Disconnected: the server is out of reach by now.
    """
    case.session.open()
    try:
        return list(examination(subject))
    except (psycopg.Error, Busy) as error:
        name = f"{examination.__module__.rpartition('.')[2]}.{examination.__name__}"
        return [UNFINISHED.seen(f"{name}: {' '.join(str(error).split())}", examination=name)]


def troubles() -> list[Trouble]:
    """Everything that can be found, by id."""
    modules = (inspect.getmodule(examine), fleet, queues, schema, server, upkeep)
    found = {one.id: one for module in modules for one in vars(module).values() if isinstance(one, Trouble)}
    return [found[id_] for id_ in sorted(found)]


__all__ = ["Finding", "Limits", "Severity", "Trouble", "examine", "troubles"]
