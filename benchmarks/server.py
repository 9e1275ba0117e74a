"""The PostgreSQL that a run measures on: a private one with durable commits, or the one that BENCH_DATABASE_URL names.

Nothing is measured in a database that anything was measured in before: each measurement gets a copy of a template,
which is made once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from example_project.localdb.cluster import Cluster
from example_project.localdb.place import Place
from example_project.localdb.server import Server as LocalServer

#: Beside what every private server runs with. Checkpoints are the suite's own (`Server.checkpoint`): one that came by
#: itself in the middle of a measurement would hit one contender and spare the next.
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "1d",
    "pg_stat_statements.track": "top",
    "pg_stat_statements.max": "10000",
}
#: What RESULTS.md says of the server, whoever started it.
TOLD = (
    "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_connections", "autovacuum",
    "autovacuum_naptime", "max_wal_size", "checkpoint_timeout",
)  # fmt: skip
_NAME = "dhara benchmarks"
_VARIABLES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}


class _Cluster(Cluster):
    def _postgres(self, programs: Any) -> list[Any]:
        return [*super()._postgres(programs), *(w for pair in SETTINGS.items() for w in ("-c", "=".join(pair)))]


class Server:
    """A running server, by an administrator's session.

    Args:
        dsn: of a role that may create databases and read pg_stat_statements.
    """

    def __init__(self, dsn: str, data: str = "") -> None:
        self.dsn = dsn
        #: The folder of its data, where the disk is timed; empty if it is not on this machine.
        self.data = data
        self._admin = psycopg.connect(dsn, autocommit=True, application_name=_NAME)
        #: Databases of this run that are there.
        self.made: list[str] = []
        self.query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def query(self, statement: str | sql.Composed, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement as the administrator."""
        cursor = self._admin.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def environment(self, database: str) -> dict[str, str]:
        """The environment variables that tell a driver of one of the databases here."""
        given = {**conninfo_to_dict(self.dsn), "dbname": database}
        split = {_VARIABLES[name]: str(value) for name, value in given.items() if name in _VARIABLES}
        return {"BENCH_DSN": _url(given), **split}

    def create(self, database: str, template: str = "") -> None:
        """Make a database, empty or as a copy of `template`; it is dropped at the end at the latest."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database))
        if template:
            # Copied as files, so that neither the copy's WAL nor its dirty pages are left to be written later.
            statement += sql.SQL(" TEMPLATE {} STRATEGY file_copy").format(sql.Identifier(template))
        self.made.append(database)
        self.query(statement)

    def freeze(self, database: str) -> None:
        """Make it a template: nobody connects to it any more, autovacuum and its ANALYZE included."""
        self.query(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(database)))

    def drop(self, database: str) -> None:
        """Drop it with whoever is connected."""
        self.query(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
        if database in self.made:
            self.made.remove(database)

    def sweep(self) -> None:
        """Drop what runs have left that were killed; only for a server that no other machine uses."""
        for (database,) in self.query("SELECT datname FROM pg_database WHERE datname ~ '^bench_[0-9]+_'"):
            if not Path(f"/proc/{database.split('_')[1]}").exists():
                self.drop(database)

    def others(self) -> int:
        """How many other runs are going on here: they disturb each other's figures."""
        statement = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()"
        return int(self.query(statement, [_NAME])[0][0])

    def checkpoint(self) -> None:
        """Leave nothing of the past to be written while we measure."""
        self.query("CHECKPOINT")

    def settings(self) -> dict[str, str]:
        """What it runs with, as far as it matters here."""
        rows = self.query("SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)", [list(TOLD)])
        found = dict(rows)
        return {name: found[name] for name in TOLD if name in found}

    def version(self) -> str:
        return str(self.query("SHOW server_version")[0][0])

    def close(self) -> None:
        """Drop what was made here."""
        for database in list(self.made):
            self.drop(database)
        self._admin.close()


@contextmanager
def running() -> Iterator[Server]:
    """The server of this run; a private one is stopped at the end, if no other run uses it."""
    given = os.environ.get("BENCH_DATABASE_URL")
    if given:
        with _closing(Server(make_conninfo(**_without_empty(given)))) as server:
            yield server
        return
    place = Place.of(os.environ.get("BENCH_PROFILE", "bench"))
    local = LocalServer(place)
    local.cluster = _Cluster(place)
    try:
        local.ensure()
        dsn = f"host={place.sockets} port={place.port} user={place.user} dbname=postgres"
        with _closing(Server(dsn, str(place.base))) as server:
            server.sweep()
            yield server
    finally:
        local.release()


@contextmanager
def _closing(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.close()


def _url(given: dict[str, Any]) -> str:
    rest = dict(given)
    user, database = rest.pop("user", ""), rest.pop("dbname")
    password = f":{quote(str(rest.pop('password')), safe='')}" if "password" in rest else ""
    return f"postgresql://{quote(str(user), safe='')}{password}@/{database}?{urlencode(rest)}"


def _without_empty(url: str) -> dict[str, Any]:
    return {name: value for name, value in conninfo_to_dict(url).items() if value}
