"""The database is away, behind, or read-only: 503 with Retry-After, and no word of why."""

import threading

import pytest
from django.db import connection, connections

from tests.api.conftest import Api, a_secret, a_session, problem
from tests.api.test_access import CALLS
from tests.workers.harness import free_port

pytestmark = pytest.mark.usefixtures("commits")


def in_a_thread(work):
    """Do it where no connection is open yet."""
    found = []

    def run():
        try:
            found.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", ["enqueue_task", "list_tasks", "list_queues", "get_stats", "cancel_task"])
def test_without_a_database_every_call_is_503(monkeypatch, caplog, name):
    secret = a_secret()
    session = a_session("view_task", "view_queue", "view_worker")
    engine, nowhere = type(connections["default"]), {"host": "127.0.0.1", "port": free_port()}
    parameters = engine.get_connection_params
    monkeypatch.setattr(engine, "get_connection_params", lambda self: {**parameters(self), **nowhere})
    method, path, body, *_ = CALLS[name]
    path = path.format(pending="00000000-0000-4000-8000-000000000001")
    for caller in (Api(secret), Api(client=session) if method == "GET" else Api(secret)):
        response = in_a_thread(lambda caller=caller: caller(method, path, body))
        assert response["Retry-After"] == "2"
        document = problem(response, 503)
        assert "127.0.0.1" not in str(document)
    [told] = [record for record in caplog.records if record.name == "django_dhara.api"]  # for all of these calls
    assert (told.levelname, told.dhara_event) == ("WARNING", "api.unavailable")
    assert secret not in caplog.text


def test_a_session_that_only_reads_is_503():
    api = Api(a_secret())
    assert api.get("/tasks").status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        problem(api.post("/tasks", {"type": "tests.app.tasks.add", "payload": {"a": 1}}), 503)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET default_transaction_read_only")


def test_tables_that_are_not_there_yet_are_503():
    api = Api(a_secret())
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE dhara_bulk_change RENAME TO dhara_bulk_change_away")
    try:
        problem(api.post("/tasks/cancel", {"status": "PENDING"}), 503)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE dhara_bulk_change_away RENAME TO dhara_bulk_change")
