"""What an operation of our migrations may be, so that it holds up no enqueue and no worker on a table of any size.

On a table that is there already: no rewrite, no check of all rows under a lock that stops writes, and nobody waits for
a lock for long while everybody else queues up behind. On a table that the same migration makes, anything.
"""

import re
from collections.abc import Iterator

from django.contrib.postgres.operations import (
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
)
from django.db import migrations, models
from django.db.models.expressions import Expression, Value
from django.db.models.fields import NOT_PROVIDED
from django.db.models.functions import Now

#: They touch no row and take no lock that stops reads or writes; ValidateConstraint reads beside both.
HARMLESS = (
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
    migrations.AlterModelManagers,
    migrations.AlterModelOptions,
    migrations.CreateModel,
)
#: They need ACCESS EXCLUSIVE for a moment, and so must not wait for it for long: LOCK_TIMEOUT comes before them.
BRIEF = (
    AddConstraintNotValid,
    migrations.AddField,
    migrations.DeleteModel,
    migrations.RemoveConstraint,
    migrations.RemoveField,
)
#: Against a reader who does not end: after so long the migration gives up, and can be tried again.
LOCK_TIMEOUT = re.compile(r"\s*SET LOCAL lock_timeout = '[1-3]s';?\s*", re.IGNORECASE)
#: Does what it says once, for all rows: Django's Now() is PostgreSQL's STATEMENT_TIMESTAMP(), which is not volatile.
CONSTANT = (Value, Now)


def faults(migration: migrations.Migration) -> Iterator[str]:
    """Each operation of a migration that would hold somebody up, and why."""
    new, patient = set[str](), True
    for operation in migration.operations:
        model = getattr(operation, "model_name", getattr(operation, "name", "")).lower()
        if isinstance(operation, migrations.RunSQL) and LOCK_TIMEOUT.fullmatch(str(operation.sql)):
            patient = False
        elif model not in new:
            yield from (f"{migration}: {operation.describe()}: {fault}" for fault in _faults(operation, patient))
        if isinstance(operation, migrations.CreateModel):
            new.add(model)


def _faults(operation: object, patient: bool) -> Iterator[str]:
    if isinstance(operation, migrations.AddField):
        yield from _faults_of_field(operation.field)
    if isinstance(operation, migrations.SeparateDatabaseAndState):
        for inner in operation.database_operations:
            yield from _faults(inner, patient)
    elif isinstance(operation, BRIEF):
        if patient:
            yield "waits for ACCESS EXCLUSIVE without end: RunSQL(\"SET LOCAL lock_timeout = '3s'\") belongs before it"
    elif not isinstance(operation, HARMLESS):
        yield "is not known to be harmless; rules.py lists what is"


def _faults_of_field(field: models.Field) -> Iterator[str]:
    default = field.db_default
    if default is NOT_PROVIDED:
        if not field.null:
            yield "the version before does not fill it: db_default, or null=True"
    elif isinstance(default, Expression) and not isinstance(default, CONSTANT):
        yield "a default that differs from row to row rewrites the table"
    if isinstance(field, models.GeneratedField):
        yield "a generated column rewrites the table"
    if field.db_index or field.unique or field.remote_field:
        yield "its index, or its reference, is checked under a lock: add it concurrently, or NOT VALID"
