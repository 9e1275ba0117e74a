"""Workers on the test's database, a proxy before it, and a server of one's own to stop and start."""

import os
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from example_project.localdb.place import Place
from example_project.localdb.server import Server
from tests.workers import harness
from tests.workers.harness import Crew, Database, Proxy, until


@pytest.fixture
def database(transactional_db):
    """The test's database, through a session of its own."""
    database = Database(**harness.test_database())
    yield database
    database.close()


@pytest.fixture
def crew(database, tmp_path):
    """Starts workers on the test's database, and ends them before its tables are emptied."""
    crew = Crew(tmp_path, database, DHARA_TEST_DB=database.parameters["dbname"])
    yield crew
    crew.end()


@pytest.fixture
def proxy(database):
    """A way to the test's database that can be broken; `env` leads a worker through it."""
    where = database.parameters
    proxy = Proxy(Path(where["host"]) / f".s.PGSQL.{where['port']}")
    proxy.env = {"DATABASE_URL": f"postgresql://{where['user']}@127.0.0.1:{proxy.port}/{where['dbname']}"}
    yield proxy
    proxy.close()


class OwnServer:
    """A PostgreSQL server that a test may stop."""

    def __init__(self, folder):
        # Not a profile of tests: what was committed is there after a crash.
        self._server = Server(Place(folder / "crash", "crash"))
        self.cluster = self._server.cluster
        self.start()
        place = self._server.place
        self.parameters = {"dbname": "dhara", "host": str(place.sockets), "port": place.port, "user": place.user}
        self.env = {"DATABASE_URL": harness.url_of(self.parameters)}
        self.database = None

    def connect(self):
        self.database = Database(**self.parameters)
        return self.database

    def start(self):
        self._server.ensure("dhara")

    def stop(self):
        """End the server at once, as a crash would, and be sure that it is gone."""
        if self.database is not None:
            self.database.close()
        pid = self.cluster.pid()
        os.kill(pid, signal.SIGQUIT)
        until(lambda: self.cluster.pid() is None)
        return pid

    def close(self):
        self._server.stop()
        self._server.release()


@contextmanager
def an_own_server(before_migrate=lambda: None):
    """A server with all tables, and nothing else in it."""
    folder = Path(tempfile.mkdtemp(prefix="dhara-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    server = OwnServer(folder)
    before_migrate()
    migrate = harness.Process(
        [harness.sys.executable, "manage.py", "migrate", "--run-syncdb", "-v0"], folder / "migrate.log", **server.env
    )
    assert migrate.ends(60) == 0, migrate.log
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def own_cluster():
    """A server to stop, made once, since initdb and migrations take seconds."""
    with an_own_server() as server:
        yield server


@pytest.fixture
def server(own_cluster):
    """The server to stop, up and empty."""
    own_cluster.start()
    database = own_cluster.connect()
    database.rows("TRUNCATE dhara_task, dhara_attempt, dhara_worker, dhara_command, dhara_minute, app_effect")
    yield own_cluster
    own_cluster.start()
    own_cluster.database.close()


@pytest.fixture
def server_crew(server, tmp_path):
    """Starts workers on the server that can be stopped."""
    crew = Crew(tmp_path, server.database, **server.env)
    yield crew
    crew.end()
