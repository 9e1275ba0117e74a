"""Whatever dies, and whenever, the next process finds or makes a working server."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from tests.localdb.conftest import USER, Lab, end, heard, leave, until

QUERY = """
from example_project.localdb import server
import psycopg
local = server.for_profile()
local.ensure("dhara")
place = local.place
with psycopg.connect(dbname="dhara", host=str(place.sockets), port=place.port, user=place.user) as connection:
    {}
"""


def test_postmaster_killed_under_a_live_process_is_back_with_its_rows(durable_lab):
    lab = durable_lab
    user = lab.user()
    lab.run(QUERY.format("connection.execute('CREATE TABLE kept AS SELECT 42 AS answer')"))
    dead = lab.kill_server()
    user.stdin.write("\n")
    user.stdin.flush()
    heard(user)
    assert lab.cluster.pid() not in {None, dead}
    assert lab.run(QUERY.format("print(connection.execute('TABLE kept').fetchone())")) == "(42,)\n"
    leave(user)
    assert lab.postmasters() == []


def test_pid_reused_by_another_program_is_left_alone(lab, account):
    lab.user().kill()
    lab.kill_server()
    with subprocess.Popen(["sleep", "60"], user=account) as stranger:
        place = lab.cluster.place
        lines = place.pid_file.read_text().split("\n")
        place.pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        place.socket.with_name(place.socket.name + ".lock").write_text(f"{stranger.pid}\n")
        user = lab.user()
        leave(user)
        assert stranger.poll() is None
        stranger.kill()
    assert lab.postmasters() == []


@pytest.fixture
def durable_lab(home):
    made = Lab(home, "dev")
    yield made
    made.close()


@pytest.mark.parametrize("left", ["", "12", pytest.param("not a number\n", marks=pytest.mark.slow)])
def test_damaged_postmaster_pid_does_not_matter(lab, left):
    lab.user().kill()
    lab.kill_server()
    lab.cluster.place.pid_file.write_text(left)
    leave(lab.user())
    assert lab.postmasters() == []


@pytest.mark.parametrize("whole_group", [True, False], ids=["with its children", "alone"])
@pytest.mark.parametrize(
    "after_s",
    [0.25, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.05, 0.1, 0.15, 0.2, 0.3, 0.35, 0.4, 0.5, 0.7, 1.0))],
)
def test_kill_at_any_moment_of_the_first_start_is_recovered_from(empty_lab, after_s, whole_group):
    first = empty_lab.spawn(USER)
    time.sleep(after_s)  # The moment is the point here; there is no event to wait for.
    (os.killpg if whole_group else os.kill)(first.pid, signal.SIGKILL)
    first.wait()
    leave(empty_lab.user())
    assert empty_lab.postmasters() == []
    assert not empty_lab.cluster.place.half_made.exists()


def test_folder_removed_under_a_live_server_is_made_anew(lab):
    user = lab.user()
    old = lab.cluster.pid()
    shutil.rmtree(lab.base)
    user.stdin.write("\n")
    user.stdin.flush()
    heard(user)
    assert lab.cluster.pid() != old
    leave(user)
    assert not lab.is_up()
    end(old)


def test_server_whose_socket_was_removed_is_restarted(lab):
    user = lab.user()
    old = lab.cluster.pid()
    lab.cluster.place.socket.unlink()
    user.stdin.write("\n")
    user.stdin.flush()
    heard(user)
    assert lab.postmasters() == [lab.cluster.pid()] != [old]


def test_server_launched_by_a_killed_process_is_waited_for_not_doubled(lab):
    leave(lab.user())
    first = lab.spawn(USER)
    until(lab.cluster.place.pid_file.exists)
    first.kill()
    second = lab.user()
    assert lab.postmasters() == [lab.cluster.pid()]
    leave(second)
    assert lab.postmasters() == []


@pytest.mark.slow
def test_frozen_starter_is_waited_for(empty_lab):
    first = empty_lab.spawn(USER)
    until((empty_lab.base / "lock").exists)
    first.send_signal(signal.SIGSTOP)
    second = empty_lab.spawn(USER)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(timeout=0.5)
    first.send_signal(signal.SIGCONT)
    heard(first)
    heard(second)
