"""Real sessions for tests of races: each has a connection and a thread of its own.

A session can be held inside a statement, after its snapshot is taken and before it has locked a row (`holds`), and its
statements can be changed on the way (`planted`), which is how the tests prove that they would notice a missing guard.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep

import psycopg
from django.db import connections, transaction

from django_dhara import sql

#: The advisory lock behind which a held statement waits.
GATE = 7_077


def planted(statement, changes):
    """The text of a statement with a bug in it."""
    for old, new in changes:
        statement = statement.replace(old, new)
    return statement


def held(statement):
    """The statement, waiting at the gate after its snapshot is taken and before it has locked a row."""
    pause = f"WHERE (SELECT pg_advisory_xact_lock_shared({GATE}) IS NOT NULL) AND "
    return re.sub(r"WHERE ", pause, statement, count=1)


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
        statement = planted(statement, self.planted)
        if self.holds and "/* dhara:" in statement and "/* dhara:owned */" not in statement:
            statement = held(statement)
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


class Operator:
    """A web process with the manners of a `Session`: what it executes runs on Django's connection of its thread."""

    def __init__(self):
        self.planted = ()
        #: As in a Session; and an enqueue that has met its key waits before it reads whose it is.
        self.holds = False
        self._caller = Caller()
        self.pid = self._caller.pid
        self._caller.start(lambda: connections["default"].execute_wrappers.append(self._send)).result()
        self._atomic = None

    def _send(self, execute, statement, parameters, many, context):
        statement = planted(statement, self.planted)
        if self.holds and "/* dhara:" in statement:
            statement = held(statement)
        elif self.holds and statement.startswith("SELECT"):
            context["connection"].connection.execute(f"SELECT pg_advisory_xact_lock_shared({GATE})")
        return execute(statement, parameters, many, context)

    def begin(self):
        self._atomic = transaction.atomic()
        self._caller.start(self._atomic.__enter__).result()

    def end(self, how="COMMIT"):
        self._caller.start(transaction.set_rollback, how == "ROLLBACK").result()
        self._caller.start(self._atomic.__exit__, None, None, None).result()

    def start(self, function, *arguments):
        return self._caller.start(function, sql.on("default"), *arguments)

    def close(self):
        self._caller.close()


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
