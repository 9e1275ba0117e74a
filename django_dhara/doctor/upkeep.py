"""What time does to the tables: dead rows, large indexes, old transaction ids, and who keeps vacuum from its work."""

from __future__ import annotations

from collections.abc import Iterator

from django_dhara.doctor.case import Case
from django_dhara.doctor.finding import Finding, Severity, Trouble, size, span

DEAD_ROWS = Trouble(
    "dhara.D050", Severity.WARNING,
    "Autovacuum does not keep up",
    "Claims walk over the index entries of dead rows, and the table grows. Either somebody holds an old snapshot "
    "(dhara.D060 to dhara.D063), or the workers of autovacuum have no time.",
    "VACUUM (ANALYZE, VERBOSE) {table}; it says how many dead rows it could not remove, and why. If it could remove "
    "them: ALTER SYSTEM SET autovacuum_max_workers = 6; ALTER SYSTEM SET autovacuum_vacuum_cost_limit = 2000; and "
    "restart the server.",
)  # fmt: skip
_DEAD = """
WITH option AS (
    SELECT oid, coalesce(max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold'),
                         current_setting('autovacuum_vacuum_threshold'))::float8 AS threshold,
           coalesce(max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor'),
                    current_setting('autovacuum_vacuum_scale_factor'))::float8 AS factor,
           coalesce(max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_insert_threshold'),
                    current_setting('autovacuum_vacuum_insert_threshold'))::float8 AS insert_threshold,
           coalesce(max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_insert_scale_factor'),
                    current_setting('autovacuum_vacuum_insert_scale_factor'))::float8 AS insert_factor
    FROM pg_class LEFT JOIN LATERAL pg_options_to_table(reloptions) ON true
    WHERE relname IN ('dhara_task', 'dhara_attempt', 'dhara_minute', 'dhara_worker') AND relkind = 'r' GROUP BY oid
)
SELECT relname AS table, n_live_tup AS live, n_dead_tup AS dead, n_ins_since_vacuum AS inserted,
       threshold + factor * greatest(reltuples, 0) AS due,
       CASE WHEN insert_threshold < 0 THEN 'Infinity'
            ELSE insert_threshold + insert_factor * greatest(reltuples, 0) END AS insert_due,
       extract(epoch FROM statement_timestamp() - greatest(last_vacuum, last_autovacuum))::float8 AS ago
FROM option JOIN pg_stat_user_tables ON relid = oid JOIN pg_class USING (oid, relname)
WHERE pg_table_is_visible(oid) ORDER BY 1
"""


def dead_rows(case: Case) -> Iterator[Finding]:
    factor = case.limits.overdue_vacuums
    for row in case.rows(_DEAD):
        ago = "never" if row.ago is None else f"{span(row.ago)} ago"
        if row.dead > factor * row.due:
            what = f"{row.table} has {row.dead:,} dead rows beside {row.live:,} live ones; last vacuum: {ago}"
            yield DEAD_ROWS.seen(what, table=row.table, dead=row.dead, live=row.live)
        elif row.inserted > factor * row.insert_due:
            what = f"{row.table} got {row.inserted:,} rows since its last vacuum: {ago}"
            yield DEAD_ROWS.seen(what, table=row.table, inserted=row.inserted)


LARGE_INDEX = Trouble(
    "dhara.D051", Severity.INFO,
    "The index of ready tasks is much larger than what it holds",
    "A long backlog has left half-empty pages behind. They take memory, and a whole look of a worker reads them.",
    "REINDEX INDEX CONCURRENTLY dhara_task_ready;",
)  # fmt: skip
#: Ready tasks are counted up to this number; with more the index is not too large.
_COUNTED = 100_000


