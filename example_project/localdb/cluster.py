"""One cluster on disk: made, started, asked, stopped. Who may do that, and when, is server.py's business."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from example_project.localdb import binaries, wire
from example_project.localdb.errors import LocalDatabaseError
from example_project.localdb.place import Place

#: A crash recovery takes as long as it takes; this only ends the wait for a frozen server.
_START_LIMIT_S = 600
#: How long the backends of a killed postmaster may keep its shared memory.
_LEFTOVERS_S = 15
_PAUSE_S = 0.02
_LOG_LIMIT = 8_000_000

#: Complaints of a new server that another try may not meet.
_PASSING = ("shared memory block", "already exists", "is empty")
_FULL = ("No space left on device", "Disk quota exceeded")

#: What every cluster runs with. `max_connections`: tests and workers open many at once.
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "lc_messages": "C",
}
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Cluster:
    """The cluster at `place`. Every method but `reply`, `pid` and `ask` is for the holder of the start/stop lock."""

    def __init__(self, place: Place) -> None:
        self.place = place
        #: More of PostgreSQL's settings, or others than `_SETTINGS`, from the next start on.
        self.settings: dict[str, str] = {}
        #: More of the environment of its programs.
        self.environment: dict[str, str] = {}

    def ask(self, database: str, sql: str = "") -> str:
        """Return the SQLSTATE the server answers with, "" for all well; OSError when nobody answers."""
        return wire.ask(self.place.socket, self.place.user, database, sql)

    def reply(self) -> str:
        """Return "ready", "busy" (somebody is there, but not yet) or "absent", by asking the server."""
        try:
            return "busy" if self.ask("postgres") == wire.STARTING else "ready"
        except (FileNotFoundError, ConnectionRefusedError):
            return "absent"
        except OSError:
            return "busy"

    def pid(self) -> int | None:
        """Return the process id of our server, or None. A number in postmaster.pid alone proves nothing."""
        try:
            pid = int(self.place.pid_file.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return pid if self._is_ours(pid) else None

    def start(self, programs: Path, lock: int) -> None:
        """Return once the server answers: make the cluster if there is none, wait for a server that is on its way."""
        if not self.place.data.exists():
            self._make(programs, lock)
        give_up = time.monotonic() + _LEFTOVERS_S
        while not self._came_up(programs):
            if time.monotonic() > give_up:
                raise self._failure("the server does not start", self._log_tail())
            time.sleep(_PAUSE_S * 5)

    def stop(self) -> None:
        """End the server if it runs: politely, then less so."""
        pid = self.pid()
        for word, patience in ((signal.SIGINT, 60), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
            if not pid or self._ended(pid, word, patience):
                return

    # Making it

    def _make(self, programs: Path, lock: int) -> None:
        """Run initdb aside and rename the result, so that a cluster is whole or not there."""
        half = self.place.half_made
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(mode=0o700)
        account = self.place.account()
        if account:
            os.chown(half, account.pw_uid, account.pw_gid)
        # initdb keeps the lock: if we are killed, nobody clears the folder under an initdb that still writes to it.
        run = self._run([*self._initdb(programs), "-D", half], capture_output=True, text=True, pass_fds=[lock])
        if run.returncode:
            shutil.rmtree(half, ignore_errors=True)
            raise self._failure("initdb failed", run.stderr)
        half.rename(self.place.data)

    def _initdb(self, programs: Path) -> list:
        version = binaries.major(programs)
        # Not --no-locale: upper() would know ASCII only, and `icontains` would miss "ÉCOLE".
        system = "C.UTF-8" if sys.platform == "linux" else "C" if version >= 17 else "en_US.UTF-8"
        command = [programs / "initdb", f"--username={self.place.user}", "--encoding=UTF8", f"--locale={system}"]
        command += ["--auth-local=trust", "--auth-host=reject", "--lc-messages=C"]
        if version >= 17:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        return command if self.place.durable else [*command, "--no-sync"]

    # Starting it

    def _came_up(self, programs: Path) -> bool:
        """Wait for the running server or a new one; False when it ended and another try makes sense."""
        running = self.pid()
        if running:
            return self._await(running)
        self._clear()
        self._check_version(programs)
        mark = self._log_size()
        if self._await(self._launch(programs)):
            return True
        tail = self._log_tail(mark)
        # Either the backends of a killed postmaster are still leaving, or a server that a killed process had just
        # launched was faster than ours. All else is an error.
        if any(word in tail for word in _PASSING) or self.pid():
            return False
        raise self._failure("the server does not start", tail)

    def _await(self, pid: int) -> bool:
        """Return True when the server answers, False when it ended without."""
        give_up = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < give_up:
            said_ready = self._says_ready()  # Before asking: it may become ready while we look.
            reply = self.reply()
            if reply == "ready":
                return True
            if not self._is_ours(pid):
                return False
            if reply == "absent" and said_ready:
                # Its socket is gone (somebody cleaned up): nobody can reach it, not even to wait for it.
                self.stop()
                return False
            time.sleep(_PAUSE_S)
        raise LocalDatabaseError(f"the server (process {pid}) does not answer after {_START_LIMIT_S} s")

    def _says_ready(self) -> bool:
        try:
            return self.place.pid_file.read_text().split("\n")[7].strip() == "ready"
        except (OSError, IndexError):
            return False

    def _clear(self) -> None:
        """Remove what a dead server left: its pid may be another program's by now, and PostgreSQL would believe it."""
        socket = self.place.socket
        for left in (self.place.pid_file, socket, socket.with_name(socket.name + ".lock")):
            left.unlink(missing_ok=True)

    def _check_version(self, programs: Path) -> None:
        made = (self.place.data / "PG_VERSION").read_text().strip()
        have = binaries.major(programs)
        if made != str(have):
            raise LocalDatabaseError(
                f"{self.place.data} was made by PostgreSQL {made} and the programs are version {have}: "
                "remove that folder, or point LOCALDB_BIN at the old version, or set another LOCALDB_PROFILE"
            )

    def _launch(self, programs: Path) -> int:
        """Start postgres as nobody's child, in a session of its own, and return its process id."""
        # Through a shell that ends at once: as our child it would be a zombie after its death, and Ctrl-C in our
        # terminal would reach it.
        script = 'exec "$@" >&2 & echo $!'
        with self._open_log() as log:
            run = self._run(
                ["/bin/sh", "-c", script, "sh", *self._postgres(programs)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return int(run.stdout)

    def _postgres(self, programs: Path) -> list:
        settings = {**_SETTINGS, **({} if self.place.durable else _FAST), **self.settings}
        settings["unix_socket_directories"] = '"' + str(self.place.sockets).replace('"', '""') + '"'
        settings["port"] = str(self.place.port)
        if binaries.has_library(programs, "pg_stat_statements"):
            settings["shared_preload_libraries"] = "pg_stat_statements"
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [programs / "postgres", "-D", self.place.data, *options]

    def _open_log(self):
        if self._log_size() > _LOG_LIMIT:
            self.place.log.replace(self.place.log.with_suffix(".old.log"))
        self.place.log.touch(mode=0o600)
        return self.place.log.open("ab")

    def _run(self, command: list, **options) -> subprocess.CompletedProcess:
        """Run a PostgreSQL program as the server's account, blind to the user's PG* variables and language."""
        foreign = ("PG", "LC_", "LANG")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {"LC_ALL": "C"}
        environment |= self.environment
        account = self.place.account()
        if account:
            options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        return subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, env=environment, cwd=self.place.base, umask=0o077, **options
        )

    # Stopping it

    def _ended(self, pid: int, word: signal.Signals, patience: float) -> bool:
        try:
            os.kill(pid, word)
        except ProcessLookupError:
            return True
        give_up = time.monotonic() + patience
        while time.monotonic() < give_up:
            if not self._is_ours(pid):
                return True
            time.sleep(_PAUSE_S)
        return False

    def _is_ours(self, pid: int) -> bool:
        """Return whether process `pid` is a postgres on our data, by its command line."""
        data = os.fsencode(self.place.data)
        if Path("/proc/self/cmdline").exists():
            words = _command_line(pid)
            return data in words and any(word.endswith(b"/postgres") for word in words)
        line = subprocess.run(["ps", "-ww", "-p", str(pid), "-o", "args="], capture_output=True, check=False).stdout
        return b"postgres" in line and b" " + data + b" " in line

    # Telling what went wrong

    def _failure(self, what: str, said: str) -> LocalDatabaseError:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = [line for line in lines if any(word in line for word in ("FATAL", "PANIC", "rror"))]
        if any(word in said for word in _FULL) or self._is_full():
            return LocalDatabaseError(f"the disk is full: no space left for {self.place.base}; free some and try again")
        return LocalDatabaseError(
            f"{what}: {' '.join((telling or lines)[-1:]) or 'no reason given'} ({self.place.log})"
        )

    def _is_full(self) -> bool:
        return shutil.disk_usage(self.place.base).free < 1_000_000

    def _log_size(self) -> int:
        return self.place.log.stat().st_size if self.place.log.exists() else 0

    def _log_tail(self, since: int = 0) -> str:
        with self.place.log.open("rb") as log:
            log.seek(max(since, self._log_size() - 20_000))
            return log.read().decode(errors="replace")


def _command_line(pid: int) -> list[bytes]:
    """Return the words of a live process; none when it is dead."""
    try:
        for _ in range(25):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words != [b""] or Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] in b"ZX":
                return words
            # It shows no words for an instant of its exec, when it is not dead, and of its exit, when it is not yet.
            time.sleep(_PAUSE_S)
    except OSError:
        pass
    return []
