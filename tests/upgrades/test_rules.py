"""None of our migrations after the first holds up a queue in production; and the rules would notice one that did."""

import pytest
from django.contrib.postgres import operations as postgres
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Length, Now, Random

from tests.upgrades.rules import faults

pytestmark = pytest.mark.fast

LOCK_TIMEOUT = migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop)
INDEX = models.Index(fields=["queue"], name="some_index")
CHECK = models.CheckConstraint(condition=Q(lost__gte=0), name="some_check")


def added(field, model="task"):
    return migrations.AddField(model, "some_field", field)


HARMLESS = {
    "a new table, with an index": [
        migrations.CreateModel("Thing", [("id", models.BigAutoField(primary_key=True))]),
        migrations.AddIndex("thing", INDEX),
        added(models.IntegerField(db_index=True), "thing"),
    ],
    "a concurrent index": [postgres.AddIndexConcurrently("task", INDEX)],
    "an index less": [postgres.RemoveIndexConcurrently("task", "some_index")],
    "a constraint in two steps": [LOCK_TIMEOUT, postgres.AddConstraintNotValid("task", CHECK)],
    "its second step": [postgres.ValidateConstraint("task", "some_check")],
    "a column that may be empty": [LOCK_TIMEOUT, added(models.IntegerField(null=True))],
    "a column with a constant": [LOCK_TIMEOUT, added(models.IntegerField(db_default=0))],
    "a column with the time": [LOCK_TIMEOUT, added(models.DateTimeField(db_default=Now()))],
    "help texts and permissions": [migrations.AlterModelOptions("task", {"permissions": ()})],
    "only on paper": [migrations.SeparateDatabaseAndState(state_operations=[migrations.AddIndex("task", INDEX)])],
}
HARMFUL = {
    "an index": [migrations.AddIndex("task", INDEX)],
    "an index less": [migrations.RemoveIndex("task", "some_index")],
    "a constraint": [LOCK_TIMEOUT, migrations.AddConstraint("task", CHECK)],
    "a long wait for a lock": [added(models.IntegerField(null=True))],
    "a timeout that is long": [
        migrations.RunSQL("SET LOCAL lock_timeout = '300s'"), added(models.IntegerField(null=True))
    ],
    "a column that the version before does not fill": [LOCK_TIMEOUT, added(models.IntegerField(default=0))],
    "a random default": [LOCK_TIMEOUT, added(models.FloatField(db_default=Random()))],
    "a default in SQL": [LOCK_TIMEOUT, added(models.FloatField(db_default=RawSQL("random()", [])))],
    "a generated column": [
        LOCK_TIMEOUT,
        added(models.GeneratedField(expression=Length("queue"), output_field=models.IntegerField(), db_persist=True)),
    ],
    "an indexed column": [LOCK_TIMEOUT, added(models.IntegerField(null=True, db_index=True))],
    "a unique column": [LOCK_TIMEOUT, added(models.IntegerField(null=True, unique=True))],
    "a foreign key": [LOCK_TIMEOUT, added(models.ForeignKey("dhara.Task", models.CASCADE, null=True))],
    "another type": [LOCK_TIMEOUT, migrations.AlterField("task", "priority", models.BigIntegerField())],
    "another name": [LOCK_TIMEOUT, migrations.RenameField("task", "queue", "line")],
    "SQL": [migrations.RunSQL("VACUUM FULL dhara_task")],
    "Python": [migrations.RunPython(migrations.RunPython.noop)],
    "hidden": [migrations.SeparateDatabaseAndState(database_operations=[migrations.AddIndex("task", INDEX)])],
}  # fmt: skip


def a_migration(operations):
    migration = migrations.Migration("0009_some", "dhara")
    migration.operations = operations
    return migration


def test_our_migrations_hold_up_nobody():
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    later = {name: one for (app, name), one in loader.disk_migrations.items() if app == "dhara" and name > "0002"}
    assert "0002_applied_migrations" in later
    assert [fault for migration in later.values() for fault in faults(migration)] == []


@pytest.mark.parametrize("case", HARMLESS)
def test_what_holds_up_nobody_passes(case):
    assert list(faults(a_migration(HARMLESS[case]))) == []


@pytest.mark.parametrize("case", HARMFUL)
def test_what_would_is_told(case):
    [fault, *_] = faults(a_migration(HARMFUL[case]))
    assert fault.startswith("dhara.0009_some: ")


@pytest.mark.parametrize(
    ("column", "rewrites"),
    [
        ("integer", False),
        ("integer DEFAULT 0 NOT NULL", False),
        ("timestamptz DEFAULT statement_timestamp()", False),
        ("float DEFAULT random()", True),
        ("integer GENERATED ALWAYS AS (length(queue)) STORED", True),
        ("integer REFERENCES dhara_queue", False),
    ],
)
def test_postgresql_rewrites_a_table_for_what_the_rules_say_and_for_nothing_else(db, column, rewrites):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_filenode('dhara_task')")
        [before] = cursor.fetchone()
        cursor.execute(f"ALTER TABLE dhara_task ADD some_column {column}")
        cursor.execute("SELECT pg_relation_filenode('dhara_task')")
        assert (cursor.fetchone() != (before,)) is rewrites
