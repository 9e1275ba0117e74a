"""Databases of a test's own, empty or with the tables of one version, and a project whose migrations it writes."""

from uuid import uuid4

import pytest
from django.db import connections

from tests.upgrades import versions
from tests.upgrades.garden import Garden
from tests.upgrades.versions import NAMES, Version
from tests.workers.harness import Database, test_database


class Databases:
    """Empty databases on the server of the tests, or copies of one that was made here; all dropped at the end."""

    def __init__(self):
        self._where = test_database()
        self._server = Database(**self._where | {"dbname": "postgres"})
        self._made = []

    def make(self, template="template1"):
        name = f"test_upgrade_{uuid4().hex[:12]}"
        self._server.rows(f"CREATE DATABASE {name} TEMPLATE {template}")
        self._made.append(Database(**self._where | {"dbname": name}))
        return self._made[-1]

    def close(self):
        for database in self._made:
            database.close()
            self._server.rows(f"DROP DATABASE {database.parameters['dbname']} WITH (FORCE)")
        self._server.close()


@pytest.fixture(scope="session")
def _server(django_db_setup, django_db_blocker):
    """The server of the tests is up, and known by its address."""
    with django_db_blocker.unblock():
        connections["default"].ensure_connection()


@pytest.fixture
def databases(_server):
    databases = Databases()
    yield databases
    databases.close()


@pytest.fixture
def database(databases):
    """One of them."""
    return databases.make()


@pytest.fixture
def garden(database, tmp_path):
    """A project on it whose migrations are still to be written."""
    garden = Garden(tmp_path, {"default": database.parameters})
    yield garden
    garden.end()


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Where the code of each version lies."""
    folder = tmp_path_factory.mktemp("previous")
    try:
        versions.files_of(versions.previous(), folder)
    except (versions.NoHistory, FileNotFoundError) as error:
        pytest.skip(f"needs the history of the repository: {error}")
    return {"previous": folder, "present": versions.PROJECT}


@pytest.fixture
def both(folders, database, tmp_path):
    """Both versions on one database."""
    return [Version(name, folders[name], database, tmp_path) for name in NAMES]


@pytest.fixture
def crews(both):
    """Workers of each version, by its name."""
    crews = {version.name: version.crew() for version in both}
    yield crews
    for crew in crews.values():
        crew.end()


@pytest.fixture
def make_tables(both):
    """Makes the tables of the version with this name, which are seen to be that version's."""

    def make(name):
        version = both[NAMES.index(name)]
        version.migrate()
        newest = version.database.value("SELECT max(name) FROM django_migrations WHERE app = 'dhara'")
        assert newest == versions.newest_migration(version.folder)

    return make
