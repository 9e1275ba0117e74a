"""/metrics of the site, and what a process counts: bounded, never wrong when several are added up, and closed."""

import importlib
import subprocess
import sys

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import include, path
from prometheus_client.parser import text_string_to_metric_families

from django_dhara import enqueue_many, health, meter, stats, tokens
from django_dhara.metrics import queue, urls
from django_dhara.metrics.families import ProcessFamilies, of_counts
from django_dhara.metrics.queue import QueueFamilies
from django_dhara.models import Queue
from django_dhara.stats import Event, Recorder
from tests.app import tasks
from tests.rows import WORKER, a_task, ago
from tests.test_probes import worker_row

pytestmark = pytest.mark.fast

urlpatterns = [path("dhara/", include("django_dhara.metrics.urls"))]
TOKEN = "a-secret-of-the-operators"


@pytest.fixture(autouse=True)
def _fresh(settings, monkeypatch):
    settings.ROOT_URLCONF = __name__
    settings.DHARA = {"OBSERVE_TOKEN": TOKEN}
    monkeypatch.setattr(meter, "ENQUEUED", meter.Counts("backend", "queue", "function"))
    urls.registry.cache_clear()


def scrape(**headers):
    return Client().get("/dhara/metrics", headers={"Authorization": f"Bearer {TOKEN}", **headers})


