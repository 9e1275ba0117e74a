"""`manage.py dhara_doctor`: what it prints, and its exit code by severity."""

import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_dhara import doctor
from django_dhara.doctor import Severity
from tests.workers.harness import Process, free_port, url_of


def test_all_is_well(crew):
    command = crew.run("dhara_doctor", DHARA_DRAIN_SECONDS="60")
    assert command.ends(30) == 0
    assert command.log == "Examined default: all is well.\n"


@pytest.mark.parametrize(
    ("change", "undo", "codes"),
    [
        ("DROP INDEX dhara_task_children",
         "CREATE INDEX dhara_task_children ON dhara_task (parent_id, id) WHERE parent_id IS NOT NULL", (2, 2)),
        ("ALTER TABLE dhara_task RESET (fillfactor)", "ALTER TABLE dhara_task SET (fillfactor = 60)", (0, 1)),
        ("CREATE INDEX mine ON dhara_task (lost)", "DROP INDEX mine", (0, 0)),
    ],
    ids=["error", "warning", "info"],
)  # fmt: skip
def test_the_exit_code_tells_how_bad_it_is(patient, crew, change, undo, codes):
    patient.does(change)
    flags = ((), ("--fail-on", "warning"))
    commands = [crew.run("dhara_doctor", *more, DHARA_DRAIN_SECONDS="60") for more in flags]
    ended = tuple(command.ends(30) for command in commands)
    patient.does(undo)
    assert ended == codes


def test_json_for_programs(patient, crew):
    patient.does("ALTER TABLE dhara_task RESET (fillfactor)")
    command = crew.run("dhara_doctor", "--format", "json", DHARA_DRAIN_SECONDS="60")
    assert command.ends(30) == 0
    patient.does("ALTER TABLE dhara_task SET (fillfactor = 60)")
    told = json.loads(command.log)
    assert (told["backends"], told["counts"]) == ({"default": "default"}, {"error": 0, "warning": 1, "info": 0})
    [finding] = told["findings"]
    assert finding["do"] == "ALTER TABLE dhara_task SET (fillfactor = 60);"
    assert (finding["id"], finding["severity"], finding["database"]) == ("dhara.D043", "warning", "default")
    assert finding["title"] == title_of("dhara.D043")


def test_a_database_out_of_reach_is_no_traceback(crew):
    command = crew.run("dhara_doctor", DATABASE_URL=f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    assert command.ends(30) == 2
    assert "ERROR dhara.D001 in database 'default'" in command.log
    assert "Traceback" not in command.log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--backend", "none"], "--backend none"),
        (["--database", "none"], "TASKS has no DharaBackend in DATABASES['none'] to examine."),
        (["--format", "xml"], "must be text or json, not 'xml'"),
        (["--fail-on", "info"], "must be warning or error, not 'info'"),
    ],
)
def test_flags_that_cannot_be_read_are_one_line(flags, message):
    with pytest.raises(CommandError, match=re.escape(message)):
        call_command("dhara_doctor", *flags)


def title_of(id_):
    return next(trouble.title for trouble in doctor.troubles() if trouble.id == id_)


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script, of Debian's bsdutils")
def test_colours_are_for_terminals(patient, tmp_path):
    patient.does("ALTER TABLE dhara_task RESET (fillfactor)")
    words = ["script", "-qec", f"{sys.executable} manage.py dhara_doctor", "/dev/null"]
    url = url_of(patient.database.parameters)
    colours = []
    for number, env in enumerate(({}, {"NO_COLOR": "1"})):
        command = Process(words, tmp_path / f"log-{number}", DATABASE_URL=url, TERM="xterm", **env)
        assert command.ends(30) == 0, command.log
        assert "dhara.D043" in command.log
        assert f"{title_of('dhara.D043')}: dhara_task: " in " ".join(command.log.split())  # it says what it is about
        colours.append("\x1b[" in command.log)
    assert colours == [True, False]


def test_each_trouble_has_an_id_of_its_own_and_a_test():
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    ids = [trouble.id for trouble in doctor.troubles()]
    modules = Path(inspect.getfile(doctor)).parent.glob("*.py")
    written = re.findall(r'^    "(dhara\.D\d{3})", Severity', "".join(map(Path.read_text, modules)), re.MULTILINE)
    assert sorted(written) == ids == sorted(set(ids))
    assert [id_ for id_ in ids if id_ not in source] == []
    assert {trouble.severity for trouble in doctor.troubles()} == set(Severity)
