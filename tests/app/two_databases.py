"""Settings of a project whose queue lives in a database of its own."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, TASKS

DATABASES["queue"] = {**DATABASES["default"], "NAME": os.environ["DHARA_TEST_QUEUE_DB"]}
TASKS["default"]["OPTIONS"]["DATABASE"] = "queue"


class Router:
    """What belongs to the queue is there, everything else is not."""

    def db_for_read(self, model, **hints):
        return "queue" if model._meta.app_label == "dhara" else "default"

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return app_label == "dhara" if db == "queue" else None


DATABASE_ROUTERS = ["tests.app.two_databases.Router"]
