"""PgBouncer in transaction mode between everything and the server, on a TCP port, under the server's own account."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import psycopg

from tests.chaos.server import DATABASE, ROLE
from tests.workers.harness import until

_CONFIG = """
[databases]
{database} = host={sockets} port={port} user={role} pool_size={size}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 300
admin_users = {role}
query_wait_timeout = 10
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
"""


def is_installed():
    return shutil.which("pgbouncer") is not None


class Pooler:
    """One PgBouncer.

    Args:
        size: server sessions that all clients share.
    """

    def __init__(self, server, size=8):
        self._folder = server.folder / "pooler"
        self._folder.mkdir(mode=0o755)
        self._account = server.place.account()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        place = server.place
        self._file = self._folder / "pgbouncer.ini"
        self._file.write_text(
            _CONFIG.format(
                database=DATABASE, sockets=place.sockets, port=place.port, role=ROLE, size=size, own_port=self.port
            )
        )
        self._popen = None

    @property
    def url(self):
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{DATABASE}"

    def start(self):
        account, ids = self._account, {}
        if account:  # it refuses to run as root
            ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        with Path(self._folder / "pgbouncer.log").open("ab") as log:
            self._popen = subprocess.Popen(
                [shutil.which("pgbouncer"), "-q", str(self._file)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                **ids,
            )
        until(self._answers, 15)

    def _answers(self):
        try:
            return bool(self.ask("SHOW VERSION"))
        except psycopg.Error:
            return False

    def ask(self, statement):
        """Rows of a statement of its console."""
        where = {"host": "127.0.0.1", "port": self.port, "user": ROLE, "dbname": "pgbouncer"}
        with psycopg.connect(**where, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
            cursor = connection.execute(statement)
            return (
                [dict(zip([c.name for c in cursor.description], row, strict=True)) for row in cursor.fetchall()]
                if (cursor.description)
                else []
            )

    def waiting(self):
        """Clients that wait for a server session now."""
        return sum(int(pool["cl_waiting"]) for pool in self.ask("SHOW POOLS") if pool["database"] == DATABASE)

    def stop(self):
        if self._popen is not None:
            os.kill(self._popen.pid, signal.SIGKILL)
            self._popen.wait(10)
            self._popen = None
