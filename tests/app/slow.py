"""A module that takes its time to be imported."""

import time

from django_dhara.tasks import task
from tests.app import tasks

tasks.mark("import of slow")
time.sleep(4)


@task
def late(name):
    tasks.mark(name)
