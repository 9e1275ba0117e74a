"""What makes the server slow or full: a held snapshot, slow writes, checkpoints, a deaf listener, a full disk."""

import os
from contextlib import closing, suppress

import psycopg

from tests.chaos.faults.arena import fault
from tests.workers.harness import until

#: Bytes of one file of PostgreSQL's log of writes.
SEGMENT = 16 * 1024 * 1024


@fault("hold snapshot")
def hold_snapshot(arena, draw):
    """A transaction that reads, for some seconds: dead rows and index entries stay."""
    dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'dhara_task'"
    with arena.during("hold snapshot"), arena.server.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM dhara_task")
        before = arena.server.value(dead)
        arena.pause(draw.uniform(3, 8) * arena.plan.lease)
        grown = arena.server.value(dead) - before
    if grown > 0:
        arena.witness("F13", dead=grown)


@fault("prepared transaction")
def prepared_transaction(arena, draw):
    """Half of a commit in two phases, whose other half comes late: what is dead since then stays."""
    held = "SELECT age(transaction) FROM pg_prepared_xacts WHERE gid = 'chaos'"
    with arena.during("prepared transaction"):
        try:
            with arena.server.connect() as connection:
                connection.execute("BEGIN")
                connection.execute("SELECT pg_current_xact_id()")
                connection.execute("PREPARE TRANSACTION 'chaos'")
            arena.pause(draw.uniform(3, 8) * arena.plan.lease)
            age = arena.server.value(held)
        finally:
            _again(lambda: arena.server.ask("ROLLBACK PREPARED 'chaos'"))
    if age > 0:
        arena.witness("F13p", age=age)


@fault("unused slot")
def unused_slot(arena, draw):
    """A replication slot that nobody reads: the log of writes stays, up to the limit that the server has."""
    kept = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), wal_status FROM pg_replication_slots"
    with arena.during("unused slot"):
        try:
            arena.server.ask("SELECT pg_create_physical_replication_slot('chaos', true)")
            arena.pause(draw.uniform(3, 8) * arena.plan.lease)
            [[held, status]] = arena.server.ask(kept)
        finally:
            _again(lambda: arena.server.ask("SELECT pg_drop_replication_slot('chaos')"))
    if status == "lost" or held > SEGMENT:
        arena.witness("F13s", bytes=held, status=status)


def _again(call):
    """What must be put right is, as soon as the server answers: another fault may have taken it down."""

    def succeeds():
        with suppress(psycopg.OperationalError):
            with suppress(psycopg.errors.UndefinedObject):  # it never came to that
                call()
            return True

    until(succeeds, 90)


@fault("slow writes")
def slow_writes(arena, draw):
    """A trigger that sleeps at one write of a hundred, and checkpoints without end."""
    slept = "SELECT last_value FROM chaos_slept"
    with arena.during("slow writes"):
        before = arena.server.value(slept)
        arena.server.ask("ALTER TABLE dhara_task ENABLE TRIGGER chaos_slow")
        for _ in range(draw.randint(2, 6)):
            arena.server.ask("CHECKPOINT")
            arena.pause(draw.uniform(0.3, 1.0))
        arena.server.ask("ALTER TABLE dhara_task DISABLE TRIGGER chaos_slow")
    if (count := arena.server.value(slept) - before) > 0:
        arena.witness("F20", slept=count)


@fault("deaf listener")
def deaf_listener(arena, draw):
    """A session that listens and then stays in a transaction: the queue of notifications cannot be emptied."""
    with arena.during("deaf listener"), closing(arena.server.connect()) as connection:
        connection.execute("LISTEN dhara_default")
        connection.execute("BEGIN")
        connection.execute("SELECT 1")
        for _ in range(20):  # what others say to each other takes pages too, and usage is counted in pages
            arena.server.ask("SELECT pg_notify('chaos', repeat('x', 7000))")
        arena.pause(draw.uniform(2, 4) * arena.plan.lease)
        if (usage := arena.server.value("SELECT pg_notification_queue_usage()")) > 0:
            arena.witness("F15", usage=usage)


@fault("fill disk")
def fill_disk(arena, draw):
    """No space is left where the cluster lies; after some seconds there is, and the server is started if it gave up."""
    before = arena.server.log_lines("No space left on device")
    filler = arena.server.folder / "filler"
    with arena.during("fill disk", down=True):
        _fill(filler)
        arena.pause(draw.uniform(1, 3) * arena.plan.lease)
        filler.unlink(missing_ok=True)
        until(lambda: _is_up(arena.server), 60)
    if (met := arena.server.log_lines("No space left on device") - before) > 0:
        arena.witness("F9", lines=met)


def _fill(path):
    """With pieces that get smaller, to the last page."""
    with path.open("wb") as file:
        for size in (16_000_000, 1_000_000, 4096):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)


def _is_up(server):
    """It may be recovering by itself, or have given that up."""
    try:
        return server.value("SELECT 1")
    except (psycopg.Error, OSError):
        with suppress(Exception):
            server.start()
        return False
