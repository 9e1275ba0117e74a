"""The worker's own row: who it is, for people, and a sign of life, for reapers. Recovery of tasks does not need it."""

from __future__ import annotations

import json
import os
import pkgutil
import socket
from collections.abc import Iterable
from time import monotonic
from uuid import UUID

import psycopg

from django_dhara import __version__, migrations
from django_dhara.conf import Options
from django_dhara.lifecycle import Wanted
from django_dhara.sql import Execute
from django_dhara.worker import memory

#: The newest migration of ours that workers of this version cannot do without. By rule the newest one of the release
#: before: during a deploy the code is new before the tables are, or the other way round. CONTRIBUTING.md, Release.
NEEDED = "0001_initial"

_REGISTER = """/* dhara:register */
INSERT INTO dhara_worker (id, backend, name, host, pid, version, queues, exclude_queues, concurrency, lease_seconds,
                          started_at, heartbeat_at)
VALUES (%(id)s, %(backend)s, %(name)s, %(host)s, %(pid)s, %(version)s, %(queues)s::jsonb, %(exclude)s::jsonb,
        %(concurrency)s, %(lease)s, statement_timestamp(), statement_timestamp())
ON CONFLICT (id) DO NOTHING
"""
_DRAINING = "/* dhara:draining */ UPDATE dhara_worker SET draining_at = statement_timestamp() WHERE id = %(id)s"
_STOPPED = "/* dhara:stopped */ UPDATE dhara_worker SET stopped_at = statement_timestamp() WHERE id = %(id)s"
_HAS_MEMORY = """/* dhara:has_memory */
SELECT 1 FROM pg_attribute
WHERE attrelid = to_regclass('dhara_worker') AND attname = 'memory_bytes' AND NOT attisdropped
"""
#: The row is skipped if somebody has it locked, as a heartbeat does.
_MEMORY = """/* dhara:memory */
UPDATE dhara_worker SET memory_bytes = %(memory)s
WHERE id = (SELECT id FROM dhara_worker WHERE id = %(id)s FOR NO KEY UPDATE SKIP LOCKED)
"""
#: The column came after the first release: tables without it are looked at again after so many seconds.
LOOK_AGAIN_SECONDS = 60.0

_APPLIED = "/* dhara:migrations */ SELECT name FROM django_migrations WHERE app = 'dhara'"


class Presence:
    """What `dhara_worker` says of this process."""

    def __init__(self, id_: UUID, name: str, options: Options, wanted: Wanted) -> None:
        self.host, self.pid = socket.gethostname(), os.getpid()
        self.name = name or f"{self.host}:{self.pid}"
        self._id, self._options, self._wanted = id_, options, wanted
        self._memory_at = self._look_at = 0.0
        self._has_memory = False

    def register(self, execute: Execute) -> None:
        execute(
            _REGISTER,
            {
                "id": self._id,
                "backend": self._wanted.backend,
                "name": self.name,
                "host": self.host,
                "pid": self.pid,
                "version": __version__,
                "queues": json.dumps(self._wanted.queues),
                "exclude": json.dumps(self._wanted.exclude),
                "concurrency": self._options.slots,
                "lease": self._options.lease_seconds,
            },
        )

    def tell_memory(self, execute: Execute, children: Iterable[int]) -> None:
        """Write down how much memory this process and its children have, about as often as a heartbeat, in a statement
        of its own: whatever becomes of it, it costs no lease."""
        now = monotonic()
        if now < self._memory_at:
            return
        self._memory_at = now + self._options.renew_seconds
        if not self._has_memory and now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_SECONDS
            self._has_memory = bool(execute(_HAS_MEMORY, {}))
        if self._has_memory and (resident := memory.resident(children)) is not None:
            self._write_memory(execute, resident)

    def _write_memory(self, execute: Execute, resident: int) -> None:
        try:
            execute(_MEMORY, {"id": self._id, "memory": resident})
        except psycopg.errors.UndefinedColumn:  # somebody has gone back to the version before
            self._has_memory = False

    def draining(self, execute: Execute) -> None:
        execute(_DRAINING, {"id": self._id})

    def stopped(self, execute: Execute) -> None:
        execute(_STOPPED, {"id": self._id})


def missing_migrations(execute: Execute) -> list[str]:
    """Migrations of ours that a worker has to wait for, in order. More in the database do no harm."""
    known = [module.name for module in pkgutil.iter_modules(migrations.__path__) if module.name <= NEEDED]
    try:
        applied = {name for (name,) in execute(_APPLIED, {})}
    except psycopg.errors.UndefinedTable:
        applied = set()
    return sorted(set(known) - applied)
