"""The server: its version, settings that hurt a queue, connections, and what stands between it and us."""

from __future__ import annotations

import select
from collections.abc import Collection, Iterator
from datetime import date
from time import monotonic, time
from typing import Any

import psycopg
from django.db import connections

from django_dhara import registry
from django_dhara.doctor.case import BackendCase, Case
from django_dhara.doctor.finding import Finding, Severity, Trouble, span
from django_dhara.wakeup import Listener
from django_dhara.worker.session import Busy, Disconnected, Session

#: The day after which PostgreSQL makes no more fixes for a version, from postgresql.org/support/versioning.
END_OF_LIFE = {15: date(2027, 11, 11), 16: date(2028, 11, 9), 17: date(2029, 11, 8), 18: date(2030, 11, 14)}

MAY_NOT_LOOK = Trouble(
    "dhara.D003", Severity.INFO,
    "The role may not see what other roles do",
    "Who holds a snapshot, a lock or the notification queue is hidden from it, so these examinations may miss "
    "somebody.",
    "GRANT pg_read_all_stats TO {role};",
)  # fmt: skip


def role_sees_all(case: Case) -> Iterator[Finding]:
    row = case.row("""
        SELECT current_user AS role, quote_ident(current_user) AS quoted,
               pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS may""")
    if not row.may:
        yield MAY_NOT_LOOK.seen(f"{row.role} is no member of pg_read_all_stats", role=row.quoted)


TOO_OLD = Trouble(
    "dhara.D010", Severity.ERROR,
    "The server is older than any version that is tested",
    "django_dhara is tested on PostgreSQL 15 and later; on older ones nothing is known.",
    "Upgrade the server to a version between 15 and 18.",
)  # fmt: skip
END_OF_LIFE_PASSED = Trouble(
    "dhara.D011", Severity.WARNING,
    "The server's version is no longer maintained",
    "Faults that lose or leak data are no longer repaired in it.",
    "Upgrade the server with pg_upgrade, or as its provider does it.",
)  # fmt: skip


def version(case: Case) -> Iterator[Finding]:
    row = case.row("""SELECT current_setting('server_version') AS text, current_date AS today,
                             current_setting('server_version_num')::int / 10000 AS major""")
    ends = END_OF_LIFE.get(row.major)
    if row.major < min(END_OF_LIFE):
        yield TOO_OLD.seen(f"PostgreSQL {row.text}", version=row.text)
    elif ends and (ends - row.today).days < case.limits.end_of_life_days:
        yield END_OF_LIFE_PASSED.seen(f"PostgreSQL {row.text} is maintained until {ends}", version=row.text)


NOT_DURABLE = Trouble(
    "dhara.D012", Severity.ERROR,
    "A crash of the server may corrupt the database",
    "With fsync or full_page_writes off, what is on the disk after a crash may be neither old nor new.",
    "ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
)  # fmt: skip
ASYNCHRONOUS = Trouble(
    "dhara.D013", Severity.WARNING,
    "A crash of the server may lose tasks that were enqueued",
    "With synchronous_commit off a commit is answered before it is on the disk: the last half second is gone.",
    "{undo}",
)  # fmt: skip


def durability(case: Case) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if case.settings[name] == "off":
            yield NOT_DURABLE.seen(f"{name} is off", name=name)
    if case.settings["synchronous_commit"] == "off":
        yield ASYNCHRONOUS.seen("synchronous_commit is off", undo=undo(case, "synchronous_commit"))


AUTOVACUUM_OFF = Trouble(
    "dhara.D014", Severity.ERROR,
    "Autovacuum is off on the server",
    "Each task leaves at least two dead rows. Nothing removes them, so claims read past more of them each hour.",
    "{undo}",
)  # fmt: skip


def autovacuum(case: Case) -> Iterator[Finding]:
    for name, why in (("autovacuum", ""), ("track_counts", ", without which autovacuum never starts")):
        if case.settings[name] == "off":
            yield AUTOVACUUM_OFF.seen(f"{name} is off{why}", name=name, undo=undo(case, name))


