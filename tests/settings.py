"""Settings of the tests: the example project's apps and ours, on a PostgreSQL cluster of their own."""

import os

# Before localdb reads it: a cluster apart from the demo's, without fsync.
os.environ.setdefault("LOCALDB_PROFILE", "test")

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS, TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.app"]
DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES["default"]["CONN_MAX_AGE"] = 0
if "DATABASE_URL" not in os.environ:
    # Two test runs on one machine share the private server, but not their tables.
    DATABASES["default"]["TEST"] = {"NAME": f"test_dhara_{os.getpid()}"}
TASKS["default"]["OPTIONS"] = {"LEASE_SECONDS": 2.0, "SWEEP_SECONDS": 0.3, "POLL_SECONDS": 0.2}
