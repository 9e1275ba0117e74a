"""What time does to the tables, and who keeps vacuum from its work: real sessions, standbys, slots and dead rows."""

import pytest

from django_dhara.backend import DharaBackend
from django_dhara.doctor import Limits, examine
from tests.doctor.conftest import an_alias
from tests.workers.harness import until

TASKS = """INSERT INTO dhara_task (id, backend, queue, function, payload)
    SELECT gen_random_uuid(), 'default', 'default', 'tests.app.tasks.count', '{{}}' FROM generate_series(1, {})"""


def test_dead_rows_that_nobody_removes(patient):
    patient.does(TASKS.format(9000), "ANALYZE dhara_task", "DELETE FROM dhara_task")
    dead = "SELECT n_dead_tup >= 9000 FROM pg_stat_user_tables WHERE relname = 'dhara_task'"
    until(lambda: patient.value_anew(dead))
    finding = patient.has("dhara.D050")
    assert "dead rows beside" in finding.what
    patient.does("VACUUM (ANALYZE) dhara_task")
    until(lambda: patient.is_well_now())


def test_rows_that_no_vacuum_has_seen(patient):
    patient.does("VACUUM dhara_attempt")
    patient.does("""INSERT INTO dhara_attempt (task_id, lease, number, worker_id, started_at, ended, error_class)
        SELECT gen_random_uuid(), 1, 1, gen_random_uuid(), now(), 'FAILED', 'x' FROM generate_series(1, 9000)""")
    inserted = "SELECT n_ins_since_vacuum >= 9000 FROM pg_stat_user_tables WHERE relname = 'dhara_attempt'"
    until(lambda: patient.value_anew(inserted))
    assert "dhara_attempt got 9,000 rows since its last vacuum" in patient.has("dhara.D050").what
    patient.does("TRUNCATE dhara_attempt", "VACUUM dhara_attempt")
    until(lambda: patient.is_well_now())


def test_the_index_of_ready_tasks_is_much_too_large(patient):
    patient.does(TASKS.format(20_000))
    assert patient.is_well_now(small_index_bytes=1e5, overdue_vacuums=1e9, ready_seconds=60)
    patient.does(
        "UPDATE dhara_task SET state = 'COMPLETED', finished_at = now()", "VACUUM (INDEX_CLEANUP on) dhara_task"
    )
    finding = patient.has("dhara.D051", small_index_bytes=1e5)
    assert "MB for 0 waiting tasks" in finding.what
    patient.takes(finding)
    assert patient.is_well(small_index_bytes=1e5)


def test_transaction_ids_run_out(patient):
    patient.does("DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    assert "transactions old" in patient.has("dhara.D052", xid_age=2500).what


def test_a_session_holds_an_old_snapshot(patient):
    with patient.session(application_name="report") as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM app_note")
        until(lambda: not patient.is_well_now(held_seconds=0.2))
        finding = patient.has("dhara.D060", held_seconds=0.2)
        assert f"process {session.info.backend_pid} (" in finding.what
        assert ", report, idle in transaction)" in finding.what
        patient.database.rows(finding.do.partition(";")[0])
    assert patient.is_well(held_seconds=0.2)


def test_a_prepared_transaction_was_forgotten(patient):
    patient.does("BEGIN", "CREATE TABLE mine ()", "PREPARE TRANSACTION 'it''s mine'")
    until(lambda: not patient.is_well_now(held_seconds=0.2))
    finding = patient.has("dhara.D061", held_seconds=0.2)
    assert "it's mine" in finding.what
    patient.database.rows(finding.do.partition(";")[0])
    assert patient.is_well(held_seconds=0.2)


def test_a_standby_holds_a_snapshot_and_a_slot_keeps_its_place(pair):
    primary, standby = pair
    primary.database.rows("SELECT pg_create_physical_replication_slot('left', true)")
    standby.database.rows("ALTER SYSTEM SET hot_standby_feedback = on")
    standby.database.rows("ALTER SYSTEM SET wal_receiver_status_interval = '1s'")
    standby.database.rows("SELECT pg_reload_conf()")
    standby.has_all_of(primary)
    reader = type(standby.database)(**standby.parameters)
    reader.connection.autocommit = False
    reader.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader.rows("SELECT count(*) FROM dhara_task")
    primary.database.rows("DO $$ BEGIN FOR n IN 1..50 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    where = primary.parameters
    given = {"HOST": where["host"], "PORT": str(where["port"]), "NAME": where["dbname"], "USER": where["user"]}
    with an_alias("primary", **given, ENGINE="django.db.backends.postgresql", OPTIONS={}):
        backend = DharaBackend("default", {"OPTIONS": {"DATABASE": "primary"}})

        def found():
            return {one.id: one for one in examine([backend], Limits(xmin_age=20, slot_bytes=1))}

        until(lambda: {"dhara.D062", "dhara.D063"} <= found().keys())
        assert "left (physical, inactive) keeps" in found()["dhara.D063"].what
        primary.database.rows(found()["dhara.D063"].do.partition(";")[0])
        reader.close()
        until(lambda: not {"dhara.D062", "dhara.D063"} & found().keys())


@pytest.mark.parametrize("id_", ["dhara.D064", "dhara.D065"])
def test_a_transaction_holds_locks(patient, id_):
    with patient.session(application_name="deploy") as session:
        if id_ == "dhara.D064":
            session.execute(TASKS.format(1))
        else:
            session.execute("LOCK TABLE dhara_task IN SHARE MODE")
        limits = {"held_seconds": 0.2, "table_lock_seconds": 0.2}
        until(lambda: id_ in {finding.id for finding in patient.findings(**limits)})
        finding = next(finding for finding in patient.findings(**limits) if finding.id == id_)
        assert f"process {session.info.backend_pid} (" in finding.what
        assert ", deploy) has " in finding.what
        patient.database.rows(finding.do.partition(";")[0])
    assert patient.is_well(**limits)
