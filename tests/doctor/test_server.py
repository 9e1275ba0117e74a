"""The server's own troubles: what the doctor says of its version, its settings, its connections and its poolers."""

from datetime import date

import psycopg
import pytest

from django_dhara import registry, task
from django_dhara.backend import DharaBackend
from django_dhara.doctor import examine, server
from tests.doctor.conftest import an_alias
from tests.workers.harness import free_port, until
from tests.workers.test_clocks import FAKED, needs_faketime


@pytest.mark.fast
def test_a_healthy_database_yields_nothing(patient):
    assert patient.is_well()


def test_a_server_out_of_reach_is_one_finding(patient):
    patient.settings["PORT"], patient.settings["HOST"] = str(free_port()), "127.0.0.1"
    finding = patient.has("dhara.D001")
    assert "onnection refused" in finding.what
    assert "DATABASES['patient']" in finding.do


def test_a_standby_is_no_database_to_work_with(pair):
    primary, standby = pair
    standby.has_all_of(primary)
    where = standby.parameters
    given = {"HOST": where["host"], "PORT": str(where["port"]), "NAME": where["dbname"], "USER": where["user"]}
    with an_alias("standby", **given, ENGINE="django.db.backends.postgresql", OPTIONS={}):
        [finding] = examine([DharaBackend("default", {"OPTIONS": {"DATABASE": "standby"}})])
    assert (finding.id, "standby" in finding.what) == ("dhara.D001", True)


def test_questions_that_wait_for_a_lock_are_given_up_and_told(patient):
    with patient.session() as other:
        other.execute("LOCK TABLE dhara_worker IN ACCESS EXCLUSIVE MODE")
        found = patient.findings(table_lock_seconds=0.0)
    assert {finding.id for finding in found} == {"dhara.D002", "dhara.D065"}
    [lock] = [finding for finding in found if finding.id == "dhara.D065"]
    assert "AccessExclusiveLock on dhara_worker" in lock.what
    assert "pg_terminate_backend(" in lock.do
    assert patient.is_well()


def test_a_role_that_sees_only_itself_is_told(patient, stranger):
    patient.does("REVOKE pg_read_all_stats FROM stranger")
    finding = patient.has("dhara.D003")
    patient.takes(finding)
    assert patient.is_well()


def test_a_role_that_may_not_read_the_migrations(patient, stranger):
    patient.does("REVOKE SELECT ON django_migrations FROM stranger")
    assert {finding.id for finding in patient.findings()} == {"dhara.D002"}


def test_a_version_is_too_old_or_at_its_end(patient, monkeypatch):
    assert "maintained until 20" in patient.has("dhara.D011", end_of_life_days=10_000).what
    monkeypatch.setattr(server, "END_OF_LIFE", {99: date(2099, 1, 1)})  # no older server is here
    assert patient.has("dhara.D010").what.startswith("PostgreSQL 1")


@pytest.fixture
def reloads(patient):
    """Change settings of the server; they are taken back in the end."""
    changed = []

    def reload(name, value):
        changed.append(name)
        patient.does(f"ALTER SYSTEM SET {name} = {value}", "SELECT pg_reload_conf()")
        until(lambda: patient.value_anew(f"SHOW {name}") == value)

    yield reload
    for name in changed:
        patient.does(f"ALTER SYSTEM RESET {name}")
    patient.does("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("fsync", "dhara.D012"),
        ("full_page_writes", "dhara.D012"),
        ("synchronous_commit", "dhara.D013"),
        ("autovacuum", "dhara.D014"),
        ("track_counts", "dhara.D014"),
    ],
)
def test_settings_that_hurt(patient, reloads, name, id_):
    reloads(name, "off")
    finding = patient.has(id_)
    assert finding.what.startswith(f"{name} is off")
    patient.takes(finding)
    until(patient.is_well_now)


@pytest.mark.parametrize("where", ["ROLE {user}", "DATABASE {dbname}", "ROLE {user} IN DATABASE {dbname}"])
def test_a_setting_is_taken_back_where_it_was_made(patient, where):
    where = where.format(**patient.database.parameters)
    patient.does(f"ALTER {where} SET default_transaction_isolation = 'serializable'")
    finding = patient.has("dhara.D015")
    assert finding.do == f"ALTER {where} RESET default_transaction_isolation;"
    patient.takes(finding)
    assert patient.is_well()