def ready_index(case: Case) -> Iterator[Finding]:
    bytes_ = case.row("SELECT coalesce(pg_relation_size(to_regclass('dhara_task_ready')), 0) AS bytes").bytes
    if bytes_ <= case.limits.small_index_bytes:
        return
    most = int(min(bytes_ / case.limits.entry_bytes, _COUNTED)) + 1
    waiting = case.row(
        "SELECT count(*) AS n FROM (SELECT 1 FROM dhara_task WHERE state = 'PENDING' AND lost = 0 LIMIT %(most)s) AS t",
        most=most,
    ).n
    if waiting < most:
        yield LARGE_INDEX.seen(f"{size(bytes_)} for {waiting:,} waiting tasks", bytes=bytes_, waiting=waiting)


OLD_IDS = Trouble(
    "dhara.D052", Severity.ERROR,
    "A table's transaction ids are about to run out",
    "Vacuum has not been able to freeze its old rows. At 2.1 billion the server takes no more writes at all.",
    "End who holds an old snapshot (dhara.D060 to dhara.D063), then VACUUM (FREEZE, VERBOSE) {table};",
)  # fmt: skip


def transaction_ids(case: Case) -> Iterator[Finding]:
    found = case.rows("""
        SELECT relname AS table, greatest(age(relfrozenxid), mxid_age(relminmxid)) AS age FROM pg_class
        WHERE relkind IN ('r', 't') AND relfrozenxid <> '0' AND pg_table_is_visible(oid) AND relname LIKE 'dhara\\_%%'
        UNION ALL
        SELECT 'the database', greatest(age(datfrozenxid), mxid_age(datminmxid)) FROM pg_database
        WHERE datname = current_database()
        ORDER BY age DESC LIMIT 1""")
    for row in found:
        if row.age > case.limits.xid_age:
            table = "" if row.table == "the database" else row.table
            yield OLD_IDS.seen(f"{row.table} is {row.age:,} transactions old", table=table, age=row.age)


SNAPSHOT = Trouble(
    "dhara.D060", Severity.WARNING,
    "A session holds an old snapshot",
    "Vacuum removes nothing that died since. Workers know how to claim beside that, but whole looks, sweeps and "
    "everything else on these tables walk over every dead row.",
    "SELECT pg_terminate_backend({pid}); if nobody needs it. Reports and dumps belong on a standby, and a session that "
    "forgets its transaction is ended by: ALTER ROLE {role} SET idle_in_transaction_session_timeout = '10min';",
)  # fmt: skip


def snapshots(case: Case) -> Iterator[Finding]:
    found = case.rows(
        """
        SELECT pid, coalesce(application_name, '') AS name, usename AS user, state, quote_ident(usename) AS role,
               extract(epoch FROM statement_timestamp() - xact_start)::float8 AS seconds,
               greatest(age(backend_xmin), age(backend_xid)) AS age
        FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
              AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
              AND xact_start < statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY xact_start LIMIT 3""",
        seconds=case.limits.held_seconds,
    )
    for row in found:
        who = f"process {row.pid} ({row.user}, {row.name or 'no application_name'}, {row.state})"
        what = f"{who} is in a transaction since {span(row.seconds)}, {row.age:,} transactions ago"
        yield SNAPSHOT.seen(what, pid=row.pid, role=row.role, seconds=row.seconds)


PREPARED = Trouble(
    "dhara.D061", Severity.WARNING,
    "A prepared transaction was forgotten",
    "It holds its snapshot and its locks over restarts, for ever: vacuum removes nothing that died since.",
    "ROLLBACK PREPARED {name}; or COMMIT PREPARED, as its transaction manager says.",
)  # fmt: skip


def prepared_transactions(case: Case) -> Iterator[Finding]:
    found = case.rows(
        """
        SELECT gid, quote_literal(gid) AS quoted, owner,
               extract(epoch FROM statement_timestamp() - prepared)::float8 AS seconds
        FROM pg_prepared_xacts
        WHERE database = current_database()
              AND prepared < statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY prepared LIMIT 3""",
        seconds=case.limits.held_seconds,
    )
    for row in found:
        yield PREPARED.seen(f"{row.gid!r} of {row.owner}, prepared {span(row.seconds)} ago", name=row.quoted)


