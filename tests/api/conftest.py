"""Callers of the API, and everything that it could change."""

import json
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.db import connection
from django.test import Client

from django_dhara import tokens

BASE = "/dhara/api/v1"


class Api:
    """Speaks JSON to the API, as somebody.

    Args:
        secret: of a token.
    """

    def __init__(self, secret="", client=None, **headers):
        self.client = client or Client(enforce_csrf_checks=True, raise_request_exception=False)
        self.headers = {**({"Authorization": f"Bearer {secret}"} if secret else {}), **headers}

    def __call__(self, method, path, body=None, *, data=None, content_type="application/json", **headers):
        """A call; `body` becomes JSON, `data` is sent as it is."""
        sent = {} if body is None and data is None else {"data": json.dumps(body) if data is None else data}
        return self.client.generic(
            method, f"{BASE}{path}", **sent, content_type=content_type, headers={**self.headers, **headers}
        )

    def get(self, path, **headers):
        return self("GET", path, **headers)

    def post(self, path, body=None, **headers):
        return self("POST", path, body, **headers)

    def delete(self, path):
        return self("DELETE", path)


def a_secret(*scopes, **options):
    """The text of a new token."""
    return tokens.create(f"test {uuid4().hex[:6]}", scopes or tokens.SCOPES, **options)[1]


def a_session(*permissions):
    """A client logged in as a user with these permissions, and its CSRF token."""
    user = User.objects.create_user(f"user{uuid4().hex[:8]}")
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(user)
    return client


def problem(response, status, field=None):
    """The problem document of an answer, which has this status and names this field."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:django-dhara:problem:")
    assert field is None or document["field"] == field, document
    assert "Traceback" not in response.content.decode()
    return document


def rows():
    """Every row of ours, by model, but for the time at which a token was used."""
    models = {model._meta.db_table: model.__name__ for model in apps.get_app_config("dhara").get_models()}
    parts = [f"SELECT '{table}', to_jsonb(row) - 'used_at' FROM {table} AS row" for table in models]
    found = {name: [] for name in models.values()}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM ({' UNION ALL '.join(parts)}) AS all_rows ORDER BY 1, 2")
        for table, row in cursor.fetchall():
            found[models[table]].append(row)
    return found


@pytest.fixture(autouse=True)
def _no_failures_yet():
    cache.clear()


@pytest.fixture
def api(db):
    """Somebody who may do everything."""
    return Api(a_secret())
