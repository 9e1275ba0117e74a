"""Real sessions for tests of races: each has a connection and a thread of its own.

A session can be held inside a statement, after its snapshot is taken and before it has locked a row (`holds`), and its
statements can be changed on the way (`planted`), which is how the tests prove that they would notice a missing guard.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep

import psycopg
from django.db import connections

#: The advisory lock behind which a held statement waits.
GATE = 7_077


class Session:
    """One psycopg connection, as a worker has it: server-side parameters, autocommit until `begin()`."""

    def __init__(self):
        parameters = connections["default"].get_connection_params()
        for name in ("cursor_factory", "context"):
            parameters.pop(name, None)
        self.connection = psycopg.connect(**parameters, autocommit=True)
        self.pid = self.connection.info.backend_pid
        #: Changes to the text of every statement, (old, new), as a bug would make them.
        self.planted = ()
        #: Statements wait at the gate after their snapshot is taken.
        self.holds = False
        self._thread = ThreadPoolExecutor(1)

    def execute(self, statement, parameters):
        for old, new in self.planted:
            statement = statement.replace(old, new)
        if self.holds and "/* dhara:" in statement and "/* dhara:owned */" not in statement:
            pause = f"WHERE (SELECT pg_advisory_xact_lock_shared({GATE}) IS NOT NULL) AND "
            statement = re.sub(r"WHERE ", pause, statement, count=1)
        return self.connection.execute(statement, parameters).fetchall()

    @contextmanager
    def gate(self):
        """While this lasts, statements of sessions that hold wait after their snapshot was taken."""
        self.connection.execute("SELECT pg_advisory_lock(%s)", [GATE])
        try:
            yield
        finally:
            self.connection.execute("SELECT pg_advisory_unlock(%s)", [GATE])

    def begin(self):
        self.connection.execute("BEGIN")

    def end(self, how="COMMIT"):
        self.connection.execute(how)

    def start(self, function, *arguments):
        """Call `function(execute, *arguments)` in this session's thread."""
        return self._thread.submit(function, self.execute, *arguments)

    def cancel(self):
        """End whatever it waits for."""
        self.connection.cancel_safe()
        self._thread.shutdown()

    def close(self):
        self.connection.close()


class Caller:
    """A thread with Django connections of its own, as a web process has them."""

    def __init__(self, alias="default"):
        self._thread = ThreadPoolExecutor(1)
        self._alias = alias
        self.pid = self.start(self._connect).result()

    def _connect(self):
        connections[self._alias].ensure_connection()
        return connections[self._alias].connection.info.backend_pid

    def start(self, function, *arguments, **named):
        """Call `function` in this thread."""
        return self._thread.submit(function, *arguments, **named)

    def close(self):
        """Close its connections, after whatever it does."""
        self.start(connections.close_all)
        self._thread.shutdown()


def wait(future, session, watcher, seconds=20):
    """Wait until the call has ended (True) or stands before somebody's lock (False), whichever comes first."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        if future.done():
            return True
        [[blocked]] = watcher.connection.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0", [session.pid]
        ).fetchall()
        if blocked:
            return False
        sleep(0.001)
    raise AssertionError(f"neither done nor blocked after {seconds} s")


def at_once(session, watcher, function, *arguments):
    """The answer of a call that must not wait for anybody."""
    future = session.start(function, *arguments)
    assert wait(future, session, watcher), f"{function} waits for a lock"
    return future.result()
