"""Tasks that receive, return and raise what PostgreSQL, JSON or a log cannot hold."""

import sys
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.utils.functional import SimpleLazyObject

from django_dhara.tasks import task
from tests.app.models import Note
from tests.app.tasks import hold, mark


def told(value):
    """A value with the types of all its parts, as JSON; -0.0 and 1e16 look unlike 0.0 and 10 ** 16."""
    if isinstance(value, dict):
        return ["dict", sorted([[told(key), told(item)] for key, item in value.items()])]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [told(item) for item in value]]
    return f"{type(value).__name__} {value!a}"


@task
def receive(*args, **kwargs):
    """Tells what arrived."""
    return [told(args), told(kwargs)]


class Float32:
    """A number of another library's, which is no float."""

    def __float__(self):
        return float("nan")


class Float64(float):
    """A number of another library's, which is one."""


async def _nothing():
    return 1


_RETURNED = {
    "nul": lambda: "a\0b",
    "nul inside": lambda: {"k": ["\0"]},
    "nul in a key": lambda: {"k\0": 1},
    "surrogate": lambda: "\ud800",
    "nan": lambda: {"score": float("nan"), "x": float("inf")},
    "another nan": lambda: [Float64("nan"), Float64(2.5)],
    "no float": lambda: Float32(),
    "object": object,
    "generator": lambda: (n for n in range(3)),
    "queryset": lambda: Note.objects.all(),
    "coroutine": lambda: _nothing(),
    "lazy": lambda: SimpleLazyObject(lambda: sys.exit(3)),
    "exception": lambda: ValueError("returned, not raised"),
    "forger": lambda: type("For\nERROR forged\x1b[31m", (), {})(),
}


@task(max_attempts=3)
def give(what):
    mark(what)
    return _RETURNED[what]()


@task(max_attempts=3)
async def agive(what):
    await sync_to_async(mark)(what)
    return _RETURNED[what]()


class Demanding(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, code, *, reason):
        super().__init__(f"{reason} ({code})")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def _local():
    class Local(Exception):
        pass

    return Local("of a function's own")


def _with_a_file():
    error = ValueError("holds a file")
    error.file = Path(__file__).open()  # noqa: SIM115 - it is to be open
    return error


_RAISED = {
    "demanding": lambda: Demanding(7, reason="with arguments"),
    "local": _local,
    "with a file": _with_a_file,
    "unspeakable": Unspeakable,
    "forger": lambda: type("For\nERROR forged: a class\x1b[31m", (Exception,), {})("\nERROR forged: a message\x1b[31m"),
}


@task(backoff=lambda error, result: 0.0)
def fail_by(how):
    mark(how)
    error = _RAISED[how]()
    raise error


@task(takes_context=True, max_attempts=1)
def say(context, verb, what):
    """Says what cannot be said, by `progress` or `save_checkpoint`."""
    getattr(context, verb)(_RETURNED[what]())


@task
def measure(text):
    """How large its argument is."""
    return len(text)


@task(takes_context=True)
def brief(context, name, obedient):
    """Takes 50 ms, in steps; the obedient one looks whether it was canceled."""
    mark(name)
    for _ in range(5):
        time.sleep(0.01)
        if obedient and context.canceled:
            raise RuntimeError("canceled in the middle")


@task
def hold_and_fail(name, path):
    """Fails when the test creates the file."""
    hold.func(name, path)
    raise ValueError("it failed in the end")


@task
def look_for(text):
    """Marks its name if the row that was written beside it is there."""
    mark(text if Note.objects.filter(text=text).exists() else f"{text} without its row")
