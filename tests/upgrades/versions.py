"""The version before this one, taken from the history of the repository, and how to run either."""

import io
import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from example_project.localdb.place import PROJECT
from tests.workers import harness
from tests.workers.harness import Crew, Process

HERE = Path(__file__).parent

NAMES = ("previous", "present")


class NoHistory(Exception):
    """The commit of the version before is not here: a shallow clone, or a source package."""


def previous():
    """The tag or commit in previous.txt."""
    lines = (HERE / "previous.txt").read_text(encoding="utf-8").splitlines()
    [commit] = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return commit


def files_of(commit, folder):
    """Put everything that `commit` holds into a folder."""
    archive = subprocess.run(["git", "archive", "--format=tar", commit], cwd=PROJECT, capture_output=True)
    if archive.returncode:
        raise NoHistory(archive.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")


def newest_migration(folder):
    return max(path.stem for path in (folder / "django_dhara/migrations").glob("0*.py"))


@dataclass(frozen=True)
class Version:
    """A version of the code, on one database."""

    name: str
    folder: Path
    database: harness.Database
    logs: Path

    @property
    def _env(self):
        name = self.database.parameters["dbname"]
        return {"DATABASE_URL": harness.url_of(self.database.parameters), "DHARA_TEST_DB": name}

    def crew(self):
        folder = self.logs / self.name
        folder.mkdir(exist_ok=True)
        return Crew(folder, self.database, self.folder, **self._env)

    def migrate(self):
        """Make this version's tables."""
        migrate = self._start("manage.py", "migrate", "--run-syncdb", "-v0")
        assert migrate.ends(60) == 0, migrate.log

    def enqueue(self, queue):
        """Have this version enqueue a bit of everything, see enqueuer.py."""
        enqueuer = self._start(str(HERE / "enqueuer.py"), queue)
        assert enqueuer.ends(30) == 0, enqueuer.log
        answer = json.loads(enqueuer.log.splitlines()[-1])
        assert Path(answer["code"]).parent.parent == self.folder, "it ran other code than it was to run"
        return answer

    def _start(self, *words):
        log = self.logs / f"{self.name} {len(list(self.logs.iterdir()))}.log"
        return Process([sys.executable, *words], log, self.folder, **self._env)