def test_a_setting_of_django_is_taken_back_there(patient):
    patient.settings["OPTIONS"] = {"options": "-c lock_timeout=200"}
    finding = patient.has("dhara.D016")
    assert finding.what == "lock_timeout is 200 ms"
    assert finding.do == "Take lock_timeout out of DATABASES['patient']['OPTIONS']['options']."


def test_a_short_statement_timeout(patient):
    name = patient.database.parameters["dbname"]
    patient.does(f"ALTER DATABASE {name} SET statement_timeout = '100ms'")
    patient.takes(patient.has("dhara.D016"))
    assert patient.is_well()


@pytest.mark.parametrize("name", ["idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"])
def test_timeouts_that_end_sessions(patient, name, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    task(atomic=True, timeout=100)(test_a_healthy_database_yields_nothing)
    patient.options["DRAIN_SECONDS"] = 100
    if name == "transaction_timeout" and patient.database.connection.info.server_version < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    where = patient.database.parameters["dbname"]
    patient.does(f"ALTER DATABASE {where} SET {name} = '90s'")
    finding = patient.has("dhara.D017")
    assert finding.what.startswith(f"{name} is 90 s")
    patient.takes(finding)
    assert patient.is_well()


def test_a_transaction_without_a_limit(patient):
    where = patient.database.parameters["dbname"]
    patient.does(f"ALTER DATABASE {where} SET idle_in_transaction_session_timeout = 0")
    patient.takes(patient.has("dhara.D018"))
    assert patient.is_well()


WORKER = """INSERT INTO dhara_worker
    (id, backend, name, host, pid, version, queues, exclude_queues, concurrency, lease_seconds)
    VALUES (gen_random_uuid(), 'default', 'big', 'here', 1, '0.1.0', '[]', '[]', 900, 30)"""


def test_workers_that_may_open_more_connections_than_there_are(patient):
    patient.does(WORKER)
    assert "1 workers may open 903 connections" in patient.has("dhara.D019").what


def test_hardly_a_connection_is_left(patient, stranger):
    patient.does("ALTER ROLE stranger CONNECTION LIMIT 4")
    patient.options["NOTIFY"] = False  # no connection is left to listen on
    with patient.session(user="stranger"), patient.session(user="stranger"), patient.session(user="stranger"):
        finding = patient.has("dhara.D020")
    assert finding.what == "4 of 4 connections are used (the connection limit of role stranger)"


def test_a_pooler_and_what_it_does_to_wake_ups(patient, database, pooler):
    with an_alias("pooled", HOST="127.0.0.1", PORT=str(pooler.port), ENGINE="django.db.backends.postgresql", OPTIONS={},
                  NAME=database.parameters["dbname"], USER=database.parameters["user"]):  # fmt: skip
        options = {"DATABASE": "pooled", **patient.options}
        ids = {finding.id for finding in examine([DharaBackend("default", {"OPTIONS": options})])}
        assert ids & {"dhara.D021", "dhara.D022", "dhara.D002"} == {"dhara.D021", "dhara.D022"}
        options["LISTEN_DSN"] = psycopg.conninfo.make_conninfo(**database.parameters)
        ids = {finding.id for finding in examine([DharaBackend("default", {"OPTIONS": options})])}
        assert ids & {"dhara.D021", "dhara.D022"} == {"dhara.D021"}


def test_a_listening_connection_that_leads_nowhere(patient):
    patient.options["LISTEN_DSN"] = f"host=127.0.0.1 port={free_port()}"
    finding = patient.has("dhara.D023")
    assert "TASKS['default']" in finding.do
    patient.options["NOTIFY"] = False
    assert patient.is_well()


def test_a_listener_that_stays_in_a_transaction_fills_the_queue(patient):
    with patient.session() as listener:
        listener.execute("LISTEN dhara_test")
        listener.commit()
        listener.execute("SELECT 1")
        for _ in range(20):
            patient.does("SELECT pg_notify('dhara_test', repeat('x', 7000) || n) FROM generate_series(1, 100) AS n")
        [finding] = [one for one in patient.findings(notify_share=0.0005) if one.id == "dhara.D024"]
        assert "of the notification queue is used" in finding.what
    until(lambda: patient.is_well_now(notify_share=0.0005))


@needs_faketime
def test_the_clock_of_this_machine_is_wrong(crew):
    wrong = crew.run("dhara_doctor", FAKETIME="-3h", DHARA_DRAIN_SECONDS="60", **FAKED)
    assert wrong.ends(30) == 0, wrong.log
    assert "WARNING dhara.D025" in wrong.log
    assert "this machine is 3 h behind the server" in " ".join(wrong.log.split())
