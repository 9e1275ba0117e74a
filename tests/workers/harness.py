"""What the tests of workers stand on: real `manage.py dhara_worker` processes, and ways to break what they rely on.

A test waits for events by asking the database (`until`), and shows that its fault really happened: a stopped process is
seen stopped, an ended session is seen gone, a server that restarted has another start time.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from urllib.parse import quote, urlencode

import django
import psycopg
from django.db import connections
from psycopg.types.json import Json

from example_project.localdb.place import PROJECT

#: What every worker of a test runs with, unless the test says otherwise.
DEFAULTS = {"DHARA_LEASE_SECONDS": "2", "DHARA_SWEEP_SECONDS": "0.3", "DHARA_POLL_SECONDS": "0.2"}


def until(condition, seconds=15.0):
    """Wait for something another process does, and return what `condition` then answers."""
    deadline = monotonic() + seconds
    while not (answer := condition()):
        assert monotonic() < deadline, f"waited {seconds:g} s in vain"
        sleep(0.01)
    return answer


def for_as_long_as(seconds, condition):
    """It stays true: looked at again and again."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        assert condition()
        sleep(0.02)


def url_of(parameters):
    """A DATABASE_URL: with it a worker uses Django's own engine, which starts no server."""
    where = urlencode({"host": parameters["host"], "port": parameters["port"]}, quote_via=quote, safe="/")
    return f"postgresql://{parameters['user']}@/{parameters['dbname']}?{where}"


def free_port():
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


#: The logger of Django's own receivers, and of the backport's.
DJANGOS_LOGGER = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


class Process:
    """A management command, its output in a file.

    Args:
        folder: another project than this one, where the command finds its code; what is not there it takes from here.
        settings: of that project.
    """

    def __init__(self, words, log, folder=PROJECT, settings="tests.settings", **env):
        self._path = log
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("DHARA_", "DJANGO_"))}
        environ |= {"DJANGO_SETTINGS_MODULE": settings, "PYTHONUNBUFFERED": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(folder), str(PROJECT)]))
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                words,
                env=environ | DEFAULTS | {name: str(value) for name, value in env.items()},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self.popen.pid

    @property
    def log(self):
        """What it has written so far."""
        return self._path.read_text(errors="replace")

    @property
    def lives(self):
        return self.popen.poll() is None

    def says(self, *texts, seconds=15.0):
        """Wait until all of these are in its output."""
        until(lambda: all(text in self.log for text in texts), seconds)

    def signal(self, number):
        os.kill(self.pid, number)

    def ends(self, seconds=15.0):
        """Wait for its end and return the exit code."""
        return self.popen.wait(seconds)

    def stop(self, seconds=15.0):
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.ends(seconds)

    def kill(self):
        """End it, whatever it does, as the kernel would when memory is short."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(15)

    @contextmanager
    def frozen(self):
        """It stands still, and so does all that it is about to do."""
        self.signal(signal.SIGSTOP)
        until(lambda: self._stat()[0] == "T")
        yield
        assert self._stat()[0] == "T", "it did not stay frozen"
        self.signal(signal.SIGCONT)

    @property
    def cpu_seconds(self):
        user, system = self._stat()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @property
    def megabytes(self):
        return int(self._stat()[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _stat(self):
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()


class Database:
    """A database seen through a session of the test's own, outside of Django."""

    def __init__(self, **parameters):
        self.parameters = parameters
        self.connection = psycopg.connect(**parameters, autocommit=True)

    def rows(self, statement, *values):
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement, *values):
        [[value]] = self.rows(statement, *values)
        return value

    def add(self, name, *args, **columns):
        """A task of tests/app/tasks.py, as an enqueue would insert it."""
        values = {"backend": "default", "queue": "default", "function": f"tests.app.tasks.{name}", **columns}
        values["payload"] = Json({"args": args, "kwargs": {}})
        insert = f"INSERT INTO dhara_task (id, {', '.join(values)}) VALUES (gen_random_uuid()"
        id_ = self.value(f"{insert}{', %s' * len(values)}) RETURNING id", *values.values())
        self.rows("SELECT pg_notify('dhara_default', %s)", values["queue"])
        return id_

    def task(self, id_):
        """A task's row, by column."""
        cursor = self.connection.execute("SELECT * FROM dhara_task WHERE id = %s", [id_])
        columns = [column.name for column in cursor.description]
        return dict(zip(columns, cursor.fetchone(), strict=True))

    def states(self, *ids):
        """Where the tasks are, each in turn; of all tasks the set of states."""
        found = dict(self.rows("SELECT id, state FROM dhara_task"))
        return [found[id_] for id_ in ids] if ids else set(found.values())

    def effects(self, name=None):
        """How often functions have left a mark (of this name)."""
        return self.value("SELECT count(*) FROM app_effect WHERE task = coalesce(%s::text, task)", name)

    def history(self, id_):
        """How the failed, lost and interrupted runs of a task ended."""
        return [ended for (ended,) in self.rows("SELECT ended FROM dhara_attempt WHERE task_id = %s ORDER BY id", id_)]

    def sessions(self, like):
        """Server processes of sessions by their application_name."""
        statement = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
        return {pid for (pid,) in self.rows(statement, like)}

    def terminate(self, like):
        """End sessions by their application_name, and see that they are gone."""
        ended = self.sessions(like)
        for pid in ended:
            self.rows("SELECT pg_terminate_backend(%s)", pid)
        until(lambda: not ended & self.sessions(like))
        return ended

    def close(self):
        self.connection.close()


