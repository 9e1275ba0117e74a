"""dhara_stats and dhara_top: what they say, and a real terminal that is given back as it was."""

import errno
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from threading import Thread

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_dhara import stats
from django_dhara.management import board
from django_dhara.models import Worker
from tests.minutes import CHARGE, a_crew, a_minute, an_afternoon
from tests.rows import a_task, ago
from tests.workers.harness import PROJECT, until

pytestmark = pytest.mark.timeout(300)

ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def afternoon(db):
    an_afternoon()
    a_crew()


# ------------------------------------------------------------------------------------------------------ dhara_stats


@pytest.fixture
def told(capsys):
    def call(*words):
        call_command("dhara_stats", *words, skip_checks=True)
        return capsys.readouterr().out

    return call


def test_stats_say_what_needs_a_person_and_the_numbers(afternoon, told):
    said = told()
    assert "Ready 74 (3 min)  Running 9 (9/30)  Scheduled 23  Dead 12  Workers 3" in said
    assert "! Queue email falls behind: 60 ready, the oldest for 3 min; it grows.\n" in said
    assert re.search(r"\nreports +14 +paused +[\d.]+ +0 ", said)
    assert re.search(r"\nbox6-77 +LATE +0/10 +0 +11 min", said)
    assert re.search(rf"\n{CHARGE} +[\d.]+ +\d+ \(\d+%\) ", said)
    assert "\u2068" not in said


def test_stats_for_programs_are_json(afternoon, told):
    found = json.loads(told("--format", "json", "--range", "5m"))
    assert (found["range_seconds"], found["standing"]["dead"], len(found["points"])) == (300, 12, 6)
    assert found["attention"][0]["kind"] == "behind"
    assert 0.005 < found["total"]["latency_seconds"]["p50"] < 0.05
    assert {worker["status"] for worker in found["workers"]} == {"alive", "late"}
    assert found["functions"][CHARGE]["failed"] > 5


def test_stats_are_of_one_backend(afternoon, told, settings):
    settings.TASKS = {**settings.TASKS, "other": {**settings.TASKS["default"]}}
    said = told("--backend", "other")
    assert "Ready 0  Running 0 (0/0)" in said
    assert "email" not in said


@pytest.mark.parametrize("words", [["--range", "1y"], ["--format", "xml"], ["--backend", "nobody"]])
def test_a_wrong_flag_is_one_line(db, words):
    with pytest.raises(CommandError, match=words[1]):
        call_command("dhara_stats", *words, skip_checks=True)


def test_a_database_that_cannot_be_asked_is_one_line_and_exit_code_1(database):
    env = environment(database) | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}
    done = subprocess.run(words("dhara_stats"), env=env, cwd=PROJECT, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("CommandError: DATABASES['default'] cannot be reached: ")


def test_names_of_every_kind_keep_the_columns(db, told):
    for name in ("テスト.漢字.関数", "shop." + "x" * 200, "a\x1b[31mb\u202ec", "e\u0301" * 5):
        a_minute(0, queue=name, function=name, completed=1)
        a_task(queue=name, run_at=ago(100))
    said = told()
    assert not re.search("[\x1b\u202e]", said)
    rows = said.split("\n\n")[2].splitlines()
    assert rows[0].startswith("QUEUE")
    assert {board.cells(row) for row in rows} == {board.cells(rows[0])}


def test_a_board_fits_into_what_it_is_given(afternoon):
    for number in range(20):
        Worker.objects.create(
            backend="default", name=f"w{number}", host="h", pid=number, version="0", concurrency=1, lease_seconds=30.0
        )
    overview = stats.overview("default", None, stats.RANGES["5m"])
    for width in (30, 80, 200):
        for height in (*range(3, 40, 4), 24):
            found = board.lines(overview, "title", width=width, height=height)
            assert len(found) <= height
            assert all(board.cells(line.text) <= width for line in found)
            heads = [line.text.split()[0] for line in found if line.kind == "head"]
            assert height < 20 or heads == ["QUEUE", "FUNCTION", "WORKER"]


# -------------------------------------------------------------------------------------------------------- dhara_top


def words(*more):
    return [sys.executable, "manage.py", *more, "--skip-checks"]


def environment(database):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("DHARA_", "DJANGO_", "LINES", "COLUMNS"))}
    return environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(PROJECT),
        "DHARA_TEST_DB": database.parameters["dbname"],
        "TERM": "xterm",
    }


