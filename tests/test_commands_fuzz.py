"""Every option of every command, as a flag and by its environment variable, with values that trip parsers, drivers,
databases and terminals: an exit code, at most one short line on stderr, no traceback, and nothing half-written.

The options are read from the parsers, so a new one is covered by itself. Commands run in this process as `manage.py`
runs them, but for what never ends by itself: a worker's run is left out. A sample is run as real processes.
"""

import argparse
import io
import re
import signal
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from django.apps import apps
from django.core.management import ManagementUtility, get_commands
from django.core.management.base import DjangoHelpFormatter
from django.db import connection, connections

from django_dhara import pause
from django_dhara.management.commands import dhara_worker
from django_dhara.states import State
from django_dhara.worker import Worker
from tests.rows import a_task
from tests.workers.conftest import crew, database  # noqa: F401

COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_dhara")
#: So that a command ends.
WITH = {"dhara_reaper": ["--once"]}
#: Of arguments that need to be there, or to be right for what follows them.
RIGHT = {"app_label": "dhara", "verb": "list"}
#: For each Django and Python.
SAMPLE = ("dhara_pause", "dhara_token create")
#: A line that is longer hides what it says.
LONGEST_LINE = 1000
#: For any option that it may suit or not. Whatever is a path leads nowhere, or into the test's own folder: a worker
#: writes where it is told to, and the tests may run as root. An address leads to no server.
NASTY = {
    "empty": "",
    "spaces": "   ",
    "zero": "0",
    "negative": "-1",
    "fraction": "1.5",
    "huge": str(2**63),
    "digits": "9" * 5000,
    "endless": "1e400",
    "nan": "NaN",
    "infinity": "Infinity",
    "other digits": "\u0661\u00b2",
    "newline": "a\nCommandError: forged",
    "escape": "a\x1b[2Jb",
    "nul": "a\0b",
    "surrogate": "a\udcffb",
    "right to left": "\u202ekcab\u2066",
    "long": "x" * 100_000,
    "long and odd": "\u202e" * 10_000,
    "no path": "/nowhere/at/all",
    "no place": "/proc/self/nothing/here",
    "folder": "a folder",
    "file": "a file",
    "word": "wrong",
    "sql": "'; DROP TABLE dhara_task; --",
    "percent": "%s %(name)s %n %",
    "braces": "{0} {self.__class__} {",
    "comma": ",",
    "commas": "a,,b",
    "dot": ".",
    "dots": "a..b",
    "address": "host=/nowhere/at/all",
    "dsn": "postgresql://u:p@[::1",
    "flag": "--help",
    "true": "true",
    "json": '{"a": [1]}',
    "stranger": "nobody",
}


def parsers(name):
    """The parser of a command and of its verbs, each with the words that lead to it."""
    parser = ManagementUtility(["manage.py", name]).fetch_command(name).create_parser("manage.py", name)
    yield [name], parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (([name, verb], below) for verb, below in action.choices.items())


def cases():
    """Of each option: the words that lead to it, how a value is given, and the words that stand around it."""
    for name in COMMANDS:
        for words, parser in parsers(name):
            ours = [action for action in parser._actions if not is_djangos(action)]
            places = [action for action in ours if not action.option_strings]
            for action in ours:
                yield from ways(words, action, places)


def is_djangos(action):
    of_all = {*DjangoHelpFormatter.show_last, "--help"}
    return bool({*action.option_strings, action.dest} & of_all) or action.dest == "help"


def ways(words, action, places):
    label, needed = " ".join(words), [RIGHT.get(place.dest, "1") for place in places if place.required]
    marks = {
        "marks": [pytest.mark.slow] if words[0] == "dhara_migrate" else [pytest.mark.fast] * (label in SAMPLE),
    }
    if action in places:
        at = places.index(action)
        before = [RIGHT.get(place.dest, "1") for place in places[:at]]
        yield pytest.param([*words, *before], "{}", needed[at + 1 :], id=f"{label} {action.dest}", **marks)
    for flag in action.option_strings:
        yield pytest.param(words, flag + "={}", needed, id=f"{label} {flag}", **marks)
    if variable := variable_of(action):
        yield pytest.param(words, f"${variable}", needed, id=f"{label} {variable}", **marks)


def variable_of(action):
    found = re.search(r"Environment: (\w+)", action.help or "")
    return found and found[1]


CASES = list(cases())


def snapshot():
    """All that is in our tables, without the statistics of who looked."""
    tables = sorted(model._meta.db_table for model in apps.get_app_config("dhara").get_models())
    each = [f"SELECT '{table}', md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM {table} t" for table in tables]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(each))
        return cursor.fetchall()