ISOLATION = Trouble(
    "dhara.D015", Severity.WARNING,
    "Transactions are above READ COMMITTED by default",
    "Cancels, retries and keyed enqueues that meet another session fail with a serialization error instead of waiting, "
    "and functions with atomic=True cannot be settled once their lease was renewed.",
    "{undo}",
)  # fmt: skip


def isolation(case: Case) -> Iterator[Finding]:
    level = case.settings["default_transaction_isolation"]
    if level in ("repeatable read", "serializable"):
        undone = undo(case, "default_transaction_isolation")
        yield ISOLATION.seen(f"default_transaction_isolation is '{level}'", undo=undone)


SHORT_TIMEOUT = Trouble(
    "dhara.D016", Severity.WARNING,
    "A timeout of the server ends statements that only had to wait",
    "An enqueue waits for the flush of its commit, a settle and a cancel wait for a row that another session has. With "
    "so little time they fail under load, and are tried again, which adds to the load.",
    "{undo}",
)  # fmt: skip


def timeouts(case: Case) -> Iterator[Finding]:
    for name in ("statement_timeout", "lock_timeout"):
        value = float(case.settings[name])
        if 0 < value < case.limits.timeout_ms:
            yield SHORT_TIMEOUT.seen(f"{name} is {value:g} ms", name=name, undo=undo(case, name))


ENDS_SESSIONS = Trouble(
    "dhara.D017", Severity.WARNING,
    "A timeout of the server ends runs or wake-ups",
    "transaction_timeout and idle_in_transaction_session_timeout end the transaction of a function with atomic=True "
    "whose own timeout is longer; idle_session_timeout ends listening sessions, and what was announced meanwhile is "
    "found by polling.",
    "{undo}",
)  # fmt: skip


def session_timeouts(case: Case) -> Iterator[Finding]:
    aliases = {backend.alias for backend in case.backends}
    longest = max(_atomic_seconds(aliases), default=0.0)
    for name in ("transaction_timeout", "idle_in_transaction_session_timeout"):  # the first since PostgreSQL 17
        value = float(case.settings.get(name, 0)) / 1000
        if 0 < value < longest:
            what = f"{name} is {span(value)}, and a function with atomic=True may take {span(longest)}"
            yield ENDS_SESSIONS.seen(what, name=name, undo=undo(case, name))
    value = float(case.settings["idle_session_timeout"]) / 1000
    if value and not case.session.is_pooled and any(backend.settings.notify for backend in case.backends):
        what = f"idle_session_timeout is {span(value)}"
        yield ENDS_SESSIONS.seen(what, name="idle_session_timeout", undo=undo(case, "idle_session_timeout"))


def _atomic_seconds(aliases: Collection[str]) -> Iterator[float]:
    """What functions with atomic=True say that they may take; of the others nothing is known."""
    for path in registry.paths():
        task: Any = registry.known(path)
        if getattr(task, "atomic", False) and task.backend in aliases:
            yield task.timeout or 0.0


NO_IDLE_LIMIT = Trouble(
    "dhara.D018", Severity.INFO,
    "A forgotten transaction may stay open for ever",
    "A session that is idle in a transaction keeps its locks, and vacuum from removing dead rows, until it ends.",
    "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '10min';",
)  # fmt: skip
#: A day: nobody waits so long on purpose.
_LONGEST_IDLE_MS = 86_400_000


def idle_limit(case: Case) -> Iterator[Finding]:
    value = float(case.settings["idle_in_transaction_session_timeout"])
    if value == 0 or value > _LONGEST_IDLE_MS:
        name = case.row("SELECT quote_ident(current_database()) AS name").name
        limit = span(value / 1000) if value else "0, which is without limit"
        yield NO_IDLE_LIMIT.seen(f"idle_in_transaction_session_timeout is {limit}", database=name)


