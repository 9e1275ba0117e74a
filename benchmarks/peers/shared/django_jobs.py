"""The functions, as tasks of Django."""

import time

import harness
from django.tasks import task


@task
def noop(i):
    """Do nothing."""


@task
def sleep(i):
    """Stand for input and output."""
    time.sleep(harness.nap(i))


@task
def hold(i):
    """Hold a slot, once."""
    time.sleep(harness.hold(i))


@task
def stamp(i):
    """Write down the time."""
    harness.stamp(i)