@contextmanager
def left_as_it_was():
    """What a command that was started by a person sets in its process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = stdin
        for number, handler in handlers.items():
            signal.signal(number, handler)
        connections.close_all()


def manage(*argv):
    """Run it as manage.py does; its exit code and what it has said."""
    out, err = io.StringIO(), io.StringIO()
    with left_as_it_was(), redirect_stdout(out), redirect_stderr(err):
        try:
            ManagementUtility(["manage.py", *argv]).fetch_command(argv[0]).run_from_argv(["manage.py", *argv])
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def scene(commits, monkeypatch, settings, tmp_path):
    """Something of each kind to change, a folder of its own to write to, and no worker that runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").write_text("of somebody")
    settings.SILENCED_SYSTEM_CHECKS = ["dhara.W006", "dhara.W012"]  # of the tests
    a_task(State.DEAD)
    a_task()
    pause("paused")
    monkeypatch.setattr(Worker, "run", lambda worker: 0)
    monkeypatch.setattr(dhara_worker, "_end_process", sys.exit)
    for name in COMMANDS:
        for variable in filter(
            None, (variable_of(action) for _, parser in parsers(name) for action in parser._actions)
        ):
            monkeypatch.delenv(variable, raising=False)
    return tmp_path


def given(monkeypatch, words, way, value, after):
    """The command line with this value in it, or beside it."""
    if way.startswith("$"):
        monkeypatch.setenv(way[1:], value)
        return [*words, *WITH.get(words[0], ()), *after]
    return [*words, *WITH.get(words[0], ()), way.format(value) if "=" in way else value, *after]


@pytest.mark.parametrize(("words", "way", "after"), CASES)
def test_no_value_of_an_option_ends_in_a_traceback_or_half_way(scene, monkeypatch, words, way, after):
    wrong = []
    for kind, value in NASTY.items():
        if way.startswith("$") and "\0" in value:
            continue  # no environment can hold it
        before = snapshot()
        with monkeypatch.context() as patched:
            argv = given(patched, words, way, value, after)
            try:
                code, out, err = manage(*argv)
            except Exception as error:
                wrong.append(f"{kind}: {type(error).__name__}: {str(error)[:200]}")
                continue
        wrong.extend(f"{kind}: {what}" for what in amiss(code, out, err))
        if code and snapshot() != before:
            wrong.append(f"{kind}: half-written")
    assert (scene / "a file").read_text() == "of somebody"
    assert not wrong, "\n".join(wrong)


def amiss(code, out, err):
    """What is wrong with the way in which a command ended."""
    lines = err.splitlines()
    if code not in (0, 1, 2) or (code and not (out or err)):
        yield f"exit code {code}"
    if code and (len(lines) > 1 or any(len(line) > LONGEST_LINE for line in lines)):
        yield f"{len(lines)} lines, {len(err)} characters: {err[:200]!r}"
    if code and not all(line.isprintable() for line in lines):
        yield f"forged {err[:200]!r}"


@pytest.mark.fast
@pytest.mark.parametrize("command", ["dhara_pause", "dhara_resume"])
def test_of_several_queues_none_is_changed_where_one_is_misspelt(scene, command):
    before = snapshot()
    code, out, err = manage(command, "paused", "mail", "a,b")
    assert (code, out) == (1, "")
    assert "'a,b'" in err
    assert snapshot() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["dhara_worker", "--backend", "nobody\nforged"], 1, "--backend nobody\\nforged"),
        (["dhara_worker", "--metrics-host", "no.such.host.invalid", "--metrics-port", "0"], 1, "cannot listen"),
        (["dhara_worker", "--metrics-port", "65536"], 2, "must be a port"),
        (["dhara_worker", "--heartbeat-file", "."], 1, "no heartbeat file"),
        (["dhara_worker", "--queues", "a" * 100_000], 2, "must have 1 to 255 characters"),
        (["dhara_reaper", "--backend", "\udcff"], 1, "--backend"),
        (["dhara_reaper", "--once=perhaps"], 2, "--once"),
        (["dhara_top", "--range", "for ever"], 2, "--range"),
        (["dhara_top"], 2, "draws on a terminal"),
    ],
    ids=lambda value: " ".join(value)[:40].encode("ascii", "backslashreplace").decode() if type(value) is list else "",
)
def test_what_must_not_start_does_not(crew, database, words, code, says):
    command = crew.run(*words)
    assert command.ends(30) == code
    line = command.log.splitlines()[-1]
    assert says in line
    assert len(line) <= LONGEST_LINE
    assert "Traceback" not in command.log
    assert database.value("SELECT count(*) FROM dhara_worker") == 0
