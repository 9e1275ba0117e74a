"""What all tests share."""

import pytest
from django.db import connections

from django_dhara import sql
from tests.sessions import Session


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
def sessions(transactional_db):
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