def samples(text):
    """Values by name and labels, which are sorted there."""
    families = text_string_to_metric_families(text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def told(look):
    return {(each.name, *each.labels.values()): each.value for family in look.collect() for each in family.samples}


# ------------------------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("token", ["", "Bearer wrong"])
def test_the_page_is_closed_and_asks_nothing_of_the_database(token):
    response = Client().get("/dhara/metrics", headers={"Authorization": token})
    assert (response.status_code, response["Content-Type"]) == (401, "application/problem+json")
    assert b"dhara_" not in response.content


@pytest.mark.parametrize(("queues", "status"), [([], 200), (["mail"], 403)])
def test_a_token_for_some_queues_does_not_see_the_whole(db, queues, status):
    _, secret = tokens.create("prometheus", ["read"], queues=queues)
    response = Client().get("/dhara/metrics", headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == status
    assert (b"dhara_" in response.content) == (status == 200)
    if status == 403:
        assert "for some queues only" in response.json()["detail"]


def test_the_page_is_in_prometheus_own_text(db):
    worker_row()
    response = scrape()
    assert (response.status_code, response["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert samples(response.content.decode())["dhara_workers", "default", "alive"] == 1


def test_the_page_speaks_openmetrics_where_that_is_asked_for(db):
    response = scrape(Accept="application/openmetrics-text; version=1.0.0")
    assert response["Content-Type"].startswith("application/openmetrics-text")
    assert response.content.endswith(b"# EOF\n")


def test_what_is_wrong_with_a_part_leaves_out_that_part(db, monkeypatch, caplog):
    def slow(*args):
        raise stats.TooSlow

    monkeypatch.setattr(stats, "standing", slow)
    found = samples(scrape().content.decode())
    assert found["dhara_look_failed", "default", "tasks of default"] == 1
    assert found["dhara_look_failed", "default", "tables"] == 0
    assert ("dhara_workers", "default", "alive") in found
    assert "The metrics lack the tasks of default" in caplog.text


# --------------------------------------------------------------------------------------------------------- the database


@pytest.fixture
def look(db):
    return QueueFamilies(health.backends)


def test_queues_tasks_and_workers(look):
    a_task(queue="email", run_at=ago(100))
    a_task(queue="email", run_at=ago(-100))
    a_task(queue="photos", run_at=ago(5))
    a_task("DEAD")
    a_task("RUNNING")
    Queue.objects.create(backend="default", name="photos", paused_at="2026-01-01T00:00Z")
    worker_row(id=WORKER, concurrency=3)
    found = told(look)
    assert [found["dhara_tasks", "default", status] for status in ("ready", "scheduled", "running", "dead")] == [
        2,
        1,
        1,
        1,
    ]
    assert found["dhara_queue_tasks", "default", "email", "ready"] == 1
    assert found["dhara_queue_tasks", "default", "email", "scheduled"] == 1
    assert 100 <= found["dhara_queue_oldest_ready_seconds", "default", "email"] < 110
    assert (found["dhara_queue_paused", "default", "email"], found["dhara_queue_paused", "default", "photos"]) == (0, 1)
    assert (found["dhara_slots", "default", "all"], found["dhara_slots", "default", "busy"]) == (3, 1)


def test_the_table_and_the_oldest_snapshot(look, other_session):
    with transaction.atomic(using="default"), other_session.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT 1")
        cursor.execute("SELECT pg_sleep(1.1)")
        found = told(look)
        cursor.execute("ROLLBACK")
    assert found["dhara_oldest_snapshot_seconds", "default"] > 1
    assert found["dhara_table_bytes", "default", "ready index"] > 0
    assert ("dhara_table_rows", "default", "dead") in found


def test_it_looks_once_in_five_seconds(db, django_assert_num_queries):
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock = Clock()
    look = QueueFamilies(health.backends, clock)
    list(look.collect())
    with django_assert_num_queries(0):
        clock.now = 4.9
        list(look.collect())
    clock.now = 5.0
    a_task()
    assert told(look)["dhara_tasks", "default", "ready"] == 1


def test_a_look_is_a_bounded_number_of_statements(look):
    for number in range(50):
        a_task(queue=f"queue {number}")
    counter = Counter()
    with connection.execute_wrapper(counter):
        list(look.collect())
    few, counter.statements = counter.statements, 0
    for number in range(50):
        a_task(queue=f"more {number}")
    again = QueueFamilies(health.backends)
    with connection.execute_wrapper(counter):
        list(again.collect())
    assert counter.statements == few < 60


class Counter:
    def __init__(self):
        self.statements = 0

    def __call__(self, execute, *args):
        self.statements += 1
        return execute(*args)


def test_queues_beyond_the_limit_are_one(db, monkeypatch):
    monkeypatch.setattr(meter, "most_series", 2)
    for number in range(5):
        a_task(queue=f"tenant {number}")
    found = told(QueueFamilies(health.backends))
    assert found["dhara_queue_tasks", "default", meter.OTHER, "ready"] == 3
    assert sum(value for key, value in found.items() if key[0] == "dhara_queue_tasks" and key[-1] == "ready") == 5


def test_no_statement_reads_the_table_from_end_to_end(db):
    """What the statement about tables asks is in the catalogues."""
    assert "FROM dhara_task" not in queue._TABLES


# ------------------------------------------------------------------------------------------------------------- counting


def test_only_what_was_committed_is_enqueued(commits):
    with transaction.atomic():
        tasks.add.using(queue_name="email").enqueue(1)
        enqueue_many([tasks.add.using(queue_name="email").bind(number) for number in (2, 3)])
        assert meter.ENQUEUED.all() == {}
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.add.enqueue(1)
        raise ZeroDivisionError
    tasks.add.using(idempotency_key="k").enqueue(1)
    tasks.add.using(idempotency_key="k").enqueue(1)  # is there already
    assert meter.ENQUEUED.all() == {
        ("default", "email", "tests.app.tasks.add"): 3,
        ("default", "default", "tests.app.tasks.add"): 1,
    }
    assert told(ProcessFamilies())["dhara_tasks_enqueued_total", "default", "email", "tests.app.tasks.add"] == 3


def test_series_beyond_the_limit_are_one_and_nothing_goes_back(monkeypatch):
    monkeypatch.setattr(meter, "most_series", 2)
    counts = meter.Counts("backend", "queue", "function")
    for number in range(5):
        counts.add("default", f"tenant {number}", "f")
    counts.add("default", "tenant 0", "f")
    assert counts.all() == {
        ("default", "tenant 0", "f"): 2,
        ("default", "tenant 1", "f"): 1,
        ("default", "other", "other"): 3,
    }


def test_what_is_settled_is_added_up_beyond_each_flush(execute, monkeypatch):
    monkeypatch.setattr(meter, "most_series", 2)
    recorder = Recorder(WORKER)
    for round_ in (1, 2, 3):
        for name in ("a", "b", "c", "d"):
            recorder.add(Event("default", "q", name, "completed", 0.01, 0.001))
        totals = recorder.totals()
        assert {key[2]: counts.counts["completed"] for key, counts in totals.items()} == {
            "a": round_,
            "b": round_,
            "other": 2 * round_,
        }
        recorder.flush(execute)
        assert {key: counts.run_histogram for key, counts in recorder.totals().items()} == {
            key: counts.run_histogram for key, counts in totals.items()
        }


def test_labels_may_be_anything(db):
    meter.ENQUEUED.add("default", 'a"b\\c\n', "f")
    text = scrape().content.decode()
    assert samples(text)["dhara_tasks_enqueued_total", "default", "f", 'a"b\\c\n'] == 1
    assert of_counts("dhara_x", "x", meter.ENQUEUED).samples


def test_histograms_are_cumulative():
    histogram = meter.Histogram(1, 10)
    for value in (0.5, 1, 5, 100):
        histogram.observe(value)
    assert histogram.sum() == ((1, 10), [2, 1, 1], 106.5)


# -------------------------------------------------------------------------------------------------- several processes

_PROCESS = """
import sys, django
django.setup()
from django_dhara import meter
for _ in range(int(sys.argv[1])): meter.ENQUEUED.add("default", "q", "f")
from django_dhara.metrics import urls
print([s.value for f in urls.registry().collect() if f.name == "dhara_tasks_enqueued" for s in f.samples
       if s.name.endswith("_total")])
"""


def test_the_processes_of_a_site_add_up_in_the_files_of_prometheus(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    said = [
        subprocess.run(
            [sys.executable, "-c", _PROCESS, number], capture_output=True, text=True, check=True
        ).stdout.strip()
        for number in ("3", "4")
    ]
    assert said == ["[3.0]", "[7.0]"]


def test_without_prometheus_client_one_line_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("prometheus_client", "django_dhara.metrics"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(Exception, match=r"pip install 'django-dhara\[metrics\]'"):
        importlib.import_module("django_dhara.metrics.urls")
