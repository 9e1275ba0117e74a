"""Our tables beside our models: what is missing, invalid, another than it was made, or stands in the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connections, models
from django.db.models.functions import Now

from django_dhara.doctor.case import Case
from django_dhara.doctor.finding import Finding, Severity, Trouble, listed
from django_dhara.worker.presence import NEEDED

WAITED_FOR = Trouble(
    "dhara.D030", Severity.ERROR,
    "Migrations are missing that workers cannot do without",
    "Workers of this version wait for them and run nothing.",
    "manage.py dhara_migrate --database {database}",
)  # fmt: skip
UNAPPLIED = Trouble(
    "dhara.D031", Severity.WARNING,
    "Migrations are not applied",
    "Workers get along without them, but pages of the admin and commands of this version may not.",
    "manage.py dhara_migrate --database {database}",
)  # fmt: skip


def applied_migrations(case: Case) -> Iterator[Finding]:
    missing = case.unapplied
    waited_for = [name for name in missing if name <= NEEDED]
    if waited_for:
        yield WAITED_FOR.seen(f"{listed(missing)} not applied", database=case.database, migrations=missing)
    elif missing:
        yield UNAPPLIED.seen(f"{listed(missing)} not applied", database=case.database, migrations=missing)


COLUMN_MISSING = Trouble(
    "dhara.D032", Severity.ERROR,
    "A table or a column is missing, although its migration counts as applied",
    "Statements that name it fail: somebody has changed the tables by hand, or restored a part of them.",
    "Restore it from a backup. Or make it anew, without what was in it: {command}",
)  # fmt: skip
COLUMN_TYPE = Trouble(
    "dhara.D033", Severity.WARNING,
    "A column has another type than its model",
    "Statements cast their values to the type that the model has: they fail, lose precision, or find no index.",
    "ALTER TABLE {table} ALTER COLUMN {column} TYPE {type};",
)  # fmt: skip
COLUMN_NULL = Trouble(
    "dhara.D034", Severity.ERROR,
    "A column refuses what is written to it",
    "Inserts or updates that leave it empty fail: enqueues, claims or settles.",
    "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL;",
)  # fmt: skip
COLUMN_LOOSE = Trouble(
    "dhara.D035", Severity.WARNING,
    "A column may be empty, or has another default than its model",
    "A row that somebody writes by hand, or an older version writes, may be one that workers cannot read.",
    "{command}",
)  # fmt: skip


class _Column(NamedTuple):
    table: str
    name: str
    type: str
    is_null: bool
    #: As PostgreSQL would show it; empty without one; None: not compared.
    default: str | None


_COLUMNS = """
SELECT wanted.number, relation.oid IS NOT NULL AS has_table, attribute.attname IS NOT NULL AS has_column,
       format_type(to_regtype(wanted.type), NULL) AS wanted_type,
       format_type(attribute.atttypid, attribute.atttypmod) AS type,
       NOT attribute.attnotnull AS is_null, coalesce(pg_get_expr(adbin, adrelid), '') AS default
FROM unnest(%(numbers)s::int[], %(tables)s::text[], %(names)s::text[], %(types)s::text[])
     AS wanted(number, table_name, column_name, type)
