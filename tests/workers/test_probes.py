"""Probes of real workers: an idle one is well, one that stands still is not, and an outage is nobody's death."""

import json
import os
import subprocess
import time

import pytest

from django_dhara.worker.pulse import Pulse
from tests.workers.harness import for_as_long_as, until

pytestmark = pytest.mark.fast


def ask(crew, *flags, **env):
    """Run `dhara_health`; returns its exit code and its only line."""
    command = crew.run("dhara_health", *flags, **env)
    code = command.ends(30)
    [line] = command.log.splitlines()
    return code, line


def is_fresh(path, seconds):
    """The probe of a container that has a shell, as the documentation has it."""
    script = f"test $(( $(date +%s) - $(stat -c %Y {path}) )) -lt {seconds}"
    return subprocess.run(["sh", "-c", script], stderr=subprocess.DEVNULL).returncode == 0


def test_health_answers_in_one_line(crew):
    assert ask(crew) == (
        0,
        "ok: database 'default' answers; migrations of database 'default': all that are needed are applied",
    )
    code, line = ask(crew, "--worker", "--format", "json")
    assert code == 1
    told = json.loads(line)
    assert told["status"] == "failed"
    assert {"name": "worker", "status": "failed", "reason": "there is no worker of default"} in told["checks"]


def test_an_idle_worker_is_well_and_one_that_stands_still_is_not(crew, database, tmp_path):
    file = tmp_path / "beat"
    worker = crew.start("--name", "w1", "--heartbeat-file", str(file), DHARA_LEASE_SECONDS=3)
    until(lambda: json.loads(file.read_text()) == {"pid": worker.pid})
    before = file.stat().st_mtime
    until(lambda: file.stat().st_mtime > before + 1)  # it has nothing to do, and turns
    who = ("--worker", f"{os.uname().nodename}:{worker.pid}")
    assert ask(crew, *who)[0] == ask(crew, "--worker", "w1", "--queue", "any")[0] == 0
    assert ask(crew, "--heartbeat-file", str(file), "--max-age", "3")[0] == 0
    assert is_fresh(file, 4)
    with worker.frozen():
        until(lambda: database.value("SELECT now() - heartbeat_at > interval '3 s' FROM dhara_worker"))
        until(lambda: not is_fresh(file, 4))
        code, line = ask(crew, *who)
        assert (code, "has given no sign of life for" in line) == (1, True)
        code, line = ask(crew, "--heartbeat-file", str(file), "--max-age", "3")
        assert (code, line.startswith("failed: the control loop has not turned since")) == (1, True)
    until(lambda: is_fresh(file, 3))
    until(lambda: ask(crew, *who)[0] == 0)


def test_a_heartbeat_goes_on_while_functions_are_busy_and_the_database_is_away(crew, database, proxy, tmp_path):
    file = tmp_path / "beat"
    worker = crew.start("--heartbeat-file", str(file), "--concurrency", "2", **proxy.env)
    database.add("spin", "busy", 4)
    until(lambda: database.effects("busy"))
    proxy.refuses = True
    assert proxy.cut()
    worker.says("has lost the database")
    for_as_long_as(4, lambda: time.time() - file.stat().st_mtime < 3)


def test_a_heartbeat_goes_on_between_rare_polls(crew, tmp_path):
    file = tmp_path / "beat"
    crew.start("--heartbeat-file", str(file), "--no-reap", DHARA_POLL_SECONDS=60, DHARA_LEASE_SECONDS=600)
    for_as_long_as(8, lambda: time.time() - file.stat().st_mtime < 7)


def test_the_heartbeat_file_is_gone_with_its_worker(crew, tmp_path):
    file = tmp_path / "beat"
    file.write_text('{"pid": 1}\n')
    worker = crew.start("--heartbeat-file", str(file))
    assert json.loads(file.read_text()) == {"pid": worker.pid}
    assert worker.stop() == 0
    assert not file.exists()
    code, line = ask(crew, "--heartbeat-file", str(file))
    assert (code, "there is no heartbeat file" in line) == (1, True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("beat")] == []


def test_a_heartbeat_file_that_goes_away_comes_back(crew, tmp_path):
    file = tmp_path / "beat"
    crew.start("--heartbeat-file", str(file))
    file.unlink()
    until(file.exists)


def test_a_heartbeat_file_that_cannot_be_written_is_one_line(crew, tmp_path):
    worker = crew.run("dhara_worker", "--heartbeat-file", str(tmp_path / "nowhere" / "beat"))
    assert worker.ends(30) == 1
    assert "CommandError: --heartbeat-file" in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "link", "link to nowhere"])
def test_what_is_no_heartbeat_file_is_left_alone(tmp_path, kind):
    """A worker that runs as root could replace anything."""
    path, other = tmp_path / "beat", tmp_path / "other"
    other.write_text("root:x:0:0:")
    make = {
        "file": lambda: path.write_text("root:x:0:0:"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(other),
        "link to nowhere": lambda: path.symlink_to(tmp_path / "nowhere"),
    }
    make[kind]()
    before = path.lstat()
    with pytest.raises(ValueError, match="no heartbeat file"):
        Pulse(str(path)).begin()
    assert path.lstat()[:8] == before[:8]
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_an_empty_file_and_that_of_an_earlier_worker_are_replaced(tmp_path):
    path = tmp_path / "beat"
    for before in ("", '{"pid": 1}\n'):
        path.write_text(before)
        Pulse(str(path)).begin()
        assert json.loads(path.read_text()) == {"pid": os.getpid()}


def test_a_database_that_is_away_is_told_in_time(crew, database, proxy):
    proxy.refuses = True
    code, line = ask(crew, **proxy.env)
    assert (code, line.startswith("failed: database 'default' does not answer: ")) == (1, True)
    proxy.refuses = False
    proxy.freeze()
    began = time.monotonic()
    code, line = ask(crew, "--timeout", "1", **proxy.env)
    assert (code, line.startswith("failed: database 'default' does not answer: ")) == (1, True)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-age", "nan"),
        ("--max-age", "inf"),
        ("--max-age", "-1"),
        ("--timeout", "nan"),
        ("--worker", "a\nb"),
        ("--format", "yaml"),
        ("--backend", "nowhere"),
    ],
    ids=" ".join,
)
def test_flags_that_make_no_sense_are_one_line_and_no_health(crew, flags):  # K10
    command = crew.run("dhara_health", *flags)
    assert command.ends(30) in (1, 2)
    assert len(command.log.splitlines()) == 1
    assert "Traceback" not in command.log
