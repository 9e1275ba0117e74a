"""A server of its own, in good health, for each trouble to be made on it for real."""

import re
from contextlib import closing, contextmanager, suppress
from uuid import uuid4

import psycopg
import pytest
from django.db import connections

from django_dhara import doctor
from django_dhara.backend import DharaBackend
from tests.workers.conftest import an_own_server, database, pair, pooler
from tests.workers.harness import Crew, Database, url_of

__all__ = ["database", "pair", "pooler"]

#: The longest timeout of a function of the tests fits into it.
OPTIONS = {"DRAIN_SECONDS": 60}
HEALTHY = (
    "idle_in_transaction_session_timeout = '10min'",
    "max_prepared_transactions = 5",
    "autovacuum_naptime = '1h'",
)


class Patient:
    """A database in good health, what is done to it, and what the doctor then finds."""

    def __init__(self, database):
        self.database = database
        self.options = dict(OPTIONS)
        self.settings = {}

    def does(self, *statements):
        for statement in statements:
            self.database.rows(statement)

    def session(self, **parameters):
        """Another session, not in autocommit, that is closed and not committed in the end."""
        return closing(psycopg.connect(**{**self.database.parameters, **parameters}))

    def value_anew(self, statement):
        """What a new session is answered."""
        with self.session(autocommit=True) as session:
            return session.execute(statement).fetchone()[0]

    def findings(self, **limits):
        """What is found, in the order of its telling."""
        where = self.database.parameters
        given = {"HOST": where["host"], "PORT": str(where["port"]), "NAME": where["dbname"], "USER": where["user"]}
        with an_alias(
            "patient", **{"OPTIONS": {}, "ENGINE": "django.db.backends.postgresql", **given, **self.settings}
        ):
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
        for statement in re.findall(r"\b(?:ALTER|CREATE|DROP|GRANT|REINDEX|SELECT) [^;]+;", finding.do):
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
def hospital():
    with an_own_server() as server:
        database = server.connect()
        for setting in HEALTHY:
            database.rows(f"ALTER SYSTEM SET {setting}")
        server.stop()
        server.start()
        yield server.parameters


@pytest.fixture
def patient(hospital):
    """A database with all tables, empty and well."""
    server, name = Database(**hospital | {"dbname": "postgres"}), f"patient_{uuid4().hex[:8]}"
    server.rows(f"CREATE DATABASE {name} TEMPLATE {hospital['dbname']}")
    patient = Patient(Database(**hospital | {"dbname": name}))
    yield patient
    patient.database.close()
    server.rows(f"DROP DATABASE {name} WITH (FORCE)")
    server.close()


@pytest.fixture
def crew(patient, tmp_path):
    """Starts commands on the patient's database."""
    crew = Crew(tmp_path, patient.database, DATABASE_URL=url_of(patient.database.parameters))
    yield crew
    crew.end()


@pytest.fixture
def stranger(patient):
    """The role that Django has: it owns nothing, and may read and write our tables."""
    patient.does("DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN", "GRANT pg_read_all_stats TO stranger")
    patient.settings["USER"] = "stranger"
    patient.does("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO stranger")
    yield
    patient.does("DROP OWNED BY stranger", "DROP ROLE stranger")
