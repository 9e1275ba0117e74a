"""Workers on the test's database, a proxy before it, and a server of one's own to stop and start."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import psycopg
import pytest

from example_project.localdb import binaries
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
        self.folder = folder
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


class Standby:
    """A copy of a server that follows it and only reads, until it is promoted."""

    def __init__(self, folder, primary):
        place = Place(folder / "standby", "standby")
        self._server = Server(place)
        place.prepare()
        programs = binaries.find(place.account())
        account, where = place.account(), primary.parameters
        rights = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        copy = [programs / "pg_basebackup", "-R", "-c", "fast", "-h", where["host"], "-U", where["user"]]
        if account:
            place.base.chmod(0o777)  # for the new folder inside
        subprocess.run([*copy, "-D", place.data], check=True, cwd="/", **rights)
        self._server.ensure("dhara")
        self.parameters = {**where, "host": str(place.sockets)}
        self.database = Database(**self.parameters)

    def has_all_of(self, primary):
        """It has replayed all that the primary has written by now."""
        written = primary.database.value("SELECT pg_current_wal_lsn()::text")
        until(lambda: self.database.value("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written))

    def promote(self):
        assert self.database.value("SELECT pg_promote(wait => true)")

    def close(self):
        self.database.close()
        self._server.stop()
        self._server.release()


@pytest.fixture
def pair():
    """A primary, which may be stopped for good, and its standby; made anew for each test."""
    with an_own_server() as primary:
        primary.connect()
        standby = Standby(primary.folder, primary)
        yield primary, standby
        standby.close()
        primary.database.close()


@contextmanager
def an_own_server(before_migrate=lambda: None):
    """A server with all tables, and nothing else in it."""
    folder = Path(tempfile.mkdtemp(prefix="dhara-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    server = OwnServer(folder)
    try:
        before_migrate()
        words = [harness.sys.executable, "manage.py", "migrate", "--run-syncdb", "-v0"]
        migrate = harness.Process(words, folder / "migrate.log", **server.env)
        assert migrate.ends(90) == 0, migrate.log
        yield server
    finally:
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


class Pooler:
    """PgBouncer in transaction mode before the test's database; no start-up option is ignored, as it comes."""

    PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

    def __init__(self, folder, parameters, account):
        self._folder, self._account = folder, account
        self.port = harness.free_port()
        self.parameters = {**parameters, "host": "127.0.0.1", "port": self.port}
        where, name = parameters, parameters["dbname"]
        (folder / "ini").write_text(
            f"[databases]\n{name} = host={where['host']} port={where['port']} user={where['user']}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 5\nmax_client_conn = 300\nserver_reset_query =\n"
            f"admin_users = {where['user']}\n"
        )
        user = f"{where['user']}@127.0.0.1:{self.port}/{name}"
        self.env = {"DATABASE_URL": f"postgresql://{user}"}
        self._process = None
        self.start()

    def start(self):
        """Start it, and be sure that it lets one in."""
        rights = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.PROGRAM, self._folder / "ini"], stdout=log, stderr=log, **(rights if self._account else {})
            )
        until(self._answers)

    def _answers(self):
        assert self._process.poll() is None, self.log
        try:
            psycopg.connect(**self.parameters).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def log(self):
        return (self._folder / "log").read_text()

    def kill(self):
        """End it at once, with all that goes through it."""
        self._process.kill()
        self._process.wait(10)

    def restart(self, seconds=0.0, mode="transaction"):
        """End it and start it again, that much later, maybe in another mode."""
        self.kill()
        ini = self._folder / "ini"
        ini.write_text(re.sub("pool_mode = .*", f"pool_mode = {mode}", ini.read_text()))
        sleep(seconds)
        self.start()

    def use(self, text):
        """Start it again with another configuration."""
        self.kill()
        (self._folder / "ini").write_text(text)
        self.start()

    def sessions(self):
        """What a client finds in each of the pooler's sessions with the server, by the session's process id."""
        found = {}
        clients = [psycopg.connect(**self.parameters, prepare_threshold=None) for _ in range(5)]
        for client in clients:  # in transactions at the same time, each on a session of its own
            [row] = client.execute(
                "SELECT pg_backend_pid(), current_setting('statement_timeout'), current_setting('plan_cache_mode'),"
                " current_setting('default_transaction_isolation'), current_setting('search_path'),"
                " ARRAY(SELECT pg_listening_channels())"
            ).fetchall()
            found[row[0]] = row[1:]
        for client in clients:
            client.commit()
            client.close()
        return found


@pytest.fixture
def pooler(database):
    """The test's database through PgBouncer; `env` leads a worker through it."""
    if not Pooler.PROGRAM:
        pytest.skip("needs pgbouncer (apt-get install --no-install-recommends pgbouncer)")
    account = Place.of().account()
    folder = Path(tempfile.mkdtemp(prefix="dhara-pooler-"))
    folder.chmod(0o755)
    pooler = Pooler(folder, database.parameters, account)
    yield pooler
    pooler.kill()
    print(f"--- pgbouncer:\n{pooler.log}")
    shutil.rmtree(folder)
