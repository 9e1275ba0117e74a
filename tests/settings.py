"""Settings of the tests: the example project's apps and ours, on a PostgreSQL cluster of their own."""

import json
import os

# Before localdb reads it: a cluster apart from the demo's, without fsync.
os.environ.setdefault("LOCALDB_PROFILE", "test")

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS, TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.app"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"  # the default only since Django 6.0
DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES["default"]["CONN_MAX_AGE"] = 0
if "DATABASE_URL" not in os.environ:
    # Two test runs on one machine share the private server, but not their tables.
    DATABASES["default"]["TEST"] = {"NAME": f"test_dhara_{os.getpid()}"}
TASKS["default"]["OPTIONS"] = {"LEASE_SECONDS": 2.0, "SWEEP_SECONDS": 0.3, "POLL_SECONDS": 0.2}
if "DHARA_TEST_DB" in os.environ:
    # A worker that a test has started: on the test's database, and with all that it has to say.
    DATABASES["default"]["NAME"] = os.environ["DHARA_TEST_DB"]
    DATABASES["default"].update(json.loads(os.environ.get("DHARA_TEST_DATABASE", "{}")))
    DEBUG = os.environ.get("DHARA_TEST_DEBUG") == "1"
    LOGGING = (
        {}
        if os.environ.get("DHARA_TEST_LOGGING") == "none"
        else {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": "%(levelname)s %(name)s: %(message)s"}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"handlers": ["stderr"], "level": os.environ.get("DHARA_TEST_LOG_LEVEL", "INFO")},
        }
    )
if path := os.environ.get("DHARA_TEST_SPANS"):
    from tests.observers import trace_to

    trace_to(path)
    INSTALLED_APPS.append("django_dhara.contrib.otel")
if path := os.environ.get("DHARA_TEST_EVENTS"):
    from tests.observers import report_to

    report_to(path)
    INSTALLED_APPS.append("django_dhara.contrib.sentry")
    DHARA = {"SENTRY_ATTEMPTS": True}
