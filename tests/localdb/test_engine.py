"""The Django engine and the command line: what settings, tests and people see of the server."""

import os
import re
import signal

import pytest

from tests.localdb.conftest import DJANGO, leave


def test_engine_creates_its_database_and_keeps_it(lab):
    code = DJANGO + "call_command('migrate', verbosity=0)\nfrom django.contrib.auth.models import User\n"
    lab.run(code + "User.objects.create(username='ada')")
    assert lab.run(code + "print(User.objects.get())") == "ada\n"
    assert lab.postmasters() == []


def test_connection_params_are_complete_for_psycopg(lab):
    code = """
import psycopg
with psycopg.connect(**connection.get_connection_params()) as raw:
    print(raw.execute("SELECT current_database(), current_user").fetchone())
"""
    assert lab.run(DJANGO + code) == "('dhara', 'postgres')\n"


def test_bare_engine_in_settings_is_enough(lab):
    code = DJANGO.replace("localdb.database()", "{'ENGINE': 'example_project.localdb', 'NAME': 'other'}")
    code += "with connection.cursor() as c: c.execute('SELECT current_database()'); print(c.fetchone())"
    assert lab.run(code) == "('other',)\n"


def test_django_makes_and_drops_its_test_database_itself(lab):
    code = """
name = connection.creation.create_test_db(verbosity=0)
with connection.cursor() as c: c.execute("SELECT current_database()"); print(c.fetchone()[0])
connection.creation.destroy_test_db("dhara", verbosity=0)
connection.settings_dict["NAME"] = "test_dhara"
try:
    connection.ensure_connection()
except django.db.OperationalError as error:
    print("gone" if "does not exist" in str(error) else error)
"""
    assert lab.run(DJANGO + code) == "test_dhara\ngone\n"


def test_server_has_what_the_project_counts_on(lab):
    code = """
with connection.cursor() as c:
    for sql in ("SHOW max_connections", "SHOW fsync", "SHOW synchronous_commit", "SHOW server_encoding",
                "SELECT upper('é') = 'É'", "SHOW listen_addresses"):
        c.execute(sql); print(c.fetchone()[0], end=" ")
"""
    connections, *others = lab.run(DJANGO + code).split()
    assert int(connections) >= 200
    assert others == ["off", "off", "UTF8", "True"]


def test_dev_profile_keeps_commits_safe(empty_lab):
    code = "with connection.cursor() as c: c.execute('SHOW fsync'); print(c.fetchone()[0])"
    assert empty_lab.run(DJANGO + code, LOCALDB_PROFILE="dev") == "on\n"


@pytest.mark.slow
def test_profiles_are_clusters_of_their_own(lab):
    code = "with connection.cursor() as c: c.execute('SHOW data_directory'); print(c.fetchone()[0])"
    there = {lab.run(DJANGO + code, LOCALDB_PROFILE=profile) for profile in ("test", "testb")}
    assert there == {f"{lab.home / 'test' / 'data'}\n", f"{lab.home / 'testb' / 'data'}\n"}


def test_threads_of_one_process_start_one_server(lab):
    code = """
from concurrent.futures import ThreadPoolExecutor
def ask(_):
    try:
        with connection.cursor() as c: c.execute("SELECT pg_postmaster_start_time()"); return c.fetchone()
    finally:
        connection.close()
with ThreadPoolExecutor(8) as pool: print(len(set(pool.map(ask, range(32)))))
"""
    assert lab.run(DJANGO + code) == "1\n"


def test_start_survives_its_process_and_others_until_stop(lab):
    started = lab.command("start")
    assert started.returncode == 0
    assert lab.command("start").stdout == started.stdout, "starting twice is no error"
    leave(lab.user())
    assert lab.is_up()
    running = lab.command("status")
    assert running.returncode == 0
    assert re.fullmatch(rf"running: process {lab.cluster.pid()}, postgresql://.*\n", running.stdout)
    assert lab.command("stop").stdout == "stopped\n"
    stopped = lab.command("status")
    assert (stopped.returncode, stopped.stdout) == (3, f"not running ({lab.base})\n")
    assert lab.command("stop").stdout == "not running\n"


def test_kept_server_that_crashed_is_not_kept_in_its_next_life(lab):
    lab.command("start")
    lab.kill_server()
    leave(lab.user())
    assert lab.postmasters() == []


def test_url_works_with_django_environ_and_the_plain_backend(lab):
    lab.command("start")
    code = DJANGO.replace("localdb.database()", "__import__('environ').Env().db('DATABASE_URL')")
    code += "with connection.cursor() as c: c.execute('SELECT current_database()'); print(c.fetchone()[0])"
    url = lab.command("url").stdout.strip()
    assert lab.run(code, DATABASE_URL=url) == "dhara\n"


def test_unknown_word_is_a_usage_error(lab):
    assert lab.command("dance").returncode == 2
    assert lab.command("stop", "--now").returncode == 2


def test_psql_passes_its_arguments_on(lab):
    answer = lab.command("psql", "-Atc", "SELECT current_database()", PGHOST="nowhere")
    assert (answer.returncode, answer.stdout) == (0, "dhara\n")
    assert lab.postmasters() == []


def test_interrupted_start_is_no_traceback(empty_lab):
    process = empty_lab.spawn("from example_project.localdb.__main__ import main; raise SystemExit(main(['start']))")
    while not (empty_lab.base / "lock").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) in {0, 130}
    assert "Traceback" not in process.stderr.read()
    leave(empty_lab.user())
