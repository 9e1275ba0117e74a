"""Odd paths, hostile environments, full disks, missing programs: it works, or says in one line what to do."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.localdb.conftest import DJANGO, ROOT, Lab, leave


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("long-" + "x" * 150, id="long"),
        pytest.param("with a space and ÉCOLE ☂", id="space and non-ASCII"),
        pytest.param("comma,comma", id="comma", marks=pytest.mark.slow),
        pytest.param('quote"quote', id="double quote", marks=pytest.mark.slow),
        pytest.param("dollar$HOME", id="dollar", marks=pytest.mark.slow),
        pytest.param("back\\slash", id="backslash", marks=pytest.mark.slow),
    ],
)
def test_odd_folder_names_work(home, name):
    (home / name).mkdir()
    (home / name).chmod(0o711)
    lab = Lab(home / name)
    try:
        code = "with connection.cursor() as c: c.execute('SELECT 1')\nprint(connection.settings_dict['HOST'])"
        place = lab.cluster.place
        assert lab.run(DJANGO + code) == f"{place.sockets}\n"
        assert len(os.fsencode(place.socket)) < 108
        assert lab.postmasters() == []
    finally:
        lab.close()


def test_pg_variables_of_the_user_are_ignored(lab, tmp_path):
    wrong = {
        "PGHOST": "db.example.com",
        "PGHOSTADDR": "192.0.2.1",
        "PGPORT": "1",
        "PGUSER": "somebody",
        "PGDATABASE": "elsewhere",
        "PGDATA": str(tmp_path),
        "PGOPTIONS": "-c search_path=nowhere",
        "PGSSLMODE": "verify-full",
        "PGGSSENCMODE": "require",
        "PGCHANNELBINDING": "require",
        "PGTARGETSESSIONATTRS": "standby",
        "LC_ALL": "xx_YY",
        "LANG": "xx_YY",
    }
    code = "with connection.cursor() as c: c.execute('SELECT current_user, current_database()'); print(c.fetchone())"
    assert lab.run(DJANGO + code, **wrong) == "('postgres', 'dhara')\n"
    assert list(tmp_path.iterdir()) == []


def test_without_programs_the_message_names_database_url(empty_lab, tmp_path):
    code = """
from example_project.localdb import binaries
binaries.WHEELS = binaries.SYSTEM = ()
"""
    process = empty_lab.spawn(code + DJANGO + "connection.ensure_connection()", PATH=str(tmp_path), LOCALDB_BIN="")
    err = process.communicate(timeout=60)[1]
    last = err.strip().splitlines()[-1]
    assert "ImproperlyConfigured: no PostgreSQL programs found" in last
    assert "DATABASE_URL=postgresql://USER:PASSWORD@HOST:5432/NAME" in last
    assert not empty_lab.base.exists()


def test_windows_imports_and_gets_the_same_message(empty_lab):
    code = """
import importlib.util, os, shutil, subprocess, sys
sys.modules["fcntl"] = sys.modules["pwd"] = None
sys.platform = "win32"
del os.geteuid, os.getuid
from example_project import localdb
assert localdb.database()["NAME"] == "dhara"
from example_project.localdb import server
from example_project.localdb.errors import NoPostgres
try:
    server.for_profile().ensure()
except NoPostgres as error:
    print(error)
"""
    assert "DATABASE_URL=" in empty_lab.run(code)


def test_wrong_localdb_bin_is_named(lab, tmp_path):
    answer = lab.command("start", LOCALDB_BIN=str(tmp_path))
    assert (answer.returncode, answer.stderr) == (
        1,
        f"localdb: LOCALDB_BIN={tmp_path} has no initdb and postgres in it\n",
    )


def test_cluster_of_another_version_is_named(lab):
    leave(lab.user())
    (lab.cluster.place.data / "PG_VERSION").write_text("14\n")
    answer = lab.command("start")
    assert answer.returncode == 1
    assert "was made by PostgreSQL 14" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_server_that_refuses_to_start_says_why_in_one_line(lab):
    leave(lab.user())
    with (lab.cluster.place.data / "postgresql.conf").open("a") as configuration:
        configuration.write("nonsense = on\n")
    answer = lab.command("start")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "the server does not start" in answer.stderr
    assert str(lab.cluster.place.log) in answer.stderr


def test_profile_must_be_a_plain_word(lab):
    answer = lab.command("--profile", "../elsewhere", "status")
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    "script", ["settings.DATABASES", "call_command('check')", "execute_from_command_line(['x', 'help'])"]
)
def test_settings_check_and_help_start_nothing(empty_lab, script):
    empty_lab.run(DJANGO + script)
    assert list(empty_lab.home.iterdir()) == []


@pytest.mark.parametrize("word", ["status", "url", "stop"])
def test_asking_and_stopping_start_nothing(empty_lab, word):
    empty_lab.command(word)
    assert list(empty_lab.home.iterdir()) == []


needs_mounts = pytest.mark.skipif(
    not ROOT or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0
    if shutil.which("unshare")
    else True,
    reason="needs root and a mount namespace to fill a disk",
)


@needs_mounts
@pytest.mark.parametrize("megabytes", [1, 20])
def test_full_disk_says_so_at_the_first_start(empty_lab, megabytes):
    script = f'mount -t tmpfs -o size={megabytes}m,mode=0711 tmpfs "$LOCALDB_HOME" && exec "$@"'
    answer = _in_own_mounts(empty_lab, script)
    assert answer.returncode == 1
    assert answer.stderr.startswith("localdb: the disk is full: no space left")
    assert answer.stderr.count("\n") == 1


@needs_mounts
def test_full_disk_says_so_at_a_later_start(empty_lab):
    script = (
        'mount -t tmpfs -o size=100m,mode=0711 tmpfs "$LOCALDB_HOME" && "$@" && "$0" -m example_project.localdb stop'
        ' && ! dd if=/dev/zero of="$LOCALDB_HOME/filler" bs=64k 2>/dev/null && exec "$@"'
    )
    answer = _in_own_mounts(empty_lab, script)
    assert answer.returncode == 1
    assert answer.stderr.startswith("localdb: the disk is full: no space left")


def _in_own_mounts(lab, script):
    start = [sys.executable, "-m", "example_project.localdb", "start"]
    command = ["unshare", "-m", "sh", "-c", script, sys.executable, *start]
    return subprocess.run(command, env=lab.env, capture_output=True, text=True, timeout=60, check=False)