FEW_CONNECTIONS = Trouble(
    "dhara.D019", Severity.WARNING,
    "The workers may open more connections than the server has",
    "Each worker may open one for each of its threads, and three of its own. Those that get none wait and log, their "
    "functions fail, and the site gets none either.",
    "Run fewer workers or a smaller --concurrency, put a pooler in between, or: "
    "ALTER SYSTEM SET max_connections = {wanted}; and restart the server.",
)  # fmt: skip
CONNECTIONS_USED = Trouble(
    "dhara.D020", Severity.ERROR,
    "Hardly a connection is left",
    "Whoever comes next is refused: enqueues fail in the site, and functions in workers.",
    "SELECT usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC; "
    "then end what is idle, or put a pooler in between.",
)  # fmt: skip
_CONNECTIONS = """
WITH session AS (SELECT usename, datname FROM pg_stat_activity WHERE backend_type = 'client backend')
SELECT 'max_connections' AS name,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true), '0')::int AS most,
       (SELECT count(*) FROM session)::int AS used
UNION ALL
SELECT 'the connection limit of role ' || rolname, rolconnlimit,
       (SELECT count(*) FROM session WHERE usename = current_user)::int FROM pg_roles
WHERE rolname = current_user AND rolconnlimit >= 0
UNION ALL
SELECT 'the connection limit of database ' || datname, datconnlimit,
       (SELECT count(*) FROM session WHERE session.datname = current_database())::int FROM pg_database
WHERE datname = current_database() AND datconnlimit >= 0
"""
_WANTED_BY_WORKERS = """
SELECT coalesce(sum(concurrency + 3), 0)::int AS wanted, count(*)::int AS workers FROM dhara_worker
WHERE stopped_at IS NULL AND heartbeat_at > statement_timestamp() - make_interval(secs => lease_seconds)
"""


def connection_count(case: Case) -> Iterator[Finding]:
    if case.session.is_pooled:
        return  # who connects to the server is the pooler
    for row in case.rows(_CONNECTIONS):
        if row.used >= row.most * case.limits.connection_share:
            what = f"{row.used} of {row.most} connections are used ({row.name})"
            yield CONNECTIONS_USED.seen(what, used=row.used, most=row.most)
        if case.has_table:
            workers = case.row(_WANTED_BY_WORKERS)
            if workers.wanted > row.most:
                what = f"{workers.workers} workers may open {workers.wanted} connections, of {row.most} ({row.name})"
                yield FEW_CONNECTIONS.seen(what, wanted=workers.wanted + 20, most=row.most)


POOLED = Trouble(
    "dhara.D021", Severity.INFO,
    "A pooler stands before the server",
    "In transaction mode workers do without prepared statements and without timeouts on the server, and hear no "
    "wake-ups; dhara_migrate has to go past it.",
    "See docs/how-to/deploy/pgbouncer.md. Django needs DISABLE_SERVER_SIDE_CURSORS = True on this alias.",
)  # fmt: skip


def pooler(case: Case) -> Iterator[Finding]:
    if case.session.is_pooled:
        yield POOLED.seen("the server's process is another one than the connection was told")


DEAF = Trouble(
    "dhara.D022", Severity.WARNING,
    "LISTEN hears nothing",
    "Workers are not woken by an enqueue: a new task waits until they look, POLL_SECONDS later at most.",
    "Set LISTEN_DSN in OPTIONS of TASKS['{backend}'] to a connection string that goes past the pooler, or NOTIFY = "
    "False so that nobody notifies in vain.",
)  # fmt: skip
NO_EARS = Trouble(
    "dhara.D023", Severity.WARNING,
    "The listening connection cannot be opened",
    "Workers try again for ever and are not woken meanwhile: a new task waits until they look.",
    "Correct LISTEN_DSN in OPTIONS of TASKS['{backend}'], or empty it.",
)  # fmt: skip