LEFT JOIN pg_class AS relation ON relation.oid = to_regclass(quote_ident(wanted.table_name))
LEFT JOIN pg_attribute AS attribute ON attrelid = relation.oid AND attname = wanted.column_name AND NOT attisdropped
LEFT JOIN pg_attrdef AS value ON adrelid = attrelid AND adnum = attnum
ORDER BY wanted.number
"""


def columns(case: Case) -> Iterator[Finding]:
    wanted = [_column(case, model, field) for model in _models() for field in model._meta.local_fields]  # noqa: SLF001
    found = case.rows(
        _COLUMNS,
        numbers=list(range(len(wanted))),
        tables=[column.table for column in wanted],
        names=[column.name for column in wanted],
        types=[column.type for column in wanted],
    )
    seen = set[str]()
    for column, row in zip(wanted, found, strict=True):
        if row.has_column:
            yield from _compared(column, row)
        elif row.has_table or column.table not in seen:
            what = f"{column.table}.{column.name} does not exist" if row.has_table else f"no table {column.table}"
            yield COLUMN_MISSING.seen(what, command=_made_anew(column, row.has_table), table=column.table)
            seen.add(column.table)


def _column(case: Case, model: Any, field: Any) -> _Column:
    type_: str = field.db_type(connections[case.database])
    default: str | None = ""
    if field.db_default is not models.NOT_PROVIDED:
        default = "statement_timestamp" if isinstance(field.db_default, Now) else _literal(field.db_default)
    return _Column(model._meta.db_table, field.column, type_, field.null, None if field.primary_key else default)  # noqa: SLF001


def _made_anew(column: _Column, has_table: bool) -> str:
    if not has_table:
        return f"the CREATE TABLE {column.table} that `manage.py sqlmigrate dhara` prints of its migration."
    default = f" DEFAULT {_shown(column.default)}" if column.default else ""
    null = "" if column.is_null else " NOT NULL"
    return f"ALTER TABLE {column.table} ADD COLUMN {column.name} {column.type}{default}{null};"


def _shown(default: str) -> str:
    return f"{default}()" if default == "statement_timestamp" else default


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else f"{value:g}"


def _compared(column: _Column, row: Any) -> Iterator[Finding]:
    where, names = f"{column.table}.{column.name}", {"table": column.table, "column": column.name}
    change = f"ALTER TABLE {column.table} ALTER COLUMN {column.name}"
    if row.type != row.wanted_type:
        yield COLUMN_TYPE.seen(f"{where} is {row.type}, not {row.wanted_type}", type=row.wanted_type, **names)
    if column.is_null and not row.is_null:
        yield COLUMN_NULL.seen(f"{where} is NOT NULL", **names)
    if row.is_null and not column.is_null:
        yield COLUMN_LOOSE.seen(f"{where} may be NULL", command=f"{change} SET NOT NULL;", **names)
    if column.default is not None and (has := _default(row.default)) != column.default:
        default = _shown(column.default)
        command = f"{change} SET DEFAULT {default};" if default else f"{change} DROP DEFAULT;"
        what = f"the default of {where} is {has or 'missing'}, not {default or 'without one'}"
        yield COLUMN_LOOSE.seen(what, command=command, **names)


def _default(text: str) -> str:
    plain = _plain(text)
    return f"{float(plain):g}" if re.fullmatch(r"-?[\d.]+", plain) else plain


FOREIGN_COLUMN = Trouble(
    "dhara.D036", Severity.ERROR,
    "A column that is not ours wants a value",
    "It is NOT NULL and has no default, and our inserts do not name it: they fail.",
    "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL;",
)  # fmt: skip


def foreign_columns(case: Case) -> Iterator[Finding]:
    ours = {(model._meta.db_table, field.column) for model in _models() for field in model._meta.local_fields}  # noqa: SLF001
    found = case.rows(
        """
        SELECT relname AS table, attname AS name FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE attrelid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%(tables)s::text[]) AS name)
              AND attnum > 0 AND NOT attisdropped AND attnotnull AND NOT atthasdef AND attidentity = ''""",
        tables=_tables(),
    )
    for row in found:
        if (row.table, row.name) not in ours:
            yield FOREIGN_COLUMN.seen(f"{row.table}.{row.name} is NOT NULL", table=row.table, column=row.name)


INDEX_MISSING = Trouble(
    "dhara.D037", Severity.ERROR,
    "An index of ours is missing",
    "Statements that go along it read the whole table instead; without a unique one, keys are no longer kept apart.",
    "{command}",
)  # fmt: skip
INDEX_INVALID = Trouble(
    "dhara.D038", Severity.ERROR,
    "An index is invalid",
    "CREATE INDEX CONCURRENTLY or REINDEX CONCURRENTLY did not get to its end. Every write keeps it up to date, and no "
    "statement uses it.",
    "{command}",
)  # fmt: skip
INDEX_OTHER = Trouble(
    "dhara.D039", Severity.WARNING,
    "An index of ours is not what it was made as",
    "Statements that go along it may read more than they need, or the whole table.",
    "DROP INDEX CONCURRENTLY {name}; {command}",
)  # fmt: skip
INDEX_FOREIGN = Trouble(
    "dhara.D040", Severity.INFO,
    "The table of tasks has an index that is not ours",
    "Each task writes an entry of it at least once, and vacuum reads it; one on lease_until also makes every renewal "
    "of a lease write to all indexes.",
    "DROP INDEX CONCURRENTLY {name}; unless a query of yours needs it.",
)  # fmt: skip
_INDEXES = """
SELECT relation.relname AS table, index.relname AS name, indisvalid AND indisready AS is_valid,
       pg_get_indexdef(index.oid) AS definition
FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid JOIN pg_class AS relation ON relation.oid = indrelid
WHERE indrelid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%(tables)s::text[]) AS name)
ORDER BY index.relname
"""


class _Index(NamedTuple):
    table: str
    #: None: Django has given it one.
    name: str | None
    command: str


def indexes(case: Case) -> Iterator[Finding]:
    found, existing = case.rows(_INDEXES, tables=_tables()), _existing(case)
    wanted = [index for index in _wanted_indexes(case) if index.table in existing]
    named = {row.name: row for row in found}
    ours, names = {_shape(index.command) for index in wanted}, {index.name for index in wanted}
    there = {(row.table, _shape(row.definition)) for row in found}
    for index in wanted:
        row = named.get(index.name)
        if row is not None and _shape(row.definition) != _shape(index.command):
            what = f"{index.name} is {row.definition}"
            yield INDEX_OTHER.seen(what, name=index.name, command=_beside_writers(index.command))
        elif row is None and (index.table, _shape(index.command)) not in there:
            what = f"{index.table} has no index {index.name or _shape(index.command)}"
            yield INDEX_MISSING.seen(what, name=index.name, command=_beside_writers(index.command))
    for row in found:
        if not row.is_valid:
            is_ours = row.name in names
            do = f"REINDEX INDEX CONCURRENTLY {row.name};" if is_ours else f"DROP INDEX CONCURRENTLY {row.name};"
            yield INDEX_INVALID.seen(f"{row.name} on {row.table} is invalid", command=do, name=row.name)
        elif row.table == "dhara_task" and row.name not in names and _shape(row.definition) not in ours:
            yield INDEX_FOREIGN.seen(row.definition, name=row.name)


def _wanted_indexes(case: Case) -> Iterator[_Index]:
    """What the models ask for, as the commands that would make it."""
    editor = connections[case.database].schema_editor()
    for model in _models():
        meta: Any = model._meta  # noqa: SLF001
        table = meta.db_table
        for index in meta.indexes:
            yield _Index(table, index.name, str(index.create_sql(model, editor)))
        for one in meta.constraints:
            if isinstance(one, models.UniqueConstraint):
                yield _Index(table, one.name, _as_index(str(one.create_sql(model, editor)), table, one.name))
        for field in meta.local_fields:
            if field.unique:
                command = f"CREATE UNIQUE INDEX {table}_{field.column}_key ON {table} ({field.column})"
                yield _Index(table, None, command)


def _as_index(command: str, table: str, name: str) -> str:
    """A constraint without a condition is made by ALTER TABLE; its index is made so."""
    added = re.search(r" UNIQUE \((.*)\)", command)
    return f"CREATE UNIQUE INDEX {name} ON {table} ({added[1]})" if added and "INDEX" not in command else command


def _beside_writers(command: str) -> str:
    return (
        re.sub(r"^CREATE (UNIQUE )?INDEX", r"CREATE \1INDEX CONCURRENTLY", command.replace('"', "")).rstrip(";") + ";"
    )


def _shape(definition: str) -> str:
    """What an index is, whoever wrote it down: uniqueness, columns, condition."""
    kind = "unique " if definition.startswith("CREATE UNIQUE") else ""
    return kind + _plain(re.sub(r"^.*? ON \S+ (USING btree )?", "", definition))


def _plain(expression: str) -> str:
    """An expression without what PostgreSQL adds when it shows one: casts, parentheses, quotes of names."""
    text = re.sub(r"::[a-z]+( varying| precision| with time zone| without time zone)?(\[\])?", "", expression)
    return " ".join(re.sub(r'[()";]', " ", text).replace(" ,", ",").split())


CONSTRAINT_MISSING = Trouble(
    "dhara.D041", Severity.WARNING,
    "A constraint of ours is missing",
    "One odd row, written by hand, is no longer refused, and may end every claim that meets it.",
    "{command}",
)  # fmt: skip
NOT_VALID = Trouble(
    "dhara.D042", Severity.WARNING,
    "A constraint was never validated",
    "Rows from before it may break it, and an update of one of them fails: a claim that brings it, a settle.",
    "ALTER TABLE {table} VALIDATE CONSTRAINT {name};",
)  # fmt: skip


def constraints(case: Case) -> Iterator[Finding]:
    found = case.rows(
        """
        SELECT conname AS name, relname AS table, convalidated AS is_valid
        FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
        WHERE contype IN ('c', 'f', 'n')
              AND conrelid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%(tables)s::text[]) AS name)""",
        tables=_tables(),
    )
    names, existing = {row.name for row in found}, _existing(case)
    editor = connections[case.database].schema_editor()
    for model in _models():
        for one in model._meta.constraints:  # noqa: SLF001
            table = model._meta.db_table  # noqa: SLF001
            if isinstance(one, models.CheckConstraint) and one.name not in names and table in existing:
                command = str(one.create_sql(model, editor))
                yield CONSTRAINT_MISSING.seen(f"{table} has no {one.name}", command=f"{command};".replace('"', ""))
    for row in found:
        if not row.is_valid:
            yield NOT_VALID.seen(f"{row.name} on {row.table} is NOT VALID", table=row.table, name=row.name)


OPTIONS_LOST = Trouble(
    "dhara.D043", Severity.WARNING,
    "A table has lost its storage settings, or has lazier ones",
    "With room on each page a claim's new version of a row stays beside the old one; with an early vacuum dead rows "
    "stay few. Without them the table grows and claims slow down.",
    "ALTER TABLE {table} SET ({wanted});",
)  # fmt: skip
TABLE_AUTOVACUUM = Trouble(
    "dhara.D044", Severity.ERROR,
    "Autovacuum is off for a table of ours",
    "Each task leaves at least two dead rows. Nothing removes them, so claims read past more of them each hour.",
    "ALTER TABLE {table} RESET (autovacuum_enabled);",
)  # fmt: skip
#: What migration 0001 sets; a smaller number is as good.
STORAGE: dict[str, dict[str, float]] = {
    "dhara_task": {
        "fillfactor": 60, "autovacuum_vacuum_scale_factor": 0.02, "autovacuum_vacuum_threshold": 1000,
        "autovacuum_vacuum_insert_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05,
        "autovacuum_analyze_threshold": 1000, "autovacuum_vacuum_cost_delay": 1,
    },
    "dhara_worker": {"fillfactor": 50},
}  # fmt: skip


def storage(case: Case) -> Iterator[Finding]:
    found = case.rows(
        """
        SELECT relname AS table, option_name AS name, option_value AS value
        FROM pg_class LEFT JOIN LATERAL pg_options_to_table(reloptions) ON true
        WHERE oid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%(tables)s::text[]) AS name)""",
        tables=_tables(),
    )
    has = {(row.table, row.name): row.value for row in found}
    for table in sorted({row.table for row in found}):
        if has.get((table, "autovacuum_enabled"), "true").lower() in ("false", "off", "no", "0"):
            yield TABLE_AUTOVACUUM.seen(f"autovacuum_enabled is off for {table}", table=table)
        wanted = STORAGE.get(table, {})
        lost = {name: value for name, value in wanted.items() if float(has.get((table, name)) or "inf") > value}
        if lost:
            what = listed([f"{name} is {has.get((table, name)) or 'not set'}" for name in lost])
            settings = ", ".join(f"{name} = {value}" for name, value in lost.items())
            yield OPTIONS_LOST.seen(f"{table}: {what}", table=table, wanted=settings)


UNLOGGED = Trouble(
    "dhara.D045", Severity.ERROR,
    "A table of ours is UNLOGGED",
    "PostgreSQL empties it after a crash, and standbys do not have it.",
    "ALTER TABLE {table} SET LOGGED;",
)  # fmt: skip
ROW_SECURITY = Trouble(
    "dhara.D046", Severity.ERROR,
    "Row security hides rows from this role",
    "A policy, or the lack of one, decides which tasks this role sees: workers claim nothing, and say nothing.",
    "ALTER TABLE {table} DISABLE ROW LEVEL SECURITY; or connect as the owner of the table.",
)  # fmt: skip
NO_RIGHTS = Trouble(
    "dhara.D047", Severity.ERROR,
    "This role may not work on a table of ours",
    "Statements fail with a permission error: enqueues in the site, claims in workers.",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role};",
)  # fmt: skip
REFERENCED = Trouble(
    "dhara.D048", Severity.WARNING,
    "A foreign key refers to the table of tasks",
    "Every row with it locks its task, and a finished task that is referred to cannot be pruned: each pruning fails.",
    "ALTER TABLE {table} DROP CONSTRAINT {name}; in Django: models.UUIDField instead of a ForeignKey.",
)  # fmt: skip
TRIGGER = Trouble(
    "dhara.D049", Severity.INFO,
    "The table of tasks has a trigger",
    "It runs at every change of a task that it is made for, within the claim or the settle of up to 500 tasks.",
    "DROP TRIGGER {name} ON {table}; unless you need it. Signals of django_dhara cost less.",
)  # fmt: skip
_TABLES = """
SELECT relname AS table, relpersistence = 'u' AS is_unlogged, row_security_active(oid) AS hides,
       has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
           AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE') AS may,
       quote_ident(current_user) AS role
