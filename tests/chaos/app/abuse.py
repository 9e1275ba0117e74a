"""Functions that abuse their worker: what they raise, what they return, what they leave behind, how they kill it."""

import asyncio
import os
import signal
import socket

from django.db import connection, transaction
from django.utils import translation

from django_dhara.tasks import task
from tests.chaos.app import recording
from tests.chaos.app.recording import recorded


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


RAISES = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base": lambda: BaseException("bare"),
    "stop iteration": StopIteration,
    "unspeakable": Unspeakable,
    "nul": lambda: ValueError("a\x00b\ud800"),
    "huge error": lambda: ValueError("x" * 3_000_000),
}
RETURNS = {
    "surrogate": lambda: "\ud800",
    "nan": lambda: float("nan"),
    "object": object,
    "huge": lambda: "x" * 3_000_000,
    "huge number": lambda: 10**5000,
    "bytes": lambda: b"\xff",
}


def _autocommit_off():
    transaction.set_autocommit(False)
    _ask("SELECT 1")


def _ask(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _shut(descriptor):
    """Not `os.close`: its number would be given to another thread's connection, and two sessions share a socket."""
    with socket.socket(fileno=os.dup(descriptor)) as same:
        same.shutdown(socket.SHUT_RDWR)


LEAVES = {
    "autocommit off": _autocommit_off,
    "transaction": lambda: _ask("BEGIN"),
    "atomic block": lambda: transaction.atomic().__enter__(),
    "search path": lambda: _ask("SET search_path TO elsewhere"),
    "closed socket": lambda: (_ask("SELECT 1"), _shut(connection.connection.fileno())),
    "own session ended": lambda: _ask("SELECT pg_terminate_backend(pg_backend_pid())"),
    "language": lambda: translation.activate("fr"),
}
ABUSES = [*RAISES, *RETURNS, *LEAVES]


@task(takes_context=True, max_attempts=2)
def abuses(context, uid, how):
    recording.ledger.write("witness", code="F18", how=how)
    with recorded(context, uid):
        if how in RAISES:
            error = RAISES[how]()
            raise error
        if how in LEAVES:
            LEAVES[how]()
    return RETURNS[how]() if how in RETURNS else how


@task(takes_context=True, max_attempts=2)
def kills(context, uid, how):
    """Its process, each time: DEAD after its budget."""
    with recorded(context, uid):
        recording.ledger.write("witness", code="F18", how=how)
        recording.ledger.write("fault", kind="kill by poison", pids=[os.getpid()])
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)


#: Payloads of rows that some other program has written.
ODD_PAYLOADS = ("[]", '"text"', "{}", '{"args": {}, "kwargs": []}', '{"args": [1, 2, 3, 4, 5], "kwargs": {}}', "null")
