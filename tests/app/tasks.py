"""Tasks for the tests."""

from django_dhara.tasks import task


@task
def add(a, b=2):
    return a + b