FROM pg_class WHERE oid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%(tables)s::text[]) AS name)
ORDER BY relname
"""


def tables(case: Case) -> Iterator[Finding]:
    for row in case.rows(_TABLES, tables=_tables()):
        if row.is_unlogged:
            yield UNLOGGED.seen(f"{row.table} is UNLOGGED", table=row.table)
        if row.hides:
            yield ROW_SECURITY.seen(f"row security is on for {row.table} and holds for {row.role}", table=row.table)
        if not row.may:
            yield NO_RIGHTS.seen(f"{row.role} may not read and write {row.table}", table=row.table, role=row.role)


def attachments(case: Case) -> Iterator[Finding]:
    """What others have tied to the table of tasks."""
    keys = "SELECT conname AS name, conrelid::regclass::text AS table FROM pg_constraint WHERE contype = 'f'"
    for row in case.rows(f"{keys} AND confrelid = to_regclass('dhara_task') AND confdeltype IN ('a', 'r')"):
        yield REFERENCED.seen(f"{row.name} of {row.table}", table=row.table, name=row.name)
    for row in case.rows("""
        SELECT tgname AS name, tgrelid::regclass::text AS table FROM pg_trigger
        WHERE tgrelid = to_regclass('dhara_task') AND NOT tgisinternal AND tgenabled <> 'D'"""):
        yield TRIGGER.seen(f"{row.name} on {row.table}", table=row.table, name=row.name)


def _existing(case: Case) -> set[str]:
    found = case.rows("SELECT name FROM unnest(%(tables)s::text[]) AS name "
                      "WHERE to_regclass(quote_ident(name)) IS NOT NULL", tables=_tables())  # fmt: skip
    return {row.name for row in found}


def _models() -> list[Any]:
    return [model for model in apps.get_app_config("dhara").get_models() if model._meta.managed]  # noqa: SLF001


def _tables() -> list[str]:
    return [model._meta.db_table for model in _models()]  # noqa: SLF001
