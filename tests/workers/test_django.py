"""Workers beside Django: tests, databases, routers, scripts."""

from threading import Thread

import pytest
from django.db import connection

from django_dhara.compat import task_backends
from django_dhara.lifecycle import Wanted
from django_dhara.worker import Worker
from tests.app.tasks import acount, count
from tests.workers.harness import Database, until

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL (%s)"


def test_a_worker_in_a_thread_of_a_test_leaves_no_session_and_the_database_can_be_dropped(database):  # J08
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        mine = [cursor.fetchone()[0], database.connection.info.backend_pid]
    backend = task_backends["default"]
    for n in range(10):
        count.enqueue(f"plain {n}")
        acount.enqueue(f"async {n}")
    worker = Worker(backend, backend.settings, Wanted("default"))
    thread = Thread(target=worker.run)
    thread.start()
    until(lambda: database.states() == {"COMPLETED"})
    assert database.value(SESSIONS, mine) > 0, "the worker had no session"
    worker.stop()
    thread.join(20)
    assert (thread.is_alive(), worker.exit_code) == (False, 0)
    # Threads close what they have when they end, a moment after the worker has returned at the latest.
    until(lambda: database.value(SESSIONS, mine) == 0, 5)


class Two:
    """The test's database and another one, which holds the queue."""

    def __init__(self, database):
        self.default, self._name = database, f"{database.parameters['dbname']}_queue"
        self._drop()
        database.rows(f'CREATE DATABASE "{self._name}"')
        self.env = {"DJANGO_SETTINGS_MODULE": "tests.app.two_databases", "DHARA_TEST_QUEUE_DB": self._name}
        self.queue = None

    def connect(self):
        self.queue = Database(**{**self.default.parameters, "dbname": self._name})

    def close(self):
        if self.queue is not None:
            self.queue.close()
        self._drop()

    def _drop(self):
        self.default.rows(f'DROP DATABASE IF EXISTS "{self._name}" WITH (FORCE)')


@pytest.fixture
def two(database, crew):
    two = Two(database)
    migrated = crew.run("migrate", "--database", "queue", "-v0", **two.env)
    assert migrated.ends(60) == 0, migrated.log
    two.connect()
    yield two
    crew.end()
    two.close()


ENQUEUE = """
from django.db import transaction
from django_dhara import cancel, revive
from tests.app.tasks import count
count.enqueue("kept")
try:
    with transaction.atomic(using="queue"):
        count.enqueue("rolled back")
        raise ValueError
except ValueError:
    pass
with transaction.atomic(using="queue"):
    count.enqueue("committed")
canceled = count.using(run_after=__import__("datetime").timedelta(hours=1)).enqueue("canceled")
with transaction.atomic(using="queue"):
    print("answer", cancel(canceled.id), revive(canceled.id), cancel(canceled.id))
print("state", count.get_result(canceled.id).state)
"""
ADMIN = """
from django.contrib.auth.models import User
from django.test import Client
from django_dhara.models import Task
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("operator"))
task = Task.objects.using("queue").filter(state="CANCELED").get()
page = client.get("/admin/dhara/task/")
print("list", page.status_code, str(task.id) in page.content.decode())
data = {"action": "retry", "_selected_action": [str(task.id)], "confirmed": "yes"}
print("retry", client.post("/admin/dhara/task/", data).status_code)
"""


def shell(crew, two, code):
    ran = crew.run("shell", "-c", code, **two.env)
    assert ran.ends(30) == 0, ran.log
    return ran.log


def start(crew, two):
    worker = crew.run("dhara_worker", **two.env)
    until(lambda: two.queue.rows("SELECT id FROM dhara_worker WHERE pid = %s", worker.pid) or not worker.lives, 30)
    assert worker.lives, worker.log
    return worker


def test_the_queue_may_live_in_another_database_than_the_rest(crew, two):  # J14, F05
    worker = start(crew, two)
    log = shell(crew, two, ENQUEUE)
    assert "answer canceled True canceled" in log
    assert "state CANCELED" in log
    until(lambda: sorted(two.queue.rows("SELECT state FROM dhara_task")) == [("CANCELED",), *[("COMPLETED",)] * 2])
    log = shell(crew, two, ADMIN)
    assert "list 200 True" in log
    assert "retry 302" in log
    until(lambda: two.queue.states() == {"COMPLETED"})
    marks = {task for (task,) in two.default.rows("SELECT task FROM app_effect")}
    assert marks == {"kept", "committed", "canceled"}
    assert two.default.value("SELECT count(*) FROM dhara_task") == 0, "the queue is elsewhere"
    prune = crew.run("dhara_prune", "--completed-days", "0", **two.env)
    assert prune.ends(30) == 0, prune.log
    assert "COMPLETED: 3 deleted" in prune.log
    assert worker.stop() == 0
