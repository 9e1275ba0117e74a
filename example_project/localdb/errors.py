"""What can go wrong, as sentences a person can act on."""


class LocalDatabaseError(Exception):
    """The private PostgreSQL cannot be used; the message is one line that says why."""


class NoPostgres(LocalDatabaseError):
    """This machine has no PostgreSQL programs: somebody has to install them or name a database."""
