"""Functions that misuse the child process in which they run."""

import asyncio
import decimal
import locale
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from django.db import connection, connections, transaction
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from django_dhara.tasks import task
from tests.app.models import Note
from tests.app.tasks import mark


def _leave_raw():
    """By a cursor of psycopg's own, which Django's wrappers do not see."""
    connection.ensure_connection()
    connection.connection.execute("SET application_name TO 'left by a function'")


def _leave_by_function():
    """The statement does not look as if it altered anything."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_temp_or_not FROM leave_something() AS pg_temp_or_not")


def _leave_rows_as_dicts():
    connection.ensure_connection()
    connection.connection.row_factory = dict_row


def _leave_read_only():
    connection.ensure_connection()
    connection.connection.read_only = True


def _leave_isolation():
    connection.ensure_connection()
    connection.connection.isolation_level = IsolationLevel.SERIALIZABLE


def _leave_closed():
    Note.objects.count()
    connections.close_all()


def _leave_closed_raw():
    connection.ensure_connection()
    connection.connection.close()


def _leave_on_commit():
    """What waits for a commit that never comes."""
    transaction.atomic().__enter__()
    transaction.on_commit(lambda: mark("never"))
    Note.objects.create(text="never")


def _leave_lock():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")


def _leave_role():
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE pg_monitor")


def _leave_timeout():
    socket.setdefaulttimeout(0.001)


def _leave_place():
    locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C")
    os.chdir("/")


def _leave_decimals():
    decimal.getcontext().prec = 2


LEAVES = {name.removeprefix("_leave_"): value for name, value in globals().items() if name.startswith("_leave_")}


@task
def leave(what):
    mark(f"leave {what}")
    LEAVES[what]()


@task
def look_closely():
    """Everything that a run may have left for this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('application_name'), current_setting('search_path'), current_user::text,"
            " current_setting('transaction_isolation'), current_setting('transaction_read_only'),"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
        )
        found = list(cursor.fetchone())
    return [*found, connection.get_autocommit(), connection.in_atomic_block, len(connection.run_on_commit),
            decimal.getcontext().prec]  # fmt: skip


@task
def look_at_process():
    return [locale.setlocale(locale.LC_ALL), str(Path.cwd())]


@task
def leave_lite(text):
    """A database of another make, with a transaction left open on it."""
    lite = connections["lite"]
    with lite.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS note (text text)")
        cursor.execute("SELECT count(*) FROM note")
        [before] = cursor.fetchone()
        transaction.set_autocommit(False, using="lite")
        cursor.execute("INSERT INTO note VALUES (%s)", [text])
    return before


@task(takes_context=True)
def chatter(context, name, attribute, size=10):
    """Reports its progress all the time, and ends when the context says so."""
    mark(name)
    with suppress(asyncio.CancelledError):
        while not getattr(context, attribute):
            context.progress("x" * size)
            time.sleep(0.002)
    mark(f"{name} was told")


@task(takes_context=True)
def chatter_deaf(context, name):
    """Reports its progress all the time, and does not let itself be stopped."""
    mark(name)
    while True:
        with suppress(BaseException):
            context.progress(1)


@task
def leave_signals(name):
    """Takes the process' signals and an alarm for itself, and leaves them."""
    mark(name)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.alarm(1)


@task
def garble(name):
    """Writes into every socket that it can find."""
    mark(name)
    _write_into_sockets(b"\xff" * 64)
    time.sleep(0.5)


@task
def garble_nicely(name):
    """Writes what looks like a message, and is none."""
    mark(name)
    body = b"cdjango_dhara.gone\nNothing\n."
    _write_into_sockets(len(body).to_bytes(4, "big") + body)
    time.sleep(0.5)


def _write_into_sockets(data):
    connection.close()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(link.readlink()).startswith("socket:"):
                os.write(int(link.name), data)


@task
def with_helper(name, path):
    """Waits for a program that it has started."""
    mark(name)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(path).write_text(str(process.pid))
    process.wait()


@task(atomic=True, max_attempts=1)
def die_after_commit(name):
    Note.objects.create(text=name)
    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))


@task
def schema(name):
    mark(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        return cursor.fetchone()[0]


@task
def change_schema():
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO pg_catalog")


@task
def close_everything():
    """As a daemon's start would."""
    os.closerange(3, 200)


@task(atomic=True, takes_context=True)
def effect(context, name, seconds, trouble=""):
    """Writes one row, and takes its time; `trouble` comes in the first attempt, after the write."""
    Note.objects.create(text=name)
    if trouble == "query" and context.attempt == 1:
        connection.cursor().execute("SELECT 1/0")
    if trouble == "close" and context.attempt == 1:
        connection.close()
    if trouble == "slow query" and context.attempt == 1:
        connection.cursor().execute("SELECT pg_sleep(2)")
    time.sleep(seconds)
    if trouble == "raise" and context.attempt == 1:
        raise ValueError(name)
    if trouble == "exit" and context.attempt == 1:
        sys.exit(3)


@task
def wait_offline(path, name, seconds):
    """Writes its beginning into a file, and asks nothing of the database."""
    with Path(path).open("a") as file:
        file.write(f"{name}\n")
    time.sleep(seconds)


@task
def hoard(name):
    """Takes all the memory that it gets."""
    mark(name)
    hoarded = []
    while True:
        hoarded.append(bytearray(50_000_000))


@task
def kill_parent(name):
    """Kills the process that has started this one."""
    mark(name)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10)


@task
def kill_group(name):
    """Kills everything in its session."""
    mark(name)
    os.killpg(0, signal.SIGKILL)


@task
async def aleave_timeout():
    """In the parent."""
    socket.setdefaulttimeout(0.001)
