"""Workers that have nothing to do leave the database and the machine alone."""

import psycopg
import pytest

from tests.workers.harness import until

#: As without any setting; the harness has shorter ones.
DEFAULTS = {"DHARA_LEASE_SECONDS": 30, "DHARA_SWEEP_SECONDS": 5, "DHARA_POLL_SECONDS": 1}
SECONDS, WORKERS = 6.0, 4


@pytest.fixture
def calls(database):
    """How many claims (True) and other statements (False) the server has been told, not counting this test's."""
    try:
        database.rows("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        database.rows("SELECT count(*) FROM pg_stat_statements")
    except psycopg.Error as error:
        pytest.skip(f"needs a server with pg_stat_statements: {error}")
    statement = (
        "SELECT query LIKE '%RECURSIVE place%', sum(calls)::int FROM pg_stat_statements"
        " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND query NOT LIKE '%clock_timestamp()%' AND query NOT LIKE '%pg_stat_statements%' GROUP BY 1"
    )
    yield lambda: dict(database.rows(statement))
    database.rows("DROP EXTENSION pg_stat_statements")


def test_idle_workers_say_little_and_compute_less(crew, database, calls):  # K09
    workers = [crew.start(**DEFAULTS) for _ in range(WORKERS)]
    until(lambda: len(database.sessions("dhara listen%")) == len(workers))
    task = database.add("count", "to begin with")
    until(lambda: database.states(task) == ["COMPLETED"])
    [began] = database.rows("SELECT extract(epoch FROM clock_timestamp())::float8")[0]
    before, cpu = calls(), sum(worker.cpu_seconds for worker in workers)
    until(lambda: database.value("SELECT extract(epoch FROM clock_timestamp()) > %s", began + SECONDS))
    after, cpu = calls(), sum(worker.cpu_seconds for worker in workers) - cpu
    claims, others = (after[kind] - before[kind] for kind in (True, False))
    assert 0.5 * WORKERS * SECONDS < claims <= WORKERS * (SECONDS / 0.9 + 2)  # jitter, and the ends of the time
    assert others <= WORKERS * (SECONDS * (2 / 5 + 1 / 10) + 2)  # a sweep of two in five seconds, a heartbeat in ten
    assert cpu < 5 * 0.01 * WORKERS * SECONDS
