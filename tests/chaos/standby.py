"""A synchronous standby of the server, which takes its place when that is gone."""

import os
import subprocess
from itertools import count

import psycopg

from example_project.localdb import binaries
from tests.workers.harness import until


class Pair:
    """The server and its standby.

    Args:
        server: the primary; after a failover it is the one that was the standby.
        on_moved: called with the path of the new primary's socket.
    """

    def __init__(self, server, on_moved):
        self._server, self._on_moved = server, on_moved
        self._numbers = count(1)
        self._standby = None

    def attach(self):
        """Make a standby and wait until every commit waits for it."""
        standby = self._server.sibling(f"standby{next(self._numbers)}")
        self._copy_to(standby.place)
        standby.start()
        self._server.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._server.ask("SELECT pg_reload_conf()")
        until(lambda: self._server.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"), 30)
        self._standby = standby

    def _copy_to(self, place):
        place.prepare()
        account, ids = place.account(), {}
        if account:
            ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            place.data.mkdir(mode=0o700)
            os.chown(place.data, account.pw_uid, account.pw_gid)
        primary = self._server.place
        words = [binaries.find(account) / "pg_basebackup", "-D", place.data, "-R", "-c", "fast", "-X", "stream"]
        words += ["-h", primary.sockets, "-p", str(primary.port), "-U", primary.user]
        subprocess.run(words, check=True, capture_output=True, cwd="/", **ids)

    @property
    def timeline(self):
        return self._server.value("SELECT timeline_id FROM pg_control_checkpoint()")

    def fail_over(self):
        """The primary is gone at once, and the standby is promoted."""
        standby = self._standby
        self._server.crash()
        standby.ask("SELECT pg_promote(true, 30)")
        # Its commits wait for a standby that it does not have yet.
        standby.ask("ALTER SYSTEM RESET synchronous_standby_names")
        standby.ask("SELECT pg_reload_conf()")
        self._server.become(standby)
        self._on_moved(self._server.socket)
        until(self._writes, 30)
        self._server.ask("CHECKPOINT")  # until then the control file tells the old timeline

    def _writes(self):
        try:
            return not self._server.value("SELECT pg_is_in_recovery()")
        except psycopg.Error:
            return False

    def end(self):
        if self._standby is not None:
            self._standby.end()
