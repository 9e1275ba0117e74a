"""What all tests share."""

import pytest
from django.apps import apps
from django.db import connection, connections
from django.test import TransactionTestCase

from django_dhara import events, registry, sql
from tests.sessions import Caller, Session


@pytest.fixture(scope="session", autouse=True)
def _tasks_are_known():
    """Their modules are imported under the settings of the tests, not under those that some test has made up."""
    registry.discover()


@pytest.fixture(autouse=True)
def _nothing_was_murmured(monkeypatch):
    """A test hears what it causes, whatever was said a moment ago."""
    monkeypatch.setattr(events, "_murmured", events.Repeats(events.PAUSE_SECONDS, events.LONGEST_SECONDS))


@pytest.fixture
def execute(transactional_db):
    """Runs the statements of lifecycle.py, each in a transaction of its own, as a worker's session would."""
    return sql.on("default")


@pytest.fixture
def other_session(transactional_db):
    """A second real session on the test database."""
    connection = connections.create_connection("default")
    yield connection
    connection.close()


@pytest.fixture
def _empty_only_our_tables(monkeypatch):
    def empty():
        models = (model for label in ("dhara", "app") for model in apps.get_app_config(label).get_models())
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(model._meta.db_table for model in models)}")

    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", staticmethod(empty))


@pytest.fixture
def commits(_empty_only_our_tables, transactional_db):
    """`transactional_db` for tests that write to our tables only: it need not make all permissions anew each time."""


@pytest.fixture
def sessions(commits):
    """Makes real sessions (see sessions.py) and closes them before the tables are emptied."""
    made = []

    def make(count):
        made.extend(Session() for _ in range(count))
        return made[-count:]

    yield make
    for session in made:
        session.cancel()
    for session in made:
        session.close()


@pytest.fixture
def callers(commits):
    """Makes threads with Django connections of their own (see sessions.py)."""
    made = []

    def make(count, alias="default"):
        made.extend(Caller(alias) for _ in range(count))
        return made[-count:]

    yield make
    for caller in made:
        caller.close()


@pytest.fixture
def database(commits):
    """Makes further aliases of the test database, with OPTIONS of their own."""
    made = []

    def make(alias, **options):
        default = connections.databases["default"]
        connections.databases[alias] = {**default, "OPTIONS": {**default["OPTIONS"], **options}}
        made.append(alias)
        connections[alias].connect()  # once it is open, Django's tests let it pass
        return connections[alias]

    yield make
    for alias in made:
        connections[alias].close()
        del connections[alias], connections.databases[alias]
