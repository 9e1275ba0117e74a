"""Tasks for the tests. Most leave a mark (`Effect`) when they begin, which outlives the process and counts the runs."""

import asyncio
import ctypes
import decimal
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path

import django
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.utils import timezone, translation

from django_dhara import Discard, Retry, Snooze
from django_dhara.tasks import task
from tests.app.models import Effect, Note

if django.VERSION >= (6, 0):
    from django.tasks import task as django_task
else:
    from django_tasks import task as django_task

ODD = ContextVar("odd", default="default")
SEEN = threading.local()


def mark(name):
    Effect.objects.create(task=name, worker=str(os.getpid()))


amark = sync_to_async(mark)


@django_task(queue_name="mail", priority=3)
def by_django(a):
    """Decorated as Django's documentation has it, knowing nothing of us."""
    return a


@task
def add(a, b=2):
    return a + b


@task
def count(name):
    mark(name)


@task
def fail():
    raise ValueError("the reason")


@task
def enqueue_another(name):
    count.enqueue(name)


@task
async def aenqueue_another(name):
    await count.aenqueue(name)


@task
def fail_with(secret):
    """What a reporter of errors must not send is an argument, and a local variable."""
    hidden = f"{secret} again"
    raise LookupError(len(hidden))


@task
def warn_in_log():
    logging.getLogger("shop").warning("from a\nfunction")


# ------------------------------------------------------------------------------------------------- that take their time


@task
def nap(name, seconds):
    mark(name)
    time.sleep(seconds)
    mark(f"{name} ended")
    return name


@task
def doze(name, seconds):
    """Asks nothing of the database after its beginning, so an outage does not concern it."""
    mark(name)
    connection.close()
    time.sleep(seconds)


@task
def hold(name, path):
    """Ends when the test creates the file."""
    mark(name)
    while not Path(path).exists():
        time.sleep(0.01)
    mark(f"{name} ended")
    return name


@task
def spin(name, seconds):
    """Keeps a processor busy."""
    mark(name)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


@task(timeout=60)
def nap_with_own_timeout(name, seconds):
    nap.func(name, seconds)


@task
def nap_in_database(name, seconds):
    """Holds its connection all the time."""
    mark(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


@task
def wait_for_socket(name):
    """Blocks in the system, where nobody can stop it."""
    mark(name)
    ours, _theirs = socket.socketpair()
    ours.recv(1)


@task
def wait_in_c(name, seconds):
    """Blocks in C, without the interpreter's lock."""
    mark(name)
    ctypes.CDLL(None).usleep(int(seconds * 1e6))


@task
def hold_interpreter(name, seconds):
    """Blocks in C with the interpreter's lock: no other thread of its process gets a word in."""
    mark(name)
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@task
def leave_thread(name, seconds):
    """Leaves a thread behind that the interpreter would wait for at its end."""
    mark(name)
    threading.Thread(target=time.sleep, args=[seconds]).start()


# ------------------------------------------------------------------------------------------------- async def


@task
async def anap(name, seconds):
    await amark(name)
    await asyncio.sleep(seconds)
    await amark(f"{name} ended")


@task
async def ablock(name, seconds):
    """Blocks the event loop: what `async def` must not do."""
    await amark(name)
    time.sleep(seconds)  # noqa: ASYNC251


@task
async def acount(name):
    await Effect.objects.acreate(task=name)
    return await Effect.objects.filter(task=name).acount()


@task
async def asleep_in_database(seconds):
    await sync_to_async(nap_in_database.func)("query", seconds)


@task
async def around_decimals(precision):
    """What it finds, and leaves another precision."""
    found = decimal.getcontext().prec
    decimal.getcontext().prec = precision
    return found


@task
async def aorm_by_mistake():
    return Note.objects.count()


@task
async def astubborn(name, seconds):
    """Does not let itself be canceled."""
    await amark(name)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


@task
async def achild_exits(name):
    """A task of its own ends the event loop."""
    await amark(name)
    asyncio.get_running_loop().create_task(_exit())
    await asyncio.sleep(0.2)


async def _exit():
    raise SystemExit(3)


@task
async def astop_loop(name):
    await amark(name)
    asyncio.get_running_loop().stop()


# ------------------------------------------------------------------------------------------------- that end badly


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class OddSnooze(Snooze):
    def __init__(self, delay):
        Exception.__init__(self, "odd")
        self.delay = delay


def _recurse():
    return _recurse()


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


_RAISED = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base": lambda: BaseException("bare"),
    "stop iteration": StopIteration,
    "group": lambda: BaseExceptionGroup("both", [SystemExit(1), ValueError("x")]),
    "unspeakable": Unspeakable,
    "huge": lambda: ValueError("x" * 5_000_000),
    "nul": lambda: ValueError("a\x00b\ud800"),
    "value": lambda: ValueError("it broke"),
    "discard": lambda: Discard("never"),
    "snooze": lambda: Snooze(0.1),
    "snooze for ever": lambda: Snooze(1e300),
    "snooze nan": lambda: OddSnooze(float("nan")),
    "snooze text": lambda: OddSnooze("soon"),
    "snooze backwards": lambda: OddSnooze(-5),
    "retry for ever": lambda: Retry(1e13),
}
_RETURNED = {
    "nul": lambda: "a\x00b",
    "surrogate": lambda: "\ud800",
    "nan": lambda: float("nan"),
    "infinity": lambda: [float("inf")],
    "object": object,
    "set": lambda: {1, 2},
    "decimal": lambda: Decimal("1e999999"),
    "huge": lambda: "x" * 5_000_000,
    "huge number": lambda: 10**5000,
    "deep": lambda: _nested(100_000),
    "keys": lambda: {(1, 2): 3, None: 4},
    "generator": lambda: (n for n in range(3)),
    "coroutine": lambda: _exit(),
    "bytes": lambda: b"\xff",
}


