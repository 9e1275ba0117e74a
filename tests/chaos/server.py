"""The server of a run: durable, made for it and stopped as often as it takes, with a log of every change of a task."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from copy import copy
from pathlib import Path
from time import monotonic

import psycopg

from example_project.localdb.place import Place
from example_project.localdb.server import Server
from tests.workers.harness import Process, until, url_of

DATABASE, ROLE = "dhara", "app"

#: Of a step of its clock, in seconds. A run with steps is shorter than half of that, so a time tells its step.
STEP = 3600
#: Each process of a server has one thread.
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

#: Test only. The row's lock orders the changes of one task, and so `n` does. The tag of the statement is its verb.
TRIGGER_LOG = """
CREATE TABLE chaos_log (
    n bigserial, at timestamptz, id uuid, was text, state text, old_lease bigint, lease bigint, worker uuid, verb text,
    run_at timestamptz, failures int, lost int, interrupted int, snoozed int, asked boolean, newly_asked boolean
);
CREATE FUNCTION chaos_log() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO chaos_log VALUES (
        DEFAULT, clock_timestamp(), NEW.id, OLD.state, NEW.state, OLD.lease, NEW.lease, NEW.worker_id,
        substring(current_query() FROM '/\\* dhara:(\\w+)'), OLD.run_at, NEW.failures, NEW.lost, NEW.interrupted,
        NEW.snoozed, NEW.cancel_requested_at IS NOT NULL,
        NEW.cancel_requested_at IS NOT NULL AND OLD.cancel_requested_at IS NULL
    );
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_log AFTER UPDATE ON dhara_task FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.lease <> NEW.lease
          OR OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at)
    EXECUTE FUNCTION chaos_log();

CREATE SEQUENCE chaos_slept;
CREATE FUNCTION chaos_slow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF random() < 0.01 THEN
        PERFORM nextval('chaos_slept'), pg_sleep(0.1);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_slow AFTER UPDATE ON dhara_task FOR EACH ROW EXECUTE FUNCTION chaos_slow();
ALTER TABLE dhara_task DISABLE TRIGGER chaos_slow;
"""


class ChaosServer:
    """A PostgreSQL with fsync that this process starts and stops at will.

    The processes of the run are a role of their own without privileges, so that limits apply to them and a place is
    left for us.

    Args:
        megabytes: of a disk of its own, which can be filled; 0: it lies in /dev/shm if there is one. Needs root.
        clock: the server's clock can be stepped.
        settings: of PostgreSQL.
    """

    def __init__(self, megabytes=0, *, clock=False, **settings):
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="dhara-chaos-", dir=base))
        self._is_mounted = bool(megabytes)
        if megabytes:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "dhara", self.folder], check=True)
        self.folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        self._settings = {"max_connections": "150", "shared_buffers": "64MB", **settings}
        self._environment = {}
        #: Seconds by which its clock is before ours.
        self.ahead = 0
        if clock:
            self.step_clock(0)
            self._environment = {
                "LD_PRELOAD": FAKETIME,
                "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        self.use("first")

    def use(self, name):
        """From now on the cluster of this name is the server."""
        # "crash" is no profile of tests: with them fsync would be off.
        self._server = Server(Place(self.folder / name, "crash"))
        self.cluster = self._server.cluster
        self.cluster.settings, self.cluster.environment = self._settings, self._environment

    def sibling(self, name):
        """Another cluster beside this one, with the same settings."""
        other = copy(self)
        other.use(name)
        return other

    def become(self, other):
        """This server is gone, and `other` has its place."""
        self._server.release()
        self._server, self.cluster = other._server, other.cluster

    @property
    def place(self):
        return self._server.place

    @property
    def parameters(self):
        """What psycopg needs to reach it, as its superuser."""
        place = self.place
        return {"dbname": DATABASE, "host": str(place.sockets), "port": place.port, "user": place.user}

    @property
    def socket(self):
        return self.place.socket

    @property
    def url(self):
        """For the processes of the run."""
        return url_of({**self.parameters, "user": ROLE})

    def start(self):
        self._server.ensure(DATABASE)

    def prepare(self, log, *, keys_are_unique=True):
        """All tables, and the log of changes."""
        self.ask(f"CREATE ROLE {ROLE} LOGIN")
        self.ask(f"ALTER DATABASE {DATABASE} OWNER TO {ROLE}")
        words = [sys.executable, "manage.py", "migrate", "--run-syncdb", "-v0"]
        env = {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", "DATABASE_URL": self.url}
        migrate = Process(words, log, **env)
        assert migrate.ends(90) == 0, migrate.log
        self.ask(TRIGGER_LOG)
        if not keys_are_unique:
            self.ask("ALTER TABLE dhara_task DROP CONSTRAINT IF EXISTS dhara_task_key")
            self.ask("DROP INDEX IF EXISTS dhara_task_key")

    def connect(self, **options):
        """A session of our own, that no proxy or pooler stands before."""
        return psycopg.connect(**self.parameters, autocommit=True, application_name="nemesis", **options)

    def ask(self, statement, *values):
        """Rows of one statement on a session of its own."""
        with self.connect() as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement, *values):
        [[value]] = self.ask(statement, *values)
        return value

    def started_at(self):
        return self.value("SELECT extract(epoch FROM pg_postmaster_start_time())::float8")

    def step_clock(self, seconds):
        """From now on every process of the server has a clock that is so much further."""
        self.ahead += seconds
        new = self.folder / "clock.new"
        new.write_text(f"{self.ahead:+d}s")
        new.chmod(0o644)
        new.rename(self.folder / "clock")

    def now(self):
        """Its clock, in seconds since 1970."""
        return float(self.value("SELECT extract(epoch FROM clock_timestamp())::float8"))

    def clock_offset(self):
        """What to add to the database's time, in seconds since 1970, to get a time of the history."""
        before = monotonic()
        now = self.now()
        return (before + monotonic()) / 2 - now + self.ahead

    def crash(self):
        """End it as a power cut would; returns once it is gone."""
        pid = self.cluster.pid()
        os.kill(pid, signal.SIGQUIT)
        until(lambda: self.cluster.pid() is None, 20)

    def terminate(self, where):
        """End sessions, chosen by a condition on pg_stat_activity; returns how many are gone."""
        with self.connect() as connection:
            pids = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            chosen = {pid for (pid,) in connection.execute(f"{pids} AND ({where})")}
            for pid in chosen:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            until(lambda: not chosen & {pid for (pid,) in connection.execute(pids)})
        return len(chosen)

    def log_lines(self, text):
        """How many lines of the server's log say so."""
        return self.place.log.read_text(errors="replace").count(text) if self.place.log.exists() else 0

    def destroy(self):
        self.end()
        if self._is_mounted:
            subprocess.run(["umount", "-l", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self):
        """Stop it, and let go of it."""
        with suppress(OSError):
            self._server.stop()
        self._server.release()
