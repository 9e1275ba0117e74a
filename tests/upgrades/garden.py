"""A project of its own in a temporary folder: an app `garden`, whose migrations a test writes, changes and deletes."""

import json
import sys

from tests.workers.harness import Process

_SETTINGS = """
import json, os
SECRET_KEY = "garden"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_dhara", "garden"]
DATABASES = json.loads(os.environ["GARDEN_DATABASES"])
DATABASE_ROUTERS = os.environ.get("GARDEN_ROUTERS", "").split()
TASKS = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": []}}
SILENCED_SYSTEM_CHECKS = ["dhara.W012"]  # the server of the tests may lose commits
class Apart:
    def allow_migrate(self, db, app_label, **hints):
        return app_label != "dhara"
"""
_MIGRATION = """
from django.db import migrations

class Migration(migrations.Migration):
    atomic = {atomic}
    dependencies = {dependencies!r}
    replaces = {replaces!r}
    operations = [{operation}]
"""


class Garden:
    """The project, with a database of its own for each alias."""

    def __init__(self, folder, databases):
        self.folder = folder
        self.databases = {
            alias: {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": where["dbname"],
                **{name.upper(): where[name] for name in ("host", "port", "user")},
                "CONN_MAX_AGE": 60,
            }
            for alias, where in databases.items()
        }
        self.migrations = folder / "garden" / "migrations"
        self.migrations.mkdir(parents=True)
        for package in (self.migrations.parent, self.migrations):
            (package / "__init__.py").touch()
        (folder / "garden_settings.py").write_text(_SETTINGS)
        self.processes = []
        self._last = []

    def write(self, name, operation, *, after=None, replaces=(), atomic=True):
        """A migration; `operation` is SQL, or Python from its bracket on. It comes after the one written before."""
        if operation.isupper() or " " in operation.split("(")[0]:
            operation = f"migrations.RunSQL({operation!r}, migrations.RunSQL.noop)"
        dependencies = [("garden", other) for other in (self._last[-1:] if after is None else after)]
        replaces = [("garden", other) for other in replaces]
        source = _MIGRATION.format(operation=operation, dependencies=dependencies, replaces=replaces, atomic=atomic)
        self.path(name).write_text(source)
        self._last.append(name)

    def path(self, name):
        return self.migrations / f"{name}.py"

    def change(self, name, old, new):
        source = self.path(name).read_text()
        assert old in source
        self.path(name).write_text(source.replace(old, new))

    def start(self, *words, **env):
        """Start `dhara_migrate` with these words; or `migrate`, where it is the first of them."""
        if not words or words[0] not in ("dhara_migrate", "migrate"):
            words = ("dhara_migrate", *words)
        env = {"GARDEN_DATABASES": json.dumps(self.databases), "PYTHONDONTWRITEBYTECODE": 1, **env}
        process = Process(
            [sys.executable, "-m", "django", *words],
            self.folder / f"process-{len(self.processes)}.log",
            folder=self.folder,
            settings="garden_settings",
            **env,
        )
        self.processes.append(process)
        return process

    def run(self, *words, code=0, **env):
        """The same, to its end; what it wrote."""
        process = self.start(*words, **env)
        assert process.ends(60) == code, process.log
        return process.log

    def end(self):
        for process in self.processes:
            process.kill()
            print(f"--- {process.popen.args}, exit code {process.popen.returncode}:\n{process.log}")
