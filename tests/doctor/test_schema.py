"""Our tables, changed by somebody: each change is found, and the advice, followed to the letter, mends it."""

import psycopg
import pytest

TASK = """INSERT INTO dhara_task (id, backend, queue, function, payload, idempotency_key)
          VALUES (gen_random_uuid(), 'default', 'default', 'tests.app.tasks.count', '{}', 'same')"""


@pytest.mark.fast
@pytest.mark.parametrize(
    ("change", "id_", "what"),
    [
        ("ALTER TABLE dhara_task DROP COLUMN progress", "dhara.D032", "dhara_task.progress does not exist"),
        ("ALTER TABLE dhara_task DROP COLUMN snoozed", "dhara.D032", "dhara_task.snoozed does not exist"),
        ("ALTER TABLE dhara_minute ALTER run_seconds TYPE real", "dhara.D033", "run_seconds is real, not double"),
        ("ALTER TABLE dhara_worker ALTER name TYPE varchar(20)", "dhara.D033", "is character varying(20), not"),
        ("ALTER TABLE dhara_task ALTER result SET NOT NULL", "dhara.D034", "dhara_task.result is NOT NULL"),
        ("ALTER TABLE dhara_task ALTER queue DROP NOT NULL", "dhara.D035", "dhara_task.queue may be NULL"),
        ("ALTER TABLE dhara_task ALTER priority DROP DEFAULT", "dhara.D035", "priority is missing, not 0"),
        ("ALTER TABLE dhara_task ALTER run_at SET DEFAULT now()", "dhara.D035", "is now, not statement_timestamp()"),
        ("ALTER TABLE dhara_task ALTER state SET DEFAULT 'DEAD'", "dhara.D035", "is 'DEAD', not 'PENDING'"),
        ("ALTER TABLE dhara_task ALTER payload SET DEFAULT '{}'", "dhara.D035", "payload is '{}', not without one"),
        ("ALTER TABLE dhara_queue ADD COLUMN mine int NOT NULL", "dhara.D036", "dhara_queue.mine is NOT NULL"),
        ("DROP INDEX dhara_task_ready", "dhara.D037", "dhara_task has no index dhara_task_ready"),
        ("DROP INDEX dhara_task_suspects", "dhara.D037", "dhara_task has no index dhara_task_suspects"),
        ("DROP INDEX dhara_task_key", "dhara.D037", "dhara_task has no index dhara_task_key"),
        ("ALTER TABLE dhara_minute DROP CONSTRAINT dhara_minute_key", "dhara.D037", "no index dhara_minute_key"),
        ("CREATE INDEX mine ON dhara_task (lease_until)", "dhara.D040", "mine ON public.dhara_task"),
        ("ALTER TABLE dhara_task DROP CONSTRAINT dhara_task_times", "dhara.D041", "dhara_task has no dhara_task_times"),
        ("ALTER TABLE dhara_task ADD CHECK (lost < 9) NOT VALID", "dhara.D042", "on dhara_task is NOT VALID"),
        ("ALTER TABLE dhara_task RESET (fillfactor)", "dhara.D043", "dhara_task: fillfactor is not set"),
        ("ALTER TABLE dhara_task SET (autovacuum_vacuum_scale_factor = 0.2)", "dhara.D043", "scale_factor is 0.2"),
        ("ALTER TABLE dhara_worker SET (autovacuum_enabled = off)", "dhara.D044", "is off for dhara_worker"),
        ("ALTER TABLE dhara_task SET UNLOGGED", "dhara.D045", "dhara_task is UNLOGGED"),
        ("CREATE TABLE mine (task uuid CONSTRAINT its REFERENCES dhara_task)", "dhara.D048", "its of mine"),
    ],
)  # fmt: skip
def test_what_was_changed_is_found_and_mended(patient, change, id_, what):
    patient.does(change)
    found = patient.findings()
    assert {finding.id for finding in found} == {id_} | ({"dhara.D041"} if "snoozed" in change else set())
    assert what in found[0].what
    for finding in found:
        patient.takes(finding)
    assert patient.is_well()