class Screen:
    """dhara_top on a pseudo-terminal of 80 by 24 cells."""

    def __init__(self, database, **env):
        self.master, self._slave = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(self._slave)
        self.popen = subprocess.Popen(
            words("dhara_top"), env=environment(database) | env, cwd=PROJECT, stdin=self._slave, stdout=self._slave,
            stderr=self._slave, start_new_session=True, preexec_fn=self._own,  # noqa: PLW1509 - no other thread runs yet
        )  # fmt: skip
        self._bytes = b""
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _own(self):
        # Whoever runs the tests in the background has it ignored, and so would we.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def _read(self):
        while True:
            try:
                got = os.read(self.master, 65_536)
            except OSError as error:
                assert error.errno in (errno.EIO, errno.EBADF)
                return
            if not got:
                return
            self._bytes += got

    @property
    def written(self):
        return self._bytes.decode(errors="replace")

    @property
    def frames(self):
        """Each picture as lines, without its colours; the last may not be complete."""
        pictures = self.written.split("\x1b[H")[1:]
        return [re.sub(r"\r|\x1b\[[\d;?]*[a-zA-Z]", "", picture).split("\n") for picture in pictures]

    def shows(self, *texts):
        until(lambda: self.frames and all(text in "\n".join(self.frames[-1]) for text in texts), 90)

    def types(self, keys):
        os.write(self.master, keys)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ends(self):
        code = self.popen.wait(60)
        until(lambda: LEFT in self.written, 60)
        return code

    @property
    def is_as_before(self):
        is_left = self.written.rindex(LEFT) > self.written.rindex(ENTERED)
        return is_left and termios.tcgetattr(self._slave) == self.before

    def close(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        os.close(self._slave)
        self._reader.join(10)
        os.close(self.master)


@pytest.fixture
def screen(commits, database):
    an_afternoon()
    a_crew()
    made = []

    def open_screen(**env):
        made.append(Screen(database, **env))
        return made[-1]

    yield open_screen
    for each in made:
        each.close()


def test_top_fits_80_by_24_follows_the_queue_and_ends_with_q(screen):
    top = screen()
    top.shows("Queue email falls behind", "QUEUE", "FUNCTION", "WORKER", "q quits")
    assert all(len(frame) <= 24 and all(board.cells(line) <= 80 for line in frame) for frame in top.frames)
    a_task(function="brand.new", queue="brand new", run_at=ago(500))
    top.shows("brand new")
    top.types(b"r")
    top.shows("the last hour")
    top.resize(10, 50)
    until(lambda: len(top.frames[-2]) <= 10, 60)
    assert all(board.cells(line) <= 50 for line in top.frames[-2])
    top.types(b"q")
    assert top.ends() == 0
    assert top.is_as_before
    assert "Traceback" not in top.written


@pytest.mark.parametrize(("end", "code"), [(b"\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_top_gives_the_terminal_back_however_it_ends(screen, end, code):
    top = screen()
    top.shows("Queue email")
    top.types(end) if isinstance(end, bytes) else top.popen.send_signal(end)
    assert top.ends() == code
    assert top.is_as_before
    assert "Traceback" not in top.written


def test_top_gives_the_terminal_back_while_it_is_suspended(screen):
    top = screen()
    top.shows("Queue email")
    top.types(b"\x1a")
    until(lambda: LEFT in top.written, 60)
    assert top.is_as_before
    seen = len(top.frames)
    top.popen.send_signal(signal.SIGCONT)
    until(lambda: len(top.frames) > seen, 60)
    top.types(b"q")
    assert top.ends() == 0


def test_top_says_that_the_database_is_away_and_goes_on(screen, proxy):
    top = screen(**proxy.env)
    top.shows("Queue email falls behind")
    proxy.cut()
    top.shows("cannot be reached", "Queue email falls behind")
    proxy.thaw()
    until(lambda: "cannot be reached" not in "\n".join(top.frames[-1]), 60)
    top.types(b"q")
    assert top.ends() == 0


def test_top_refuses_what_is_no_terminal(database):
    done = subprocess.run(
        words("dhara_top"), env=environment(database), cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=110,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "CommandError: dhara_top draws on a terminal, and this is none; see dhara_stats.\n"
