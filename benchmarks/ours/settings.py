"""Django settings of our contender: what the documentation recommends, and nothing that it leaves out."""

import os

import django
from psycopg.conninfo import conninfo_to_dict

_given = conninfo_to_dict(os.environ["BENCH_DSN"])

SECRET_KEY = "benchmark"
USE_TZ = True
INSTALLED_APPS = ["django_dhara", "benchmarks.ours"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _given["dbname"],
        "USER": _given.get("user", ""),
        "PASSWORD": _given.get("password", ""),
        "HOST": _given.get("host", ""),
        "PORT": str(_given.get("port", "")),
        "CONN_MAX_AGE": 60,
        # docs/explanation/performance.md: where no pooler shares sessions, statements need to be planned only once.
        "OPTIONS": {"server_side_binding": True, "prepare_threshold": 5},
    }
}
# The site of W9.
ROOT_URLCONF = "benchmarks.ours.urls"
ALLOWED_HOSTS = ["127.0.0.1"]
TASKS = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": []}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    # As docs/how-to/logging.md has it: Django's own loggers take INFO from the start, which is two lines for each run.
    "loggers": {"django": {"level": "WARNING"}},
}
