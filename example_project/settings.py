"""Settings of the example project: a small shop whose receipts are sent by tasks.

`DATABASE_URL` names a PostgreSQL that is there already; without it the first connection starts a private one.
"""

from pathlib import Path

import django
import environ

from example_project import localdb

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

# A key for a demo on one machine; a real site takes it from its environment.
SECRET_KEY = env.str("SECRET_KEY", default="demo-only")
DEBUG = env.bool("DEBUG", default=True)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_dhara",
    "example_project.shop",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

ROOT_URLCONF = "example_project.urls"
DATABASES = {"default": env.db("DATABASE_URL") if "DATABASE_URL" in env.ENVIRON else localdb.database()}
# Executor threads keep their connections between tasks.
DATABASES["default"].setdefault("CONN_MAX_AGE", 60)

TASKS = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "QUEUES": [], "OPTIONS": {}}}

STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
