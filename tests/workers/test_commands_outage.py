"""No command meets a database that is away, or that has not our tables, with a traceback: it says one line and what to
do, and ends with a documented exit code. All commands are walked, so a new one is covered by itself."""

import psycopg
import pytest
from django.core.management import get_commands

from tests.workers.harness import free_port, url_of

#: A line that is longer hides what it says.
LONGEST_LINE = 1000
COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_dhara")
#: So that a command asks the database at all, and ends.
WITH = {
    "dhara_migrate": ["--check"],
    "dhara_pause": ["mail"],
    "dhara_reaper": ["--once"],
    "dhara_resume": ["mail"],
    "dhara_token": ["list"],
    "dhara_worker": ["--burst", "--no-reload"],
}
#: These say it in their own form: a report, a probe's answer, a log; or they ask nothing without a terminal.
OF_THEIR_OWN = {
    "dhara_doctor": {"away": (2, "dhara.D001"), "bare": (2, "migrate")},
    "dhara_health": {"away": (1, "does not answer"), "bare": (1, "missing")},
    "dhara_migrate": {"away": (1, "cannot be reached"), "bare": (1, "is not applied")},
    "dhara_top": {"away": (2, "draws on a terminal"), "bare": (2, "draws on a terminal")},
    "dhara_worker": {"away": (1, "waits for the database"), "bare": (1, "migrate")},
}
SAID = {"away": (1, "cannot be reached"), "bare": (1, "run `manage.py migrate`")}


@pytest.fixture
def bare(database):
    """A database without our tables."""
    name = f"{database.parameters['dbname']}_bare"
    with psycopg.connect(**database.parameters, autocommit=True) as session:
        session.execute(f'CREATE DATABASE "{name}"')
        yield url_of({**database.parameters, "dbname": name})
        session.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def away():
    """An address where nobody answers."""
    return f"postgresql://nobody@127.0.0.1:{free_port()}/none"


@pytest.mark.parametrize("state", ["away", "bare"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_database_that_is_of_no_use_is_one_line_with_what_to_do(crew, request, name, state):
    url = request.getfixturevalue(state)
    env = {"DATABASE_URL": url, "DHARA_TEST_DB": "", "DHARA_TEST_DATABASE": '{"CONN_MAX_AGE": 60}'}
    env["DHARA_TEST_DB"] = url.rpartition("@")[2].partition("/")[2].partition("?")[0]
    command = crew.run(name, *WITH.get(name, ()), **env)
    code, says = OF_THEIR_OWN.get(name, {}).get(state, SAID[state])
    assert command.ends(60) == code, command.log
    assert "Traceback" not in command.log
    assert says in command.log
    if name not in ("dhara_doctor", "dhara_worker"):  # a report, and a log
        [line] = command.log.splitlines()
        assert len(line) <= LONGEST_LINE
        assert "LINE " not in line  # the statement is ours, and of no use to who reads this


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["dhara_stats", "dhara_doctor", "dhara_health", "dhara_pause mail"])
def test_who_reads_the_output_may_leave_early(crew, database, words, unbuffered):
    """As in `manage.py dhara_stats | head -1`."""
    piped = ("bash", "-c", 'set -o pipefail; "$@" | true', "piped")
    command = crew.run(*words.split(), prefix=piped, PYTHONUNBUFFERED=unbuffered)
    assert command.ends(60) == 141
    assert "BrokenPipe" not in command.log
