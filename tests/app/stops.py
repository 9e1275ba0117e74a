"""Functions that are asked to stop, and what they make of it."""

import asyncio
import time
from contextlib import suppress

from asgiref.sync import sync_to_async

from django_dhara import Discard, Retry, Snooze
from django_dhara.errors import TaskCanceled
from django_dhara.tasks import task
from tests.app.tasks import mark

amark = sync_to_async(mark)

_ENDS = {
    "raise": lambda: ValueError("no"),
    "snooze": lambda: Snooze(0),
    "retry": lambda: Retry(after=0),
    "discard": lambda: Discard("never"),
    "cancel": lambda: TaskCanceled("as asked"),
}
HOWS = ["return", *_ENDS]


@task(takes_context=True)
def obey(context, how):
    """Hears of its cancel, by its context or by a CancelledError, and ends as it is told here."""
    with suppress(asyncio.CancelledError):
        mark(how)
        while not context.canceled:
            time.sleep(0.01)
    mark(f"{how} heard")
    if how in _ENDS:
        error = _ENDS[how]()
        raise error


@task
async def aobey(how):
    """The same in the event loop."""
    await amark(how)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await amark(f"{how} heard")
    if how in _ENDS:
        error = _ENDS[how]()
        raise error


@task
def clean_up(name, seconds):
    """Needs a while to put things in order when it is stopped."""
    try:
        mark(name)
        time.sleep(60)
    except asyncio.CancelledError:
        time.sleep(seconds)
        mark(f"{name} cleaned")
        raise


@task
def be_deaf(name):
    """Lets nothing stop it."""
    mark(name)
    while True:
        with suppress(BaseException):
            time.sleep(0.05)