def test_a_table_is_missing(patient):
    patient.does("ALTER TABLE dhara_token RENAME TO elsewhere")
    finding = patient.has("dhara.D032")
    assert finding.what == "no table dhara_token"
    assert "sqlmigrate" in finding.do


@pytest.mark.parametrize(("migration", "id_"), [("0001_initial", "dhara.D030"), ("0004_dead_letters", "dhara.D031")])
def test_migrations_are_not_applied(patient, migration, id_):
    patient.does(f"UPDATE django_migrations SET app = 'elsewhere' WHERE app = 'dhara' AND name = '{migration}'")
    finding = patient.has(id_)
    assert finding.what == f"{migration} not applied"
    assert finding.do == "manage.py dhara_migrate --database patient"


def test_tables_of_an_older_version_are_no_drift(patient):
    patient.does(
        "UPDATE django_migrations SET app = 'elsewhere' WHERE app = 'dhara' AND name > '0003'",
        "DROP TABLE dhara_quarter, dhara_token", "DROP INDEX dhara_task_dead",
    )  # fmt: skip
    assert patient.has("dhara.D031").what == "0003_operators, 0004_dead_letters not applied"


def test_an_empty_database_has_one_trouble(patient):
    patient.settings["NAME"] = "postgres"
    assert patient.has("dhara.D030").what.startswith("0001_initial, 0002")


def test_an_index_of_ours_is_invalid(patient):
    patient.does("DROP INDEX dhara_task_key", TASK, TASK)
    command = "CREATE UNIQUE INDEX CONCURRENTLY dhara_task_key ON dhara_task (function, idempotency_key)"
    with pytest.raises(psycopg.errors.UniqueViolation):
        patient.does(f"{command} WHERE idempotency_key IS NOT NULL")
    patient.does("TRUNCATE dhara_task")
    finding = patient.has("dhara.D038")
    assert finding.what == "dhara_task_key on dhara_task is invalid"
    patient.takes(finding)
    assert patient.is_well()


def test_what_a_reindex_that_failed_leaves_behind(patient):
    with patient.session() as holder, patient.session(autocommit=True) as other:
        holder.execute("SELECT count(*) FROM dhara_task")
        other.execute("SET lock_timeout = '300ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("REINDEX INDEX CONCURRENTLY dhara_task_ready")
    finding = patient.has("dhara.D038")
    assert "dhara_task_ready_cc" in finding.what
    patient.takes(finding)
    assert patient.is_well()


def test_an_index_of_ours_is_another_one(patient):
    patient.does("DROP INDEX dhara_task_running", "CREATE INDEX dhara_task_running ON dhara_task (lease_until)")
    finding = patient.has("dhara.D039")
    assert "(lease_until)" in finding.what
    patient.takes(finding)
    assert patient.is_well()


def test_the_same_index_under_another_name_is_well(patient):
    patient.does("ALTER INDEX dhara_task_children RENAME TO other")
    assert patient.is_well()


def test_a_trigger_on_the_tasks(patient):
    patient.does(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER mine AFTER UPDATE ON dhara_task FOR EACH ROW EXECUTE FUNCTION nothing()",
    )
    finding = patient.has("dhara.D049")
    assert (finding.what, finding.do[:31]) == ("mine on dhara_task", "DROP TRIGGER mine ON dhara_task")


@pytest.mark.parametrize(
    ("change", "undo", "id_"),
    [
        ("ALTER TABLE dhara_task ENABLE ROW LEVEL SECURITY", "ALTER TABLE dhara_task DISABLE ROW LEVEL SECURITY",
         "dhara.D046"),
        ("REVOKE UPDATE ON dhara_task FROM stranger", "SELECT 1", "dhara.D047"),
    ],
)  # fmt: skip
def test_a_role_that_does_not_get_at_the_rows(patient, stranger, change, undo, id_):
    patient.does(change)
    finding = patient.has(id_)
    assert "stranger" in finding.what
    if id_ == "dhara.D047":
        patient.takes(finding)
    patient.does(undo)
    assert patient.is_well()
