"""The server is up while somebody uses it, and gone after the last clean exit."""

import os
import signal
import sys

import pytest

from tests.localdb.conftest import USER, heard, leave, until


def test_last_clean_exit_stops_the_server(lab):
    first, second = lab.user(), lab.user()
    leave(first)
    assert lab.is_up()
    leave(second)
    assert lab.postmasters() == []


def test_six_processes_at_once_on_an_empty_folder_share_one_server(empty_lab):
    six = [empty_lab.spawn(USER) for _ in range(6)]
    for process in six:
        heard(process)
    assert empty_lab.postmasters() == [empty_lab.cluster.pid()]
    for process in six:
        process.stdin.close()
    for process in six:
        assert process.wait(timeout=60) == 0
    assert empty_lab.postmasters() == []


@pytest.mark.parametrize("word", [signal.SIGKILL, signal.SIGTERM])
def test_killed_user_leaves_the_server_to_the_next_clean_exit(lab, word):
    killed = lab.user()
    killed.send_signal(word)
    killed.wait()
    assert lab.is_up()
    leave(lab.user())
    assert lab.postmasters() == []


def test_killed_user_does_not_take_the_server_from_another(lab):
    killed, other = lab.user(), lab.user()
    killed.kill()
    killed.wait()
    leave(lab.user())
    assert lab.is_up()
    leave(other)
    assert lab.postmasters() == []


@pytest.mark.parametrize("rounds", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_two_exits_at_the_same_moment_leave_no_server(lab, rounds):
    for _ in range(rounds):
        two = lab.user(), lab.user()
        for process in two:
            process.stdin.close()
        for process in two:
            assert process.wait(timeout=60) == 0
        assert lab.postmasters() == []


def test_forked_child_that_exits_does_not_stop_the_server(lab):
    parent = lab.spawn(
        USER.replace(
            "for line", "import os\nif not os.fork():\n    sys.exit()\nos.wait()\nprint('up', flush=True)\nfor line", 1
        )
    )
    heard(parent)
    heard(parent)
    assert lab.is_up()
    leave(parent)
    assert lab.postmasters() == []


def test_forked_child_keeps_the_server_when_its_parent_exits(lab):
    parent = lab.spawn(USER.replace("for line", "import os\nif os.fork():\n    sys.exit()\nfor line", 1))
    heard(parent)
    assert parent.wait(timeout=60) == 0
    assert lab.is_up()
    leave(lab.user())
    assert lab.is_up(), "the child still shares the lock"
    parent.stdin.write("\n")
    parent.stdin.flush()
    heard(parent)


def test_process_forked_before_its_first_connection_is_a_user_of_its_own(lab):
    code = USER.replace("local.ensure", "import os\nif os.fork():\n    os.wait()\n    sys.exit()\nlocal.ensure", 1)
    parent = lab.spawn(code)
    heard(parent)
    leave(parent)
    assert lab.postmasters() == []


def test_exit_handlers_of_others_cannot_wake_the_server_again(lab):
    code = "import atexit\natexit.register(lambda: local.ensure('dhara'))" + USER
    process = lab.spawn(code)
    heard(process)
    leave(process)
    assert "this process is ending" in process.stderr.read()
    assert lab.postmasters() == []


def test_ctrl_c_in_one_terminal_leaves_the_server_to_the_other(lab):
    runner = lab.spawn("from example_project.localdb.__main__ import main; raise SystemExit(main(['run']))")
    assert runner.stdout.readline().startswith("postgresql://")
    other = lab.user()
    os.killpg(runner.pid, signal.SIGINT)
    assert runner.wait(timeout=60) == 0
    assert lab.is_up()
    leave(other)
    assert lab.postmasters() == []


def test_run_ends_when_somebody_stops_the_server(lab):
    runner = lab.spawn("from example_project.localdb.__main__ import main; raise SystemExit(main(['run']))")
    assert runner.stdout.readline().startswith("postgresql://")
    assert lab.command("stop").stdout == "stopped\n"
    assert runner.wait(timeout=60) == 0
    assert "stopped by somebody else" in runner.stdout.read()


def test_run_brings_a_crashed_server_back(lab):
    runner = lab.spawn("from example_project.localdb.__main__ import main; raise SystemExit(main(['run']))")
    assert runner.stdout.readline().startswith("postgresql://")
    lab.kill_server()
    until(lab.is_up)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(timeout=60) == 0
    assert lab.postmasters() == []


def test_spawned_subprocess_is_a_user_of_its_own(lab):
    code = f"""
import subprocess, sys
from example_project.localdb import server
server.for_profile().ensure()
child = subprocess.Popen([{sys.executable!r}, "-c", {USER!r}], stdin=sys.stdin, stdout=sys.stdout)
child.wait = lambda *a, **k: None
sys.exit()
"""
    parent = lab.spawn(code)
    heard(parent)
    assert parent.wait(timeout=60) == 0
    assert lab.is_up()
    parent.stdin.close()
    until(lambda: lab.postmasters() == [])
