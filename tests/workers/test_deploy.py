"""The files in deploy/: each is read by its own linter, and what can be started here is started.

The linters come with `uv pip install --group deploy`, systemd and pgbouncer from Debian.
"""

import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from django_dhara.conf import Options
from django_dhara.management.commands import dhara_doctor, dhara_migrate, dhara_worker
from example_project.localdb.place import PROJECT
from tests.workers.harness import Process, until

DEPLOY = PROJECT / "deploy"
UNIT = DEPLOY / "systemd/dhara-worker@.service"
DOCUMENTS = [*DEPLOY.glob("kubernetes/*.yaml"), *DEPLOY.glob("docker/*.yaml")]
#: After the drain time, for a worker's last words.
LAST_WORDS = 4


def tool(name):
    """The path of a program, beside this Python or on the path."""
    places = [str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    return found or pytest.skip(f"needs {name}: uv pip install --group deploy, or apt-get install {name}")


def says(*words, **options):
    """What a program prints when all is well."""
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=PROJECT, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def documents(path):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: uv pip install --group deploy")
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


@pytest.fixture
def units(tmp_path):
    """The systemd units, with an interpreter that is there."""
    for path in UNIT.parent.glob("dhara-worker*"):
        text = path.read_text().replace("/srv/shop/.venv/bin/python", sys.executable)
        (tmp_path / path.name).write_text(text)
    return tmp_path


def test_systemd_finds_nothing_to_complain_of(units):
    verify = [tool("systemd-analyze"), "verify", "--man=no"]
    assert says(*verify, units / "dhara-worker@1.service", units / "dhara-worker.target") == ""


def test_the_unit_is_as_closed_as_its_page_says(units):
    page = (PROJECT / "docs/how-to/deploy/systemd.md").read_text()
    told = re.search(r"exposure at ([\d.]+) of 10", page)[1]
    security = [tool("systemd-analyze"), "security", "--offline=true", "--no-pager"]
    assert f": {told} OK" in says(*security, units / "dhara-worker@.service")


def test_hadolint_reads_the_dockerfile():
    says(tool("hadolint"), DEPLOY / "docker/Dockerfile")


def test_the_compose_file_follows_the_specification():
    schema = ["--builtin-schema", "vendor.compose-spec"]
    says(tool("check-jsonschema"), *schema, DEPLOY / "docker/compose.yaml")


@pytest.mark.parametrize("name", ["worker", "web", "migrate"])
def test_kubernetes_would_take_the_manifests(name):
    says(tool("kubernetes-validate"), "--strict", DEPLOY / f"kubernetes/{name}.yaml")


def test_keda_is_given_what_it_knows():
    """Its own schemas come with no package; these names were looked up in its repository."""
    known = {"postgresql": {"query", "targetQueryValue", "activationTargetQueryValue"}}
    known["prometheus"] = {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"}
    for path in DEPLOY.glob("kubernetes/keda-*.yaml"):
        scaled, worker = documents(path)[0], documents(DEPLOY / "kubernetes/worker.yaml")[0]
        assert scaled["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
        [trigger] = scaled["spec"]["triggers"]
        assert trigger["metadata"].keys() == known[trigger["type"]]
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert "fallback" not in scaled["spec"], "it needs AverageValue"


def test_prometheus_understands_the_query(tmp_path):
    [trigger] = documents(DEPLOY / "kubernetes/keda-prometheus.yaml")[0]["spec"]["triggers"]
    query = " ".join(trigger["metadata"]["query"].split())
    (tmp_path / "rules.yml").write_text(f"groups: [{{name: keda, rules: [{{record: 'latency', expr: '{query}'}}]}}]\n")
    assert "SUCCESS: 1 rules found" in says(tool("promtool"), "check", "rules", tmp_path / "rules.yml")


def test_yaml_is_well_formed():
    rules = "braces: {max-spaces-inside: 0}, comments: disable, document-start: disable, line-length: {max: 130}"
    says(tool("yamllint"), "--strict", "-d", f"{{extends: default, rules: {{{rules}}}}}", DEPLOY)


def test_the_procfile_is_valid():
    assert "release, web, worker, reports" in says(tool("honcho"), "check", "-f", DEPLOY / "Procfile")


def test_everybody_waits_for_longer_than_a_worker_drains():
    patience = [int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)[1])]
    compose = documents(DEPLOY / "docker/compose.yaml")[0]
    patience.append(int(compose["services"]["worker"]["stop_grace_period"].removesuffix("s")))
    worker = documents(DEPLOY / "kubernetes/worker.yaml")[0]
    patience.append(worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    assert all(seconds > Options().drain_seconds + LAST_WORDS for seconds in patience)
    ini = configparser.ConfigParser()
    ini.read(DEPLOY / "pgbouncer/pgbouncer.ini")
    assert int(ini["pgbouncer"]["query_wait_timeout"]) < Options().drain_seconds


def commands():
    """Every command of ours that is called in deploy/, as words."""
    for path in [UNIT, DEPLOY / "Procfile", DEPLOY / "docker/Dockerfile", *DOCUMENTS]:
        for line in path.read_text().splitlines():
            if not line.lstrip().startswith("#") and (found := re.search(r"manage\.py\W+(dhara_\w+[^\]#;}]*)", line)):
                yield path.name, re.sub('[",]', " ", found[1]).split()


def test_commands_and_their_flags_exist():
    modules = {"dhara_worker": dhara_worker, "dhara_migrate": dhara_migrate, "dhara_doctor": dhara_doctor}
    found = list(commands())
    assert len(found) >= 8
    for file, (name, *flags) in found:
        modules[name].Command().create_parser("manage.py", name).parse_args(flags), file


def test_variables_exist():
    code = "".join(path.read_text() for path in PROJECT.glob("django_dhara/**/*.py"))
    known = {f"DHARA_{name.upper()}" for name in Options.__dataclass_fields__} | set(re.findall(r"DHARA_[A-Z_]+", code))
    files = [UNIT, UNIT.parent / "worker.env", *DOCUMENTS, *PROJECT.glob("docs/how-to/deploy/*.md")]
    used = {name for path in files for name in re.findall(r"\bDHARA_[A-Z_]+", path.read_text())}
    assert used - known == set()


@pytest.mark.parametrize("file", ["docker/compose.yaml", "kubernetes/worker.yaml"])
def test_the_probe_tells_a_heartbeat_from_an_old_one(file, tmp_path):
    [command] = re.findall(r'"(find /run/dhara/heartbeat .*)"', (DEPLOY / file).read_text())
    beat = tmp_path / "heartbeat"
    command = command.replace("/run/dhara/heartbeat", str(beat))
    answers = [subprocess.run(command, shell=True, capture_output=True).returncode]
    beat.touch()
    answers.append(subprocess.run(command, shell=True).returncode)
    os.utime(beat, (beat.stat().st_atime, beat.stat().st_mtime - 70))
    answers.append(subprocess.run(command, shell=True).returncode)
    assert answers == [1, 0, 1]


def test_honcho_starts_a_worker_and_lets_it_drain(database, tmp_path):
    words = [tool("honcho"), "start", "-f", DEPLOY / "Procfile", "-d", PROJECT, "worker"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"DHARA_TEST_DB": database.parameters["dbname"], "DHARA_DRAIN_SECONDS": 4, "PATH": path}
    honcho = Process(words, tmp_path / "log", **env)
    try:
        task = database.add("doze", "long", 2.0)
        until(lambda: database.effects("long") == 1, 30)
        os.kill(honcho.pid, signal.SIGTERM)
        honcho.ends(20)
        assert database.states(task) == ["COMPLETED"]
        assert database.value("SELECT stopped_at IS NOT NULL AND draining_at IS NOT NULL FROM dhara_worker")
        assert "stopped." in honcho.log
    finally:
        honcho.kill()


def test_the_command_of_the_unit_drains_on_its_signal(crew, database):
    [command] = re.findall(r"^ExecStart=\S+ manage.py (.*)$", UNIT.read_text(), re.MULTILINE)
    worker = crew.start(*shlex.split(command.replace("%H:%i", "host:1"))[1:])
    assert database.value("SELECT name FROM dhara_worker") == "host:1"
    task = database.add("doze", "long", 1.0)
    until(lambda: database.effects("long") == 1)
    [name] = re.findall(r"^KillSignal=(\w+)$", UNIT.read_text(), re.MULTILINE)
    worker.signal(signal.Signals[name])
    assert worker.ends() == 0
    assert database.states(task) == ["COMPLETED"]


def test_kedas_query_is_the_latency_and_goes_along_the_index(database):
    [query] = [trigger["metadata"]["query"] for document in documents(DEPLOY / "kubernetes/keda-postgresql.yaml")
               for trigger in document["spec"].get("triggers", ())]  # fmt: skip
    assert database.value(query) == 0.0
    for queue, seconds in (("mail", 30), ("paused", 3600), ("later", -600)):
        id_ = database.add("count", queue=queue)
        database.rows("UPDATE dhara_task SET run_at = now() - make_interval(secs => %s) WHERE id = %s", seconds, id_)
    database.rows("INSERT INTO dhara_queue (backend, name, paused_at) VALUES ('default', 'paused', now())")
    assert 30 <= database.value(query) < 60
    database.rows(
        "INSERT INTO dhara_task (id, backend, queue, function, payload, priority)"
        " SELECT gen_random_uuid(), 'default', 'mail', 'x', '{}', n %% 3 FROM generate_series(1, %s) AS n",
        20_000,
    )
    database.rows("ANALYZE dhara_task")
    plan = "\n".join(line for (line,) in database.rows(f"EXPLAIN {query}"))
    assert "dhara_task_ready" in plan
    assert "Seq Scan on dhara_task" not in plan


def test_the_servers_settings_are_taken(database):
    lines = re.findall(r"^(\w+) = (\S+)$", (DEPLOY / "postgresql/dhara.conf").read_text(), re.MULTILINE)
    assert len(lines) >= 5
    database.rows("SELECT pg_reload_conf()")
    for name, value in lines:
        database.rows(f"ALTER SYSTEM SET {name} = '{value}'")  # refused if there is none, or not of its kind
        database.rows(f"ALTER SYSTEM RESET {name}")


def test_pgbouncer_takes_its_file_and_a_worker_works_behind_it(crew, database, pooler):
    where, text = database.parameters, (DEPLOY / "pgbouncer/pgbouncer.ini").read_text()
    leads = f"{where['dbname']} = host={where['host']} port={where['port']} user={where['user']}"
    changes = {"shop = ": leads, "listen_port": f"listen_port = {pooler.port}", "auth_type": "auth_type = any"}
    changes["auth_file"] = "unix_socket_dir ="
    for line, value in changes.items():
        text = re.sub(rf"^{line}.*$", value, text, flags=re.MULTILINE)
    pooler.use(text)
    worker = crew.start("--poll-interval", "30", **pooler.env, DHARA_LISTEN_DSN=psycopg.conninfo.make_conninfo(**where))
    task = database.add("count", "behind")
    until(lambda: database.states(task) == ["COMPLETED"])  # long before a poll
    assert "LISTEN hears nothing" not in worker.log
    assert worker.stop() == 0
