"""Two deploys cannot migrate at once: one of them works, the others wait, and then find nothing to do."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from django_dhara.management.alone import LOCK
from tests.upgrades.garden import Garden
from tests.workers.harness import Proxy, for_as_long_as, until

#: A migration waits here while the test has this advisory lock.
GATE = 4_711
HOLD = f"SELECT pg_advisory_xact_lock({GATE})"
LOCKS = f"""
SELECT session.pid, session.query FROM pg_locks JOIN pg_stat_activity AS session USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = {LOCK >> 32} AND objid = {LOCK & 0xFFFFFFFF}
"""
AT_WORK = "Another dhara_migrate is at work (session "


@contextmanager
def closed_gate(database):
    database.rows("SELECT pg_advisory_lock(%s)", GATE)
    try:
        yield
    finally:
        database.rows("SELECT pg_advisory_unlock(%s)", GATE)


def stands_at_the_gate(database):
    """The session of a dhara_migrate that is in the middle of its migration."""
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
    return until(lambda: database.rows(waiting, GATE))[0][0]


def applied(database):
    return [name for (name,) in database.rows("SELECT name FROM django_migrations WHERE app = 'garden' ORDER BY id")]


@pytest.fixture
def gated(garden):
    """A migration that is slow, and one after it."""
    garden.write("0001_initial", f"{HOLD}; CREATE TABLE bed (id int)")
    garden.write("0002_size", "ALTER TABLE bed ADD size int")
    return garden


@pytest.mark.fast
def test_the_second_one_waits_and_then_finds_nothing_to_do(gated, database):
    with closed_gate(database):
        first = gated.start()
        pid = stands_at_the_gate(database)
        second = gated.start()
        second.says(f"{AT_WORK}{pid}, 'dhara migrate {socket.gethostname()}:{first.pid}'): waiting for up to 300 s.")
        for_as_long_as(1.2, lambda: second.lives and "Applying" not in second.log)
    assert (first.ends(20), second.ends(20)) == (0, 0)
    assert "Applying garden.0002_size... OK" in first.log
    assert "No migrations to apply." in second.log
    assert "Applying" not in second.log
    assert applied(database) == ["0001_initial", "0002_size"]
    assert database.rows(LOCKS) == []


def test_of_five_at_once_one_migrates(garden, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    processes = [garden.start() for _ in range(5)]
    assert [process.ends(60) for process in processes] == [0] * 5
    assert sorted("Applying" in process.log for process in processes) == [False] * 4 + [True]
    assert applied(database) == ["0001_initial"]


def test_who_waits_in_vain_says_so_and_ends_with_a_code_of_its_own(gated, database):
    with closed_gate(database):
        first = gated.start()
        pid = stands_at_the_gate(database)
        for wait in ("0", "0.7"):
            log = gated.run(DHARA_MIGRATE_WAIT=wait, code=3)
            assert log.splitlines()[-1].startswith(f"CommandError: {AT_WORK}{pid}, 'dhara migrate ")
            assert log.endswith(f"waited {wait} s for it.\n")
        assert gated.run("--check", code=1).count("\n") == 1  # needs no lock
    assert first.ends(20) == 0


def test_kill_9_frees_the_lock_when_the_server_has_ended_what_was_under_way(gated, database):
    with closed_gate(database):
        first = gated.start()
        pid = stands_at_the_gate(database)
        second = gated.start()
        second.says(AT_WORK)
        first.kill()
        assert first.popen.returncode == -signal.SIGKILL
        # The server does not know yet. Its session still stands in the migration: nobody else may begin.
        for_as_long_as(1.2, lambda: [found for found, _ in database.rows(LOCKS)] == [pid] and second.lives)
    assert second.ends(20) == 0
    assert "Applying garden.0001_initial... OK" in second.log
    assert applied(database) == ["0001_initial", "0002_size"]


def test_kill_9_between_two_statements_frees_the_lock_at_once(garden, database):
    garden.write("0001_initial", "RunPython(lambda apps, editor: __import__('time').sleep(60))")
    garden.change("0001_initial", "RunPython", "migrations.RunPython")
    first = garden.start()
    first.says("Applying garden.0001_initial...")
    until(lambda: database.rows(LOCKS))
    garden.change("0001_initial", "sleep(60)", "sleep(0)")
    second = garden.start()
    second.says(AT_WORK)
    first.kill()
    assert second.ends(10) == 0
    assert applied(database) == ["0001_initial"]


def test_a_session_that_is_ended_takes_the_migration_with_it(gated, database):
    with closed_gate(database):
        first = gated.start()
        pid = stands_at_the_gate(database)
        database.rows("SELECT pg_terminate_backend(%s)", pid)
        assert first.ends(20) == 1
    last = first.log.splitlines()[-1]
    assert "The session that migrates DATABASES['default'] has lost its lock (" in last
    assert "Run this again" in last
    assert "Traceback" not in first.log
    assert applied(database) == []
    gated.run()
    assert applied(database) == ["0001_initial", "0002_size"]


def test_a_connection_that_breaks_is_noticed(gated, database):
    where = gated.databases["default"]
    proxy = Proxy(f"{where['HOST']}/.s.PGSQL.{where['PORT']}")
    with closed_gate(database):
        first = gated.start(DHARA_MIGRATE_DSN=f"host=127.0.0.1 port={proxy.port}")
        stands_at_the_gate(database)
        proxy.close()
        assert first.ends(20) == 1
    assert "has lost its lock (" in first.log.splitlines()[-1]
    assert "Traceback" not in first.log
    assert applied(database) == []


def test_a_migration_that_closes_the_connection_is_the_last_one(garden, database):
    garden.write("0001_initial", "migrations.RunPython(lambda apps, editor: editor.connection.close())", atomic=False)
    garden.write("0002_table", "CREATE TABLE bed (id int)")
    log = garden.run(code=1)
    assert "has lost its lock. Another" in log.splitlines()[-1]
    assert "0002_table" not in log
    assert applied(database) == ["0001_initial"]
    assert "Applying garden.0002_table... OK" in garden.run()
    garden.write("0003_again", "migrations.RunPython(lambda apps, editor: editor.connection.close())", atomic=False)
    assert "has lost its lock" in garden.run(code=1)  # after the last one, too


def test_who_waits_does_not_hold_up_a_concurrent_index(garden, database):
    """`pg_advisory_lock` would be a statement with a snapshot, for which the index waits, and it for the index."""
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.write("0002_index", "CREATE INDEX CONCURRENTLY bed_id ON bed (id)", atomic=False)
    garden.run("garden", "0001")
    garden.run("dhara")
    other = type(database)(**database.parameters)
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.rows("SELECT * FROM bed")
    first = garden.start()
    building = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%' AND wait_event_type = 'Lock'"
    until(lambda: database.rows(building))
    second = garden.start()
    second.says(AT_WORK)
    for_as_long_as(1.2, lambda: second.lives and first.lives)
    other.rows("COMMIT")
    other.close()
    assert (first.ends(20), second.ends(20)) == (0, 0)
    assert database.value("SELECT indisvalid FROM pg_index WHERE indexrelid = 'bed_id'::regclass")


def test_each_database_has_a_lock_of_its_own(databases, tmp_path):
    one, other = databases.make(), databases.make()
    garden = Garden(tmp_path, {"default": one.parameters, "other": other.parameters})
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.run("--database", "other")
    assert applied(other) == ["0001_initial"]
    garden.write("0002_size", f"{HOLD}; ALTER TABLE bed ADD size int")
    with closed_gate(one):
        first = garden.start()
        stands_at_the_gate(one)
        assert "at work" not in garden.run(DHARA_MIGRATE_DATABASE="other")
        assert first.lives
        assert garden.run("--database", "other", "--check").startswith("All migrations")
        garden.run("--check", code=1)
    assert first.ends(20) == 0
    garden.end()


def test_a_database_that_is_not_ours_is_refused(garden):
    garden.databases["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    garden.write("0001_initial", "SELECT 1")
    assert garden.run(code=1) == (
        "CommandError: DATABASES['default'] is not PostgreSQL: use `migrate --database default`.\n"
    )


class Pooler:
    """PgBouncer in transaction mode before the garden's database, and `garden` behind it."""

    def __init__(self, folder, garden):
        where = garden.databases["default"]
        self.direct = f"host={where['HOST']} port={where['PORT']}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ini = folder / "pgbouncer.ini"
        ini.write_text(
            f"[databases]\n* = host={where['HOST']} port={where['PORT']} user={where['USER']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n"
        )
        ini.chmod(0o644)
        # It refuses to run as root; and the server's socket is for the account that the server runs under.
        owner = Path(where["HOST"]).stat() if os.geteuid() == 0 else None
        account = {"user": owner.st_uid, "group": owner.st_gid} if owner else {}
        with ini.open() as file:  # whose folder that account may not enter
            self._process = subprocess.Popen(
                [shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", "-q", f"/dev/fd/{file.fileno()}"],
                pass_fds=[file.fileno()], stdin=subprocess.DEVNULL, cwd="/", **account,
            )  # fmt: skip
            until(lambda: self._answers(port))
        where.update(HOST="127.0.0.1", PORT=port)

    def _answers(self, port):
        assert self._process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def close(self):
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture
def pooler(garden, tmp_path):
    if not (shutil.which("pgbouncer") or os.access("/usr/sbin/pgbouncer", os.X_OK)):
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    pooler = Pooler(tmp_path, garden)
    yield pooler
    pooler.close()


def test_a_pooler_is_refused_and_a_direct_way_past_it_is_taken(garden, pooler, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.run("dhara_migrate", "--check", code=1)  # asks through it, which does no harm
    [line] = garden.run(code=1).splitlines()
    assert line.startswith("CommandError: The way to DATABASES['default'] leads through a pooler (")
    assert "--dsn" in line
    assert database.rows(LOCKS) == []
    garden.run("--dsn", pooler.direct)
    assert applied(database) == ["0001_initial"]
    garden.run(DHARA_MIGRATE_DSN=pooler.direct)
    garden.run("--check")