@task(max_attempts=1)
def end_by(how):
    mark(how)
    error = _RAISED[how]()
    raise error


@task(max_attempts=1)
async def aend_by(how):
    error = _RAISED[how]()
    raise error


@task
def give(what):
    mark(what)
    return _RETURNED[what]()


@task(max_attempts=1)
def recurse():
    return _recurse()


@task(max_attempts=1)
def show_nested(depth):
    return repr(_nested(depth))


@task
def die(name="die"):
    """Kills its process, as the kernel does when memory is short."""
    mark(name)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def crash():
    """A segmentation fault."""
    mark("crash")
    ctypes.string_at(0)


@task
def fail_until(name, attempt):
    """Fails in all attempts before this one."""
    mark(name)
    if Effect.objects.filter(task=name).count() < attempt:
        raise ValueError(f"not yet: {name}")


def odd_backoff(exception, task_result):
    answer = str(exception).removeprefix("backoff ")
    if answer == "raises":
        raise RuntimeError("no delay")
    if answer == "exits":
        sys.exit(4)
    return {"none": None, "text": "soon"}[answer] if answer in ("none", "text") else float(answer)


@task(max_attempts=2, backoff=odd_backoff)
def fail_with_backoff(answer):
    mark(answer)
    raise ValueError(f"backoff {answer}")


@task(max_attempts=2, timeout=0.3, backoff=lambda error, result: 0.1)
def overdue_with_backoff(name, seconds):
    nap.func(name, seconds)


# ------------------------------------------------------------------------------------------------- that leave things


@task
def leave_autocommit_off(name):
    mark(name)
    transaction.set_autocommit(False)
    Note.objects.create(text=name)


@task
def leave_transaction(name):
    mark(name)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO app_note (text) VALUES (%s)", [name])


@task
def leave_atomic(name):
    mark(name)
    transaction.atomic().__enter__()
    Note.objects.create(text=name)


@task
def leave_broken_transaction(name):
    mark(name)
    transaction.set_autocommit(False)
    try:
        connection.cursor().execute("SELECT 1/0")
    except Exception:
        return


@task
def leave_closed_socket(name):
    mark(name)
    os.close(connection.connection.fileno())


