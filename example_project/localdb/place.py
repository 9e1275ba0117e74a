"""Where one private server keeps its things, and the account it runs under."""

import hashlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from example_project.localdb.errors import LocalDatabaseError

try:
    import pwd
except ImportError:  # Windows, where settings must still import; ensure() then says what to do.
    pwd = None

PROJECT = Path(__file__).resolve().parents[2]

#: Root's servers live here, because the account they run under can reach it and nobody else may write to it.
ROOT_HOME = Path("/var/lib/dhara-localdb")

#: The longest socket path the operating system takes, in bytes: sun_path less its closing zero.
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103


@dataclass(frozen=True)
class Place:
    """The paths of one cluster. `base` holds them all, except the socket when that path is too long."""

    base: Path
    profile: str
    user: str = "postgres"
    port: int = 5432  # Only part of the socket's name: there is no TCP port.

    @classmethod
    def of(cls, profile: str | None = None) -> "Place":
        """Return the place of `profile`, by the environment: LOCALDB_PROFILE when None, LOCALDB_HOME for the folder."""
        profile = profile or os.environ.get("LOCALDB_PROFILE") or "dev"
        if not re.fullmatch(r"\w[\w.-]{0,39}", profile, re.ASCII):
            raise LocalDatabaseError(f"LOCALDB_PROFILE must be a plain word, not {profile!r}")
        return cls(_home() / profile, profile)

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def half_made(self) -> Path:
        """Return where initdb works; a cluster counts only once it is renamed from here to `data`."""
        return self.base / "data.new"

    @property
    def log(self) -> Path:
        return self.base / "server.log"

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    @property
    def sockets(self) -> Path:
        """Return the folder of the socket: in `base`, or a short one when a client could not use that path."""
        inside = self.base / "sock"
        return inside if _usable(inside / f".s.PGSQL.{self.port}") else self._short_sockets()

    @property
    def socket(self) -> Path:
        return self.sockets / f".s.PGSQL.{self.port}"

    @property
    def durable(self) -> bool:
        """Return whether a commit must survive a power cut here; test clusters are thrown away."""
        return not self.profile.startswith(("test", "pg"))

    def account(self):
        """Return the password entry the server runs as, or None for "as we are"; PostgreSQL refuses to run as root."""
        if not _is_root():
            return None
        if self.data.exists():  # Whoever owns it stays in charge, even if a user postgres has come meanwhile.
            return pwd.getpwuid(self.data.stat().st_uid)
        return _first_account("postgres", "nobody")

    def prepare(self) -> None:
        """Make the folders that are missing and set the rights of our own; folders of others stay as they are."""
        account = self.account()
        make_folder(self.base.parent)
        if account:
            _check_way(account, self.base)
        for folder, owner in ((self.base, None), (self.sockets, account)):
            make_folder(folder)
            _own(folder, 0o700 if owner or not account else 0o711, owner)

    def _short_sockets(self) -> Path:
        # A function of nothing but the base and the user: two processes with different TMPDIR or XDG_RUNTIME_DIR
        # must not look for the same server in different folders.
        short = hashlib.sha256(os.fsencode(self.base)).hexdigest()[:12]
        if _is_root():
            return ROOT_HOME / "sock" / short
        uid = getattr(os, "getuid", int)()  # Windows has none, and gets this far only to be told so.
        return Path("/tmp") / f"dhara-localdb-{uid}-{short}"


def _first_account(*names: str):
    for name in names:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LocalDatabaseError("PostgreSQL does not run as root, and this machine has no user postgres or nobody")


def _home() -> Path:
    chosen = os.environ.get("LOCALDB_HOME")
    if chosen:
        return Path(chosen).resolve()
    if _is_root():
        return ROOT_HOME / hashlib.sha256(os.fsencode(PROJECT)).hexdigest()[:12]
    return PROJECT / ".localdb"


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _usable(socket: Path) -> bool:
    # libpq reads a comma in a host as "several hosts".
    return len(os.fsencode(socket)) <= SOCKET_PATH_LIMIT and "," not in str(socket)


def make_folder(path: Path) -> None:
    """Make the folder and what is missing above it: open to pass through under root, private otherwise."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(0o755 if _is_root() else 0o700)


def _check_way(account, base: Path) -> None:
    """Refuse a folder the server's account cannot get to; the rights of folders above it are not ours to change."""
    for folder in base.parents:
        found = folder.stat()
        if not found.st_mode & (0o100 if found.st_uid == account.pw_uid else 0o001):
            raise LocalDatabaseError(
                f"user {account.pw_name} cannot enter {folder}: set LOCALDB_HOME to another folder"
            )


def _own(path: Path, mode: int, account) -> None:
    """Give our own folder its owner and mode, also when an earlier try was killed half-way; refuse a stranger's."""
    found = path.lstat()
    wanted = account.pw_uid if account else os.geteuid()
    # Only root has an account to give to, and then the folder above is root's own: no stranger made this one.
    if path.is_symlink() or (found.st_uid != wanted and not account):
        raise LocalDatabaseError(f"{path} belongs to somebody else: remove it, or set LOCALDB_HOME to another folder")
    if found.st_uid != wanted:
        os.chown(path, account.pw_uid, account.pw_gid)
    if found.st_mode & 0o777 != mode:
        path.chmod(mode)
