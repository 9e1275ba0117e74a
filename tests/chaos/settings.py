"""Settings of the processes of a chaos run; `CHAOS` in the environment says what the run is (see `plan.py`)."""

import os

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS, TASKS

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos.app"]
DATABASES["default"].setdefault("OPTIONS", {})["application_name"] = f"chaos {os.environ.get('CHAOS_ROLE', 'tool')}"
DATABASES["default"]["OPTIONS"]["connect_timeout"] = 3
DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
TASKS["default"]["OPTIONS"] = {"BACKOFF_BASE_SECONDS": 0.2, "BACKOFF_CAP_SECONDS": 2.0, "DRAIN_SECONDS": 3.0}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"django_dhara": {"level": "INFO"}},
}
