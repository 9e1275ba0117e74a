"""Functions that misuse the child process in which they run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from django.db import connection, transaction

from django_dhara.tasks import task
from tests.app.models import Note
from tests.app.tasks import mark


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