def wake_ups(case: BackendCase) -> Iterator[Finding]:
    """The self-test that workers make: a token, sent from another session, must come back."""
    options = case.options
    if not options.notify:
        return
    ears = Session(options.database, "dhara doctor", deadline_seconds=5.0, dsn=options.listen_dsn)
    try:
        ears.open()
        if ears.shares_sessions(case.case.session) or not _hears(ears, case.case.session, case.alias):
            yield DEAF.seen("a notification that was sent to ourselves did not arrive", backend=case.alias)
    except (Disconnected, Busy, psycopg.Error) as error:
        yield NO_EARS.seen(" ".join(str(error).split()), backend=case.alias)
    finally:
        ears.close()


def _hears(ears: Session, other: Session, alias: str) -> bool:
    listener = Listener(ears.raw, alias)
    listener.test(other)
    while listener.hears is None and not listener.overdue():
        select.select([ears.raw.fileno()], [], [], 0.1)
        listener.heard()
    return bool(listener.hears)


NOTIFY_QUEUE = Trouble(
    "dhara.D024", Severity.WARNING,
    "The notification queue fills up",
    "A session that listens and stays in a transaction keeps all notifications. When the queue is full every commit "
    "that notifies fails, those of enqueues included.",
    "SELECT pid, usename, application_name, xact_start FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' "
    "ORDER BY xact_start; then SELECT pg_terminate_backend(the pid of the oldest that listens);",
)  # fmt: skip


def notification_queue(case: Case) -> Iterator[Finding]:
    usage = case.row("SELECT pg_notification_queue_usage() AS usage").usage
    if usage > case.limits.notify_share:
        yield NOTIFY_QUEUE.seen(f"{usage:.0%} of the notification queue is used", usage=usage)


SKEW = Trouble(
    "dhara.D025", Severity.WARNING,
    "The clock of this machine is not the server's",
    "Due times, leases and retries go by the server's clock alone. But a run_after that your code computes from its "
    "own clock is off by this much, and so is every line of the log beside the times in the admin.",
    "Let both follow NTP: `chronyc tracking` or `timedatectl timesync-status` on each of them.",
)  # fmt: skip


def clock(case: Case) -> Iterator[Finding]:
    sent, since = time(), monotonic()
    server = case.row("SELECT extract(epoch FROM clock_timestamp())::float8 AS now").now
    took = monotonic() - since
    skew = server - (sent + took / 2)
    if abs(skew) - took > case.limits.skew_seconds:
        way = "behind" if skew > 0 else "ahead of"
        yield SKEW.seen(f"this machine is {span(abs(skew))} {way} the server", seconds=skew)


def undo(case: Case, name: str) -> str:
    """The command that takes a setting back where it was made: in Django, for a role, for a database, or at large."""
    if name in str(connections.settings[case.database].get("OPTIONS", {}).get("options", "")):
        return f"Take {name} out of DATABASES['{case.database}']['OPTIONS']['options']."
    made = case.rows(
        """
        SELECT CASE WHEN setrole = 0 THEN '' ELSE ' ROLE ' || quote_ident(pg_get_userbyid(setrole)) END AS role,
               CASE WHEN setdatabase = 0 THEN '' ELSE ' DATABASE ' || quote_ident(current_database()) END AS database
        FROM pg_db_role_setting, unnest(setconfig) AS entry
        WHERE split_part(entry, '=', 1) = %(name)s
              AND (setdatabase = 0 OR setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
              AND (setrole = 0 OR pg_get_userbyid(setrole) = current_user)
        ORDER BY setrole DESC, setdatabase DESC""",
        name=name,
    )
    commands = [
        f"ALTER{row.role}{' IN' if row.role and row.database else ''}{row.database} RESET {name};" for row in made
    ]
    return " ".join(commands) or f"ALTER SYSTEM RESET {name}; SELECT pg_reload_conf();"