@task
def leave_session(how):
    """Changes its session; `how` is the statement, or "composed"."""
    from psycopg import sql

    composed = sql.SQL("SET search_path TO {}").format(sql.Identifier("elsewhere"))
    with connection.cursor() as cursor:
        cursor.execute(composed if how == "composed" else how)


@task
def leave_context():
    translation.activate("fr")
    timezone.activate("Asia/Tokyo")
    ODD.set("changed")


@task
def look_around():
    """What a run finds: its session's schema, language, time zone and context."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path')")
        [path] = cursor.fetchone()
    return [path, translation.get_language(), str(timezone.get_current_timezone()), ODD.get()]


@task
def write_note(text):
    Note.objects.create(text=text)


@task
def session_pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@task
def end_own_session(name):
    """Its session is ended under it, and it takes no notice."""
    mark(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        other = connection.copy()
        with other.cursor() as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", cursor.fetchone())
        other.close()
    return "done"


@task
def leave_zombie(name):
    """A child that ended, and that nobody has asked for its exit code."""
    mark(name)
    subprocess.Popen(["true"])


@task
def queries(number, size):
    for _ in range(number):
        Note.objects.count()
    return "x" * size


# ------------------------------------------------------------------------------------------------- with a context


@task(takes_context=True)
def tell(context, name):
    """Says what it is told, and keeps a checkpoint; fails at first."""
    mark(name)
    before = context.checkpoint
    context.progress({"before": before})
    context.save_checkpoint({"attempt": context.attempt})
    if context.attempt == 1:
        raise ValueError("again")
    return [before, context.attempt, context.lease]


@task(takes_context=True)
def until_told(context, name, attribute):
    """Ends when the context says so."""
    mark(name)
    while not getattr(context, attribute):
        time.sleep(0.01)
    mark(f"{name} was told")
    raise Discard(f"{attribute} was seen")


@task(takes_context=True)
def save(context, name, path, value):
    """Stores a checkpoint when the test creates the file."""
    mark(name)
    while not Path(path).exists():
        time.sleep(0.01)
    context.save_checkpoint(value)
    mark(f"{name} saved")


@task(takes_context=True)
def report_progress(context, value):
    context.progress(value)


@task
def match(pattern, text):
    """C code that keeps the interpreter's lock."""
    return bool(re.match(pattern, text))


@task
def idle_in_transaction(seconds):
    with transaction.atomic():
        mark("idle")
        time.sleep(seconds)
        mark("too late")


@task(takes_context=True)
def until_told_by_file(context, name, attribute):
    """As above, but says it to the log: the database may be away."""
    mark(name)
    connection.close()
    while not getattr(context, attribute):
        time.sleep(0.01)
    sys.stderr.write(f"{attribute} was seen\n")


# ------------------------------------------------------------------------------------------------- in child processes


@task
def exit_at_once(name):
    """Ends its process without a word, as C libraries do that think they know better."""
    mark(name)
    os._exit(3)


@task(takes_context=True)
def patient_until_told(context, name, attribute):
    """Sees what the context says, even where that comes with a CancelledError."""
    mark(name)
    with suppress(asyncio.CancelledError):
        while not getattr(context, attribute):
            time.sleep(0.01)
    if getattr(context, attribute):
        mark(f"{name} was told")


@task(atomic=True)
def atomic_note(text, seconds):
    Note.objects.create(text=text)
    time.sleep(seconds)


class _Odd(Exception):
    def __str__(self):
        raise ValueError("no words")


@task
def raise_oddly(how):
    raise {
        "value": ValueError("plain"),
        "system_exit": SystemExit(7),
        "interrupt": KeyboardInterrupt(),
        "odd_str": _Odd(),
        "base": BaseException("base"),
    }[how]


@task
def echo_and_print(text):
    sys.stdout.write("printed by a function\n")
    sys.stdout.flush()
    return text


@task
def fork_and_return(name):
    """Both sides return, though only one was asked to run."""
    connection.close()
    return "parent" if _fork() else "fork"


@task(atomic=True)
def fork_in_a_transaction(name):
    """The connection is open, with what the run has written."""
    Note.objects.create(text=name)
    return "parent" if _fork() else "fork"


def _fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads beside this one
        return os.fork()
