"""The newer migrations on a table of a million rows, while workers of the version before go on."""

from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic, sleep

import pytest

from tests.upgrades import versions
from tests.workers.harness import Database, until

pytestmark = pytest.mark.slow

ROWS = 1_000_000
#: What "a moment" is: nobody notices an enqueue that takes so long.
MOMENT = 0.5
FILL = f"""
INSERT INTO dhara_task (id, backend, queue, function, payload, state, run_at, finished_at, lease)
SELECT gen_random_uuid(), 'default', 'queue ' || n % 7, 'tests.app.tasks.add', '{{"args": [1], "kwargs": {{}}}}',
       (ARRAY['PENDING', 'COMPLETED', 'DEAD', 'CANCELED'])[n % 4 + 1],
       now() + CASE WHEN n % 4 = 0 THEN interval '1 day' ELSE interval '-1 day' END,
       CASE WHEN n % 4 > 0 THEN now() END, 1
FROM generate_series(1, {ROWS}) AS n
"""
HELD = """
SELECT pid, mode, granted FROM pg_locks
WHERE relation = ANY(ARRAY(SELECT oid FROM pg_class WHERE relname LIKE 'dhara\\_%%' AND oid < %s))
  AND mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock')
"""


class Watch:
    """Looks every few milliseconds for locks that stop writes, on tables and indexes that are there at its start."""

    def __init__(self, parameters):
        self._database = Database(**parameters)
        self._newest = self._database.value("SELECT max(oid::bigint) + 1 FROM pg_class")
        self._end, self._thread = Event(), Thread(target=self._look, daemon=True)
        #: For how long such a lock was held or waited for without a break; how often it was looked.
        self.longest, self.looks = 0.0, 0

    def _look(self):
        since = None
        while not self._end.is_set():
            held = self._database.rows(HELD, self._newest)
            now = monotonic()
            since = (since or now) if held else None
            self.longest = max(self.longest, now - since) if since else self.longest
            self.looks += 1
            sleep(0.002)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._end.set()
        self._thread.join()
        self._database.close()


@pytest.fixture
def filled(both, make_tables, database):
    """A million rows on the tables of the version before."""
    make_tables("previous")
    database.rows(FILL)
    database.rows("VACUUM ANALYZE dhara_task")
    assert database.value("SELECT count(*) FROM dhara_task") == ROWS
    return database


@contextmanager
def traffic(database):
    """Somebody enqueues all the time; yields the times that this took, in seconds."""
    other, took, end = Database(**database.parameters), [], Event()

    def enqueue():
        while not end.is_set():
            begun = monotonic()
            other.add("add", 1)
            took.append(monotonic() - begun)
            sleep(0.005)

    thread = Thread(target=enqueue)
    thread.start()
    yield took
    end.set()
    thread.join()
    other.close()


@pytest.mark.timeout(300)
def test_newer_migrations_hold_up_nobody_on_a_million_rows(filled, both, crews):  # C14
    database = filled
    worker = crews["previous"].start()
    done = "SELECT count(*) FROM dhara_task WHERE queue = 'default' AND state = 'COMPLETED'"
    with traffic(database) as took, Watch(database.parameters) as watch:
        until(lambda: database.value(done) > 10)
        before = len(took)
        migrate = crews["present"].run("dhara_migrate")
        assert migrate.ends(120) == 0, migrate.log
        during = took[before:]
        finished = database.value(done)
        until(lambda: database.value(done) > finished + 10)
    newest = database.value("SELECT max(name) FROM django_migrations WHERE app = 'dhara'")
    assert newest == versions.newest_migration(both[1].folder)
    print(f"{watch.looks} looks, longest lock {watch.longest:.3f} s")
    print(f"{len(during)} enqueues meanwhile, longest {max(during):.3f} s")
    assert watch.looks > 50
    assert len(during) > 20
    assert watch.longest < MOMENT
    assert max(during) < MOMENT
    assert worker.stop(30) == 0
    assert database.value("SELECT count(*) FROM dhara_task WHERE failures + lost > 0") == 0


@pytest.mark.timeout(300)
def test_the_watch_sees_an_index_that_is_built_under_a_lock(filled):
    """What the test above would say of a bad migration: on this machine a million rows take longer than a moment."""
    with traffic(filled) as took, Watch(filled.parameters) as watch:
        before = len(took)
        filled.rows("CREATE INDEX some_index ON dhara_task (md5(function || queue || id::text))")
    assert watch.longest > MOMENT
    assert max(took[before:]) > MOMENT
