"""A `lab` per test: a folder of its own, processes that use the server in it, and nothing left afterwards."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from example_project.localdb.cluster import Cluster
from example_project.localdb.place import PROJECT, Place

ROOT = os.geteuid() == 0

#: A process that uses the server: it says "up" when it does, again for every line it reads, and ends with its input.
USER = """
import sys
from example_project.localdb import server
local = server.for_profile()
local.ensure("dhara")
print("up", flush=True)
for line in sys.stdin:
    local.ensure("dhara")
    print("up", flush=True)
"""

#: The smallest Django project on the engine; `django.setup()` is done when the code after it runs.
DJANGO = """
import sys
from django.conf import settings
from example_project import localdb
settings.configure(
    DATABASES={"default": localdb.database()},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
import django
django.setup()
from django.core.management import call_command, execute_from_command_line
from django.db import connection
"""


class Lab:
    """One cluster in `home`, and the processes of one test."""

    def __init__(self, home: Path, profile: str = "test") -> None:
        self.home = home
        self.processes: list[subprocess.Popen] = []
        self.cluster = Cluster(Place(home / profile, profile))
        self.base = self.cluster.place.base
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "DATABASE_URL", "DJANGO"))}
        self.env |= {"LOCALDB_HOME": str(home), "LOCALDB_PROFILE": profile, "PYTHONPATH": str(PROJECT)}

    def spawn(self, code: str, **env: str) -> subprocess.Popen:
        """Start a Python process in a group of its own, so that a test can kill it with everything it started."""
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=self.env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def user(self) -> subprocess.Popen:
        """Return a process that uses the server, and whose server answers."""
        process = self.spawn(USER)
        heard(process)
        return process

    def run(self, code: str, **env: str) -> str:
        """Run Python code to its clean end and return what it printed."""
        process = self.spawn(code, **env)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess:
        """Run `python -m example_project.localdb`."""
        command = [sys.executable, "-m", "example_project.localdb", *words]
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=60, check=False)

    def is_up(self) -> bool:
        return self.cluster.reply() == "ready"

    def postmasters(self) -> list[int]:
        """Return every postmaster on this lab's data, counted from outside."""
        listing = subprocess.run(["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
        lines = (line.split(None, 1) for line in listing.splitlines() if f"-D {self.cluster.place.data}" in line)
        return [int(pid) for pid, args in lines if args.split()[0].endswith("postgres")]

    def kill_server(self) -> int:
        """End the postmaster as a power cut would, wait until its backends are gone too, and return its late pid."""
        pid = self.cluster.pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.cluster.pid() is None)
        return pid

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()
        end(*self.postmasters())
        shutil.rmtree(self.home, ignore_errors=True)
        if not self.cluster.place.sockets.is_relative_to(self.home):
            shutil.rmtree(self.cluster.place.sockets, ignore_errors=True)


def end(*postmasters: int) -> None:
    """End servers at once, but not by SIGKILL: after that nobody frees their shared memory when their data is gone."""
    for pid in postmasters:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
    for pid in postmasters:
        until(lambda pid=pid: not _lives(pid))


def _lives(pid: int) -> bool:
    state = subprocess.run(["ps", "-p", str(pid), "-o", "stat="], capture_output=True, text=True, check=False).stdout
    return bool(state) and not state.startswith("Z")


def heard(process: subprocess.Popen, word: str = "up") -> None:
    """Wait for the process to say `word`."""
    line = process.stdout.readline()
    assert line == f"{word}\n", line or process.stderr.read()


def leave(process: subprocess.Popen) -> None:
    """Let the process end cleanly."""
    process.stdin.close()
    assert process.wait(timeout=60) == 0, process.stderr.read()


def until(condition, seconds: float = 20) -> None:
    """Wait for something another process does, and fail when it does not."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)


def _roomy_memory() -> Path | None:
    """Return the folder kept in memory, if it holds a few clusters: a cluster is a thousand small files."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 1_000_000_000 else None


@contextmanager
def _home():
    folder = Path(tempfile.mkdtemp(prefix="localdb-", dir=_roomy_memory())).resolve()
    folder.chmod(0o711 if ROOT else 0o700)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def home():
    """Return an empty folder the server's account can get to; pytest's own tmp_path is closed to it under root."""
    with _home() as folder:
        yield folder


@pytest.fixture(scope="session")
def made_once():
    """Return a cluster that was made and stopped, to copy: initdb is what most tests would spend their time on."""
    with _home() as folder:
        lab = Lab(folder)
        leave(lab.user())
        yield lab.base
        lab.close()


@pytest.fixture
def empty_lab(home):
    """Return a lab where nobody has started anything yet."""
    made = Lab(home)
    yield made
    made.close()


@pytest.fixture
def lab(empty_lab, made_once):
    """Return a lab whose cluster is made, and stopped."""
    subprocess.run(["cp", "-a", made_once, empty_lab.base], check=True)
    return empty_lab


@pytest.fixture
def account(lab):
    """Return the user id the server runs as."""
    found = lab.cluster.place.account()
    return found.pw_uid if found else os.geteuid()
