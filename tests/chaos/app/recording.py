"""What a worker writes into the history: starts and ends of functions, answers to settles, lost leases."""

import os
import time
from contextlib import contextmanager
from functools import wraps
from threading import Event
from time import monotonic

from django.utils import translation

from django_dhara import lifecycle
from django_dhara.signals import lease_lost
from django_dhara.worker import child, children
from django_dhara.worker.clerk import Clerk
from tests.chaos.history import Ledger
from tests.chaos.plan import Plan

ledger = None


@contextmanager
def recorded(context, uid):
    """The first and the last line of a function."""
    run = {"id": context.task_result.id, "lease": context.lease}
    ledger.write("start", uid=uid, n=context.attempt, lang=translation.get_language(), **run)
    try:
        yield
    except BaseException as error:
        ledger.write("end", ok=False, error=type(error).__name__, **run)
        raise
    ledger.write("end", ok=True, **run)


def start():
    """Called once in every process of a run, when Django is set up."""
    global ledger
    if "CHAOS" not in os.environ:
        return
    if "FAKETIME" in os.environ:
        # That of the standard library fails under libfaketime.
        time.sleep = children.sleep = child.sleep = lambda seconds: Event().wait(seconds)
    ledger = Ledger(Plan.here().folder, os.environ.get("CHAOS_ROLE", "tool"))
    lifecycle.settle = _settling(lifecycle.settle)
    lifecycle.settle_in_transaction = _settling_in_transaction(lifecycle.settle_in_transaction)
    Clerk.start = _starting(Clerk.start)
    lease_lost.connect(_on_lease_lost, weak=False)


def _settling(settle):
    @wraps(settle)
    def settles(execute, worker, endings, **options):
        began = monotonic()
        answers = settle(execute, worker, endings, **options)
        runs = [_answered(ending, answer) for ending, answer in zip(endings, answers, strict=True)]
        ledger.write("settle", began=began, runs=runs)
        return answers

    return settles


def _answered(ending, answer):
    said = "refused" if answer.refused else answer.state and answer.state.value
    return [str(ending.id), ending.lease, ending.outcome.verb, said]


def _settling_in_transaction(settle):
    """Of its commit the trigger log tells, if it came to that."""

    @wraps(settle)
    def settles(execute, worker, ending):
        state = settle(execute, worker, ending)
        ledger.write("settle in transaction", id=str(ending.id), lease=ending.lease)
        return state

    return settles


def _starting(start):
    """A clerk's job, which is a settle on a session of its own."""

    @wraps(start)
    def starts(self, job):
        ledger.write("witness", code="clerk")
        start(self, job)

    return starts


def _on_lease_lost(sender, task_id, lease, **named):
    ledger.write("lease lost", id=str(task_id), lease=lease)
