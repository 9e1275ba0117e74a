"""The metrics of real workers, as promtool, the alerts and the dashboard read them."""

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from django.test import Client
from django.urls import include, path
from prometheus_client.parser import text_string_to_metric_families

from tests.workers.harness import free_port, until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="needs promtool (apt-get install prometheus)")

urlpatterns = [path("dhara/", include("django_dhara.metrics.urls"))]


def fetch(port, what="/metrics", host="127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:{port}{what}", timeout=10) as response:
        return response.read().decode()


def samples(text):
    """Values by name and the values of some labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            labels = [
                each.labels[name] for name in ("queue", "function", "state", "kind", "session") if name in each.labels
            ]
            found[each.name, *labels, *([each.labels["le"]] if "le" in each.labels else [])] = each.value
    return found


@pytest.fixture
def scraped(crew):
    """Starts a worker, and says what it tells at the moment."""

    def start(*flags, **env):
        port = free_port()
        worker = crew.start("--metrics-port", str(port), *flags, **env)
        worker.says(f"http://127.0.0.1:{port}/metrics")
        worker.port = port
        worker.scrape = lambda: samples(fetch(port))
        return worker

    return start


@pytest.mark.fast
def test_what_happens_to_tasks_is_counted(scraped, database):
    worker = scraped()
    database.add("add", 1, queue="email")
    database.add("add", 1, queue="email")
    database.add("fail", max_attempts=1)
    database.add("enqueue_another", "child")
    until(lambda: database.states() == {"COMPLETED", "DEAD"} and database.effects("child"))
    add, fail = ("email", "tests.app.tasks.add"), ("default", "tests.app.tasks.fail")
    found = until(lambda: (now := worker.scrape()).get(("dhara_tasks_dead_total", *fail)) and now)
    assert found["dhara_tasks_completed_total", *add] == 2
    assert (found["dhara_runs_failed_total", *fail], found["dhara_tasks_completed_total", *fail]) == (1, 0)
    assert found["dhara_task_run_seconds_count", *add] == found["dhara_task_wait_seconds_count", *add] == 2
    assert found["dhara_task_run_seconds_bucket", *add, "+Inf"] == 2
    assert found["dhara_tasks_enqueued_total", "default", "tests.app.tasks.count"] == 1
    assert found["dhara_claim_seconds_count",] >= found["dhara_claim_tasks_count",] >= 1
    assert found["dhara_settle_runs_sum",] >= 4
    assert found["dhara_worker_slots", "plain"] == 10
    assert found["dhara_database_connects_total", "worker"] == 1
    assert found["dhara_database_up",] == 1
    assert found["process_resident_memory_bytes",] > 1e6


def test_what_child_processes_enqueue_is_counted_by_their_parent(scraped, database):
    worker = scraped("--processes", "2")
    for _ in range(3):
        database.add("enqueue_another", "child")
    until(lambda: database.effects("child") == 3)
    until(lambda: worker.scrape().get(("dhara_tasks_enqueued_total", "default", "tests.app.tasks.count")) == 3)


def test_counters_never_go_back_while_they_are_written(scraped, database):
    worker = scraped(DHARA_POLL_SECONDS=0.05)
    key, seen = ("dhara_tasks_completed_total", "default", "tests.app.tasks.add"), []

    def there_are(number):
        seen.append(worker.scrape().get(key, 0))
        return seen[-1] == number

    for number in (500, 1000, 1500):
        database.rows(
            "INSERT INTO dhara_task (id, backend, queue, function, payload) SELECT gen_random_uuid(), 'default', "
            """'default', 'tests.app.tasks.add', '{"args": [1], "kwargs": {}}' FROM generate_series(1, 500)"""
        )
        until(partial(there_are, number))
    until(lambda: database.value("SELECT coalesce(sum(completed), 0) FROM dhara_minute") == 1500, 20)
    seen.append(worker.scrape()[key])
    assert seen == sorted(seen)
    assert seen[-1] == 1500


def test_lost_leases_rescues_and_lost_sessions_are_counted(scraped, crew, database):
    victim = scraped("--no-reap", "--drain-timeout", "0", DHARA_LEASE_SECONDS=1)
    task = database.add("nap", "slow", 3)
    until(lambda: database.effects("slow"))
    with victim.frozen():
        until(lambda: database.value("SELECT lease_until < now() - interval '1 s' FROM dhara_task WHERE id = %s", task))
        rescuer = scraped(DHARA_LEASE_SECONDS=1)
        until(lambda: rescuer.scrape().get(("dhara_tasks_rescued_total", "default")) == 1)
        assert database.terminate("dhara worker%")
    until(lambda: victim.scrape().get(("dhara_leases_lost_total", "default")) == 1, 30)
    assert victim.scrape()["dhara_database_errors_total", "lost", "worker"] >= 1
    assert victim.scrape()["dhara_database_connects_total", "worker"] >= 2


@pytest.mark.fast
def test_the_port_answers_while_the_loop_hangs_and_the_database_is_away(scraped, database, proxy):
    worker = scraped(**proxy.env)
    assert json.loads(fetch(worker.port, "/livez"))["status"] == "ok"
    proxy.freeze()
    until(lambda: worker.scrape()["dhara_worker_silent_seconds",] > 0.3)
    proxy.refuses = True
    assert proxy.cut()
    proxy.thaw()
    until(lambda: worker.scrape()["dhara_database_up",] == 0)
    assert json.loads(fetch(worker.port, "/livez"))["status"] == "ok"


@pytest.mark.fast
def test_only_two_pages_are_there_and_strange_clients_do_no_harm(scraped, database):
    worker = scraped()
    for what in ("/", "/metrics/../../etc/passwd", "/%00"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(worker.port, what)
    for words in (b"", b"\0\0\0", b"GET /" + b"x" * 70_000 + b"\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"GET"):
        with socket.create_connection(("127.0.0.1", worker.port), 5) as client:
            client.sendall(words)
    done = database.add("add", 1)
    until(lambda: database.states(done) == ["COMPLETED"])
    assert worker.scrape()
    assert "Traceback" not in worker.log


@pytest.mark.fast
def test_a_port_in_use_is_one_line(crew):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = crew.run("dhara_worker", "--metrics-port", str(listener.getsockname()[1]))
        assert worker.ends(30) == 1
    last = worker.log.splitlines()[-1]
    assert last.startswith("CommandError: --metrics-port: cannot listen on 127.0.0.1 port ")
    assert "Traceback" not in worker.log


@pytest.mark.fast
@pytest.mark.parametrize("port", ["65536", "-1", "http", "9.5"])
def test_a_port_that_is_none_is_one_line(crew, port):
    worker = crew.run("dhara_worker", f"--metrics-port={port}")
    assert worker.ends(30) == 2
    assert "must be a port from 0 to 65535" in worker.log.splitlines()[-1]


def test_a_worker_that_drains_says_so_until_its_end(scraped, database):
    worker = scraped()
    database.add("nap", "slow", 3)
    until(lambda: database.effects("slow"))
    worker.signal(signal.SIGTERM)
    found = until(lambda: (now := worker.scrape())["dhara_worker_draining",] == 1 and now)
    assert found["dhara_worker_inflight", "running"] == 1
    assert worker.ends() == 0


# ----------------------------------------------------------------------------------------------- with Prometheus' tools


@pytest.fixture
def texts(scraped, database, settings):
    """What a worker tells that has had something to do, and what a site tells."""
    worker = scraped()
    database.add("fail", max_attempts=1)
    until(lambda: database.states() == {"DEAD"})
    settings.ROOT_URLCONF = __name__
    settings.DHARA = {"OBSERVE_NETWORKS": "127.0.0.1/32"}
    return fetch(worker.port), Client().get("/dhara/metrics").content.decode()


def promtool(*words, text=None):
    ran = subprocess.run([PROMTOOL, *words], input=text, capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.fast
@needs_promtool
def test_promtool_finds_nothing_in_the_metrics(texts):
    for text in texts:
        assert text.count("# TYPE dhara_") > 8
        ours = "".join(line for line in text.splitlines(keepends=True) if re.match(r"(# (HELP|TYPE) )?dhara_", line))
        assert promtool("check", "metrics", text=ours) == (0, "")


@pytest.mark.fast
@needs_promtool
def test_the_alerts_are_right_and_say_what_they_should():
    code, said = promtool("check", "rules", str(DEPLOY / "prometheus/dhara.rules.yml"))
    assert code == 0, said
    code, said = promtool("test", "rules", str(DEPLOY / "prometheus/dhara.test.yml"))
    assert code == 0, said


def expressions_of(rules):
    """The PromQL of a file of rules."""
    return "\n".join("".join(each) for each in re.findall(r"expr: (?:>\n((?: {10,}.*\n)+)|(.*))", rules))


def expressions():
    """The PromQL of all files that come with us, by what it is in."""
    rules = (DEPLOY / "prometheus/dhara.rules.yml").read_text()
    keda = (DEPLOY / "kubernetes/keda-prometheus.yaml").read_text()
    [query] = re.findall(r"query: \|\n((?: {10,}.*\n)+)", keda)
    series = re.findall(r"series: '([^']*)'", (DEPLOY / "prometheus/dhara.test.yml").read_text())
    return {
        "alerts": expressions_of(rules),
        "tests of the alerts": "\n".join(series),
        "dashboard": "\n".join(of_the_dashboard()),
        "keda": query,
    }


def of_the_dashboard():
    dashboard = json.loads((DEPLOY / "grafana/dhara.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return found + [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]


def there(texts):
    """The families."""
    return {name for name, _ in typed(texts)}


def typed(texts):
    return [pair for text in texts for pair in re.findall(r"^# TYPE (dhara_\w+) (\w+)", text, flags=re.MULTILINE)]


def series(texts):
    """The names that an expression can have: of a histogram those of its parts."""
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    return {f"{name}{part}" for name, kind in typed(texts) for part in parts.get(kind, ("",))}


def labels(texts):
    """Of each series that has a value, the names of its labels."""
    found = {}
    for text in texts:
        for name, inner in re.findall(r"^(dhara_\w+)(?:\{(.*)\})? ", text, flags=re.MULTILINE):
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', inner))
    return found


#: Of Prometheus itself.
ADDED = {"instance", "job"}


@pytest.mark.fast
def test_every_metric_and_label_of_what_comes_with_us_exists(texts):
    known, labeled = series(texts), labels(texts)
    for where, promql in expressions().items():
        named = set(re.findall(r"\bdhara_\w+", promql))
        assert named - known == set(), where
        assert named, where
        for name, matchers in re.findall(r"(dhara_\w+)\{([^}]*)\}", promql):
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - ADDED
            assert used <= labeled.get(name, used), f"{where}: {name}{{{matchers}}}"
    assert len(set(re.findall(r"\bdhara_\w+", expressions()["alerts"]))) > 10
    assert len(of_the_dashboard()) > 30


@pytest.mark.fast
def test_what_is_grouped_by_is_a_label(texts):
    all_labels = set().union(*labels(texts).values()) | ADDED | {"le"}
    for where, promql in expressions().items():
        for names in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", promql):
            assert set(re.split(r",\s*", names)) <= all_labels, where


@pytest.mark.fast
def test_every_metric_is_in_the_documentation(texts):
    page = (DEPLOY.parent / "docs/how-to/metrics.md").read_text()
    assert {name for name in there(texts) if f"`{name}`" not in page} == set()
    assert set(re.findall(r"`(dhara_\w+)`", page)) - there(texts) == set()


@needs_promtool
def test_expressions_of_the_dashboard_are_promql(tmp_path):
    dashboard = json.loads((DEPLOY / "grafana/dhara.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    rules = [
        {"record": f"dhara:{number}", "expr": each.replace("$__rate_interval", "5m").replace("$backend", ".*")}
        for number, each in enumerate(expressions)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, said = promtool("check", "rules", str(file))
    assert code == 0, said