STANDBY = Trouble(
    "dhara.D062", Severity.WARNING,
    "A standby holds an old snapshot here",
    "With hot_standby_feedback a long query there keeps vacuum from removing dead rows here.",
    "End the query on the standby {name}, or there: ALTER SYSTEM SET hot_standby_feedback = off; SELECT "
    "pg_reload_conf(); then long queries may be canceled there instead.",
)  # fmt: skip
SLOT = Trouble(
    "dhara.D063", Severity.WARNING,
    "A replication slot keeps what nobody reads",
    "It keeps WAL until the disk is full, and with an xmin it keeps vacuum from removing dead rows.",
    "SELECT pg_drop_replication_slot({quoted}); if its reader is gone. ALTER SYSTEM SET max_slot_wal_keep_size = "
    "'10GB'; bounds them all.",
)  # fmt: skip


def replication(case: Case) -> Iterator[Finding]:
    """Standbys and slots: whose xmin is old, and what keeps WAL."""
    for row in case.rows("SELECT application_name AS name, age(backend_xmin) AS age FROM pg_stat_replication"):
        if (row.age or 0) > case.limits.xmin_age:
            yield STANDBY.seen(f"{row.name} holds a snapshot of {row.age:,} transactions ago", name=row.name)
    found = case.rows("""
        SELECT slot_name AS name, quote_literal(slot_name) AS quoted, active, slot_type AS kind,
               coalesce(greatest(age(xmin), age(catalog_xmin)), 0) AS age,
               coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::float8 AS bytes
        FROM pg_replication_slots""")
    for row in found:
        if row.bytes > case.limits.slot_bytes or (not row.active and row.age > case.limits.xmin_age):
            state = "active" if row.active else "inactive"
            what = f"{row.name} ({row.kind}, {state}) keeps {size(row.bytes)} of WAL and {row.age:,} transactions"
            yield SLOT.seen(what, name=row.name, quoted=row.quoted)


LONG_WRITE = Trouble(
    "dhara.D064", Severity.WARNING,
    "A transaction that wrote tasks stays open",
    "What it enqueued is not seen. Claims skip rows that it has changed, and a cancel or a settle of one waits for it.",
    "SELECT pg_terminate_backend({pid}); if nobody needs it. Its work is rolled back.",
)  # fmt: skip
TABLE_LOCK = Trouble(
    "dhara.D065", Severity.ERROR,
    "Somebody locks a whole table of ours, or waits to",
    "Every enqueue, claim and settle waits behind it: a migration, a VACUUM FULL, a CREATE INDEX without CONCURRENTLY.",
    "SELECT pg_terminate_backend({pid}); then do it again after SET lock_timeout = '3s', or beside writers "
    "(CONCURRENTLY, pg_repack).",
)  # fmt: skip
_LOCKS = """
SELECT DISTINCT ON (pid, is_whole) pid, coalesce(application_name, '') AS name, usename AS user, mode,
       relation::regclass::text AS table, granted, mode <> ALL (%(light)s) AS is_whole,
       extract(epoch FROM statement_timestamp() - CASE WHEN granted THEN xact_start ELSE query_start END)::float8 AS age
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'relation' AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND relation IN (to_regclass('dhara_task'), to_regclass('dhara_worker'))
      AND mode <> ALL (ARRAY['AccessShareLock', 'ShareUpdateExclusiveLock'])
ORDER BY pid, is_whole, granted DESC
"""


def locks(case: Case) -> Iterator[Finding]:
    for row in case.rows(_LOCKS, light=["RowShareLock", "RowExclusiveLock"]):
        who = f"process {row.pid} ({row.user}, {row.name or 'no application_name'})"
        has = "has" if row.granted else "waits for"
        what = f"{who} {has} {row.mode} on {row.table} since {span(row.age or 0.0)}"
        if row.is_whole and (row.age or 0) > case.limits.table_lock_seconds:
            yield TABLE_LOCK.seen(what, pid=row.pid)
        elif row.granted and not row.is_whole and (row.age or 0) > case.limits.held_seconds:
            yield LONG_WRITE.seen(what, pid=row.pid)
