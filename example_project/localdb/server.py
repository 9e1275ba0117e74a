"""The life of a private server: up while somebody uses it, ended by the last to leave.

Two lock files say who is who. `lock` is held alone by whoever starts or stops the server; `users` is shared by every
process that uses it. A process that ends cleanly lets go and, if nobody else shares `users`, stops the server. A killed
process lets go too, by the kernel's hand; then the next to end cleanly stops it.
"""

import atexit
import errno
import os
import threading
from contextlib import contextmanager

from example_project.localdb import binaries, locks, wire
from example_project.localdb.cluster import Cluster
from example_project.localdb.errors import LocalDatabaseError
from example_project.localdb.place import Place


class Server:
    """The server of one place, as this process sees it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.cluster = Cluster(place)
        self._lock_path = place.base / "lock"
        self._users_path = place.base / "users"
        self._kept_path = place.base / "kept"
        self._share: int | None = None
        self._owner = 0
        self._known: set[str] = set()
        self._fresh_thread_lock()
        os.register_at_fork(after_in_child=self._fresh_thread_lock)

    def ensure(self, database: str = "postgres") -> None:
        """Return once the server answers and `database` exists; from now on this process counts as a user of it.

        Cheap when all is well (one local login), so it is called before every connection.
        Raises LocalDatabaseError with the reason in one line.
        """
        if self._shares() and database in self._known and self.cluster.reply() == "ready":
            return
        with self._threads, _plain_words(self.place):
            self._bring_up(database)

    def release(self) -> None:
        """Stop using the server, and stop it if nobody else uses it. In a forked child: only let go."""
        with self._threads:
            share, self._share = self._share, None
            if share is None:
                return
            if self._owner != os.getpid() or not locks.same_file(share, self._users_path):
                os.close(share)
                return
            with locks.alone(self._lock_path):
                os.close(share)
                if locks.unused(self._users_path) and not self._is_kept():
                    self.cluster.stop()

    def keep(self) -> None:
        """Let the server outlive its users, until `stop` or the machine's end."""
        with self._threads, _plain_words(self.place), locks.alone(self._lock_path):
            self._kept_path.write_text(str(self.cluster.pid()))

    def stop(self) -> bool:
        """Stop the server whoever uses it; return whether there was one."""
        if not self.place.base.is_dir():
            return False
        with self._threads, _plain_words(self.place), locks.alone(self._lock_path):
            running = self.cluster.pid() is not None
            self.cluster.stop()
            return running

    def was_stopped(self) -> bool:
        """Return whether somebody stopped the server on purpose; a crash leaves its pid file."""
        with _plain_words(self.place), locks.alone(self._lock_path):
            return self.cluster.reply() == "absent" and not self.place.pid_file.exists()

    def _bring_up(self, database: str) -> None:
        if _leaving.is_set():
            raise LocalDatabaseError("this process is ending and has let go of its server")
        programs = binaries.find(self.place.account())
        self.place.prepare()
        with locks.alone(self._lock_path) as lock:
            self._take_share()
            if self.cluster.reply() != "ready":
                self._known.clear()
                self.cluster.start(programs, lock)
            self._create(database)

    def _take_share(self) -> None:
        if self._shares():
            return
        if self._share is not None:
            os.close(self._share)
        self._share = locks.share(self._users_path)
        self._owner = os.getpid()

    def _shares(self) -> bool:
        return self._share is not None and locks.same_file(self._share, self._users_path)

    def _create(self, database: str) -> None:
        if database in self._known:
            return
        error = self.cluster.ask(database)
        if error == wire.NO_DATABASE:
            quoted = database.replace('"', '""')
            error = self.cluster.ask("postgres", f'CREATE DATABASE "{quoted}"')
        if error not in {"", wire.DATABASE_EXISTS}:
            raise LocalDatabaseError(f"cannot open or create the database {database!r} (SQLSTATE {error})")
        self._known.add(database)

    def _is_kept(self) -> bool:
        # The process id makes the wish end with the server it was made for.
        return self._kept_path.exists() and self._kept_path.read_text() == str(self.cluster.pid())

    def _fresh_thread_lock(self) -> None:
        # In a forked child too: the thread that held the parent's lock does not exist there.
        self._threads = threading.RLock()


@contextmanager
def _plain_words(place: Place):
    """Turn the operating system's refusals into sentences."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        said = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        reason = "the disk is full: no space left" if full else said
        raise LocalDatabaseError(f"{reason} ({place.base}; LOCALDB_HOME chooses another folder)") from error


_servers: dict[Place, Server] = {}
_leaving = threading.Event()


def for_profile(profile: str | None = None) -> Server:
    """Return this process's view of the profile's server; the same object each time."""
    place = Place.of(profile)
    return _servers.get(place) or _servers.setdefault(place, Server(place))


# Registered as early as the settings are read, so that it runs late: what else happens at exit still has its database.
@atexit.register
def _leave() -> None:
    _leaving.set()
    for server in list(_servers.values()):
        try:
            server.release()
        except (LocalDatabaseError, OSError, KeyboardInterrupt):
            continue  # At exit there is nobody to tell; the next clean exit stops the server.
