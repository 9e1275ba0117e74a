"""A server of its own, in good health, for each trouble to be made on it for real."""

from contextlib import contextmanager, suppress

import psycopg
import pytest
from django.db import connections

from django_dhara import doctor
from django_dhara.backend import DharaBackend
from tests.workers.conftest import an_own_server, database, pair, pooler
from tests.workers.harness import Crew

__all__ = ["database", "pair", "pooler"]

#: The longest timeout of a function of the tests fits into it.
OPTIONS = {"DRAIN_SECONDS": 60}
HEALTHY = ("idle_in_transaction_session_timeout = '10min'", "max_prepared_transactions = 5", "autovacuum_naptime = '1h'")


class Patient:
    """A database in good health, what is done to it, and what the doctor then finds."""

    def __init__(self, server):
        self.server = server
        self.database = server.connect()
        self.options = dict(OPTIONS)
        self.settings = {}

    def does(self, *statements):
        for statement in statements:
            self.database.rows(statement)

    def session(self, **parameters):
        """Another session, not in autocommit."""
        return psycopg.connect(**{**self.database.parameters, **parameters})

    def findings(self, **limits):
        """What is found, in the order of its telling."""
        where = self.database.parameters
        given = {"HOST": where["host"], "PORT": str(where["port"]), "NAME": where["dbname"], "USER": where["user"]}
        with an_alias("patient", **{"OPTIONS": {}, "ENGINE": "django.db.backends.postgresql", **given, **self.settings}):
            backend = DharaBackend("default", {"OPTIONS": {"DATABASE": "patient", **self.options}})
            return doctor.examine([backend], doctor.Limits(**limits))

    def has(self, id_, **limits):
        """That one is found and nothing else."""
        found = self.findings(**limits)
        assert [finding.id for finding in found] == [id_], found
        assert found[0].database == "patient"
        return found[0]

    def is_well(self, **limits):
        found = self.findings(**limits)
        assert found == []
        return True

    def is_well_now(self, **limits):
        return not self.findings(**limits)

    def takes(self, finding):
        """Follow the advice, as far as it is SQL."""
        for statement in finding.do.split(";"):
            if statement.strip():
                self.database.rows(statement)


@contextmanager
def an_alias(name, **settings):
    connections.databases[name] = {**connections.databases["default"], **settings}
    try:
        yield
    finally:
        with suppress(AttributeError):
            del connections[name]
        del connections.databases[name]


@pytest.fixture(scope="session")
def own_cluster():
    with an_own_server() as server:
        database = server.connect()
        for setting in HEALTHY:
            database.rows(f"ALTER SYSTEM SET {setting}")
        server.stop()
        server.start()
        yield server


@pytest.fixture
def patient(own_cluster):
    """The server, up and empty and well."""
    patient = Patient(own_cluster)
    tables = "dhara_task, dhara_attempt, dhara_worker, dhara_command, dhara_minute, dhara_queue, app_effect"
    patient.does(f"TRUNCATE {tables}")
    yield patient
    patient.database.close()


@pytest.fixture
def crew(patient, tmp_path):
    """Starts commands on the patient's server."""
    crew = Crew(tmp_path, patient.database, **patient.server.env)
    yield crew
    crew.end()
