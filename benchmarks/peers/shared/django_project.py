"""The Django project of the peers that are Django apps: persistent connections, no log line below WARNING."""

import contextlib

import django
import harness
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict


def configure(app, backend, **options):
    """Set Django up with one app and the backend of its tasks, whose OPTIONS are `options`."""
    given = conninfo_to_dict(harness.DSN)
    database = {"NAME": given["dbname"], "HOST": given.get("host", ""), "PORT": given.get("port", "")}
    database |= {"USER": given.get("user", ""), "PASSWORD": given.get("password", "")}
    settings.configure(
        SECRET_KEY="benchmark",
        USE_TZ=True,
        INSTALLED_APPS=[app],
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": None, **database}},
        TASKS={"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options}},
        LOGGING_CONFIG=None,
    )
    django.setup()


def setup():
    """Make the tables."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def manage(*words):
    """Run `manage.py` with `words`."""
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *words])


class Producer:
    """Enqueues as Django does; `many` is the peer's own.

    Args:
        many: enqueues calls of a task, given as a list of numbers.
    """

    def __init__(self, many):
        self._many = many

    def one(self, function, i):
        """Enqueue one task."""
        _task(function).enqueue(i)

    def many(self, function, count):
        """Enqueue many."""
        self._many(_task(function), list(range(count)))


def producer(many):
    """Return what opens a connection and gives a `Producer`, as the harness wants it."""

    @contextlib.contextmanager
    def opening():
        from django.db import connection

        connection.ensure_connection()
        yield Producer(many)

    return opening


def _task(function):
    import django_jobs

    return getattr(django_jobs, function)
