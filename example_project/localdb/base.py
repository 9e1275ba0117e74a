"""Django's PostgreSQL backend on the private server: the server is there before any connection is tried."""

import shutil

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from django.db.backends.postgresql import base, client
from django.db.utils import OperationalError

from example_project.localdb import binaries, server
from example_project.localdb.errors import LocalDatabaseError, NoPostgres

#: Said explicitly so that the user's PG* variables (PGHOST, PGPORT, PGSSLMODE ...) decide nothing. libpq takes an empty
#: word in a connection string as an answer; `options` alone needs a blank.
_DEAF_TO_ENVIRONMENT = {
    "hostaddr": "",
    "options": " ",
    "sslmode": "disable",
    "gssencmode": "disable",
    "channel_binding": "disable",
    "target_session_attrs": "any",
}


class DatabaseClient(client.DatabaseClient):
    """`manage.py dbshell` on the private server, with its own psql where the system has none."""

    def runshell(self, parameters):
        """Open psql; the server is started first."""
        self.connection.get_connection_params()
        DatabaseClient.executable_name = shutil.which("psql") or str(binaries.find() / "psql")
        super().runshell(parameters)


class DatabaseWrapper(base.DatabaseWrapper):
    """A PostgreSQL connection whose server is started, and whose database is created, when first asked for."""

    client_class = DatabaseClient

    def get_connection_params(self):
        """Return what psycopg.connect() needs, once the server answers."""
        place = self._ensure().place
        user = self.settings_dict["USER"] or place.user
        self.settings_dict.update(HOST=str(place.sockets), PORT=place.port, USER=user)
        return {**_DEAF_TO_ENVIRONMENT, **super().get_connection_params()}

    def _ensure(self):
        try:
            local = server.for_profile(self.settings_dict.get("LOCALDB_PROFILE"))
            local.ensure(self._wanted_database())
        except NoPostgres as error:
            raise ImproperlyConfigured(str(error)) from error
        except LocalDatabaseError as error:
            raise OperationalError(str(error)) from error
        return local

    def _wanted_database(self):
        """Return the database to create if missing: ours, never a test's, which Django makes and drops itself."""
        name = self.settings_dict["NAME"] or "postgres"
        test = self.settings_dict.get("TEST", {}).get("NAME")
        return "postgres" if name.startswith(TEST_DATABASE_PREFIX) or name == test else name
