"""The functions of a run. Each writes its start and its end, with its lease."""

import asyncio
from threading import Event

from django.utils import translation

from django_dhara import Snooze
from django_dhara.tasks import task
from tests.chaos.app.abuse import abuses, kills
from tests.chaos.app.models import Effect
from tests.chaos.app.recording import recorded

__all__ = ["abuses", "awork", "effect", "flaky", "keyed", "kills", "long_effect", "snoozing", "speaks", "work"]


def pause(seconds):
    """What `time.sleep` does; that fails under libfaketime."""
    Event().wait(seconds)


@task(takes_context=True)
def work(context, uid, seconds=0.0):
    with recorded(context, uid):
        pause(seconds)


@task(takes_context=True)
async def awork(context, uid, seconds=0.0):
    with recorded(context, uid):
        await asyncio.sleep(seconds)


@task(takes_context=True, atomic=True, max_attempts=50)
def effect(context, uid, seconds=0.0):
    """One row, in the transaction that settles the task. An outage ends that transaction: a failure, and so many."""
    with recorded(context, uid):
        Effect.objects.create(task_id=context.task_result.id, lease=context.lease)
        pause(seconds)


@task(takes_context=True, atomic=True, max_attempts=2)
def long_effect(context, uid):
    """Outlasts a renewal of its lease, which changes its row: above READ COMMITTED its transaction cannot settle it."""
    with recorded(context, uid):
        Effect.objects.create(task_id=context.task_result.id, lease=context.lease)
        pause(1.2)


@task(takes_context=True)
def flaky(context, uid, failures=1):
    """Fails in its first attempts."""
    with recorded(context, uid):
        if context.attempt <= failures:
            raise ValueError(f"attempt {context.attempt}")


@task(takes_context=True)
def snoozing(context, uid, times=1):
    """Asks to run later, and knows by its checkpoint how often it has."""
    with recorded(context, uid):
        done = context.checkpoint or 0
        if done < times:
            context.save_checkpoint(done + 1)
            raise Snooze(0.2)


@task(takes_context=True)
def speaks(context, uid):
    """Leaves a language behind."""
    with recorded(context, uid):
        translation.activate("fr")


@task(takes_context=True)
def keyed(context, uid):
    """Enqueued with a key: `uid` is the key, since all racers must give the same arguments."""
    with recorded(context, uid):
        pass