class Crew:
    """The processes of one test on one database; `project` is the folder of the code that they run."""

    def __init__(self, folder, database, project=PROJECT, **env):
        self._folder, self._project, self._env = folder, project, env
        self.database = database
        self._processes = []

    def start(self, *flags, **env):
        """A worker, ready to claim."""
        worker = self.run("dhara_worker", *flags, **env)
        until(lambda: self._is_ready(worker) or not worker.lives, 30)
        assert worker.lives, worker.log
        return worker

    def _is_ready(self, worker):
        """It has introduced itself and gone on to other things."""
        statement = """
            SELECT 1 FROM dhara_worker AS worker JOIN pg_stat_activity AS session
                ON session.application_name = left('dhara worker ' || worker.id, 21)
            WHERE worker.pid = %s AND session.query ~ 'dhara:(claim|rescue|stats|reaper|prune|owned)|pg_notify'
        """
        return self.database.rows(statement, worker.pid)

    def run(self, *words, prefix=(), **env):
        """Start any management command."""
        log = self._folder / f"process-{len(self._processes)}.log"
        words = [*prefix, sys.executable, "manage.py", *words]
        process = Process(words, log, self._project, **{**self._env, **env})
        self._processes.append(process)
        return process

    def id_of(self, worker):
        rows = self.database.rows("SELECT id FROM dhara_worker WHERE pid = %s ORDER BY started_at DESC", worker.pid)
        return rows[0][0] if rows else None

    def end(self):
        """Kill what is left, and print what was written: pytest shows it when the test has failed."""
        for process in self._processes:
            process.kill()
            print(f"--- {process.popen.args}, exit code {process.popen.returncode}:\n{process.log}")
        if self.database.connection.closed:
            return  # the test has stopped the server, and with it whatever it worked on
        # The server does not notice that a client is gone while it still works for it.
        busy = "datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
        self.database.rows(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {busy}")


class Proxy:
    """A TCP port that leads to PostgreSQL's Unix socket, and can be made slow, silent or broken.

    Args:
        target: the path of the socket; it may be changed, for connections to come.
    """

    def __init__(self, target):
        self.target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._flows = Event()
        self._flows.set()
        self._sockets = set()
        self.delay = 0.0
        #: Nobody gets through.
        self.refuses = False
        self.refused = 0
        #: Pieces of data that came through, and that had to wait while nothing flowed.
        self.passed = self.held = 0
        #: Text of statements whose answer is lost, with the connection.
        self.swallows = b""
        self.swallowed = 0
        Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                self._lead(self._listener.accept()[0])

    def _lead(self, client):
        server = socket.socket(socket.AF_UNIX)
        try:
            if self.refuses:
                raise ConnectionRefusedError
            server.connect(self.target)
        except OSError:
            self.refused += 1
            client.close()
            server.close()
            return
        self._sockets |= {client, server}
        doomed = Event()
        back = Thread(target=self._pump, args=(server, client, doomed, self._answers), daemon=True)
        back.start()
        Thread(target=self._serve, args=(client, server, doomed, back), daemon=True).start()

    def _serve(self, client, server, doomed, back):
        self._pump(client, server, doomed, self._asks)
        back.join()
        client.close()
        server.close()

    def _pump(self, source, target, doomed, passes):
        with suppress(OSError):
            while data := source.recv(65536):
                self.held += not self._flows.is_set()
                self._flows.wait()
                if self.delay:
                    sleep(self.delay)
                if not passes(data, doomed):
                    break
                target.sendall(data)
                self.passed += 1
        self._end(source, target)

    def _end(self, *ends):
        for end in ends:
            self._sockets.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _asks(self, data, doomed):
        if self.swallows and self.swallows in data:
            self.swallows = b""
            doomed.set()
        return True

    def _answers(self, data, doomed):
        self.swallowed += doomed.is_set()
        return not doomed.is_set()

    def freeze(self):
        """Nothing arrives any more, and nobody is told: a half-open network."""
        self.held = 0
        self._flows.clear()

    def thaw(self):
        self._flows.set()

    def cut(self):
        """End all connections; returns how many sockets that were."""
        ends = list(self._sockets)
        self._end(*ends)
        return len(ends)

    def close(self):
        self.thaw()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


def test_database():
    """What psycopg needs to reach the database of this test run."""
    parameters = connections["default"].get_connection_params()
    return {name: parameters[name] for name in ("dbname", "host", "port", "user")}
