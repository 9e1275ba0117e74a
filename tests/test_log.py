"""What is logged: names and fields that stay, lines that nobody can forge, and few of them."""

import io
import json
import logging
import re
import sys
import uuid
from pathlib import Path

import pytest

import django_dhara
from django_dhara import events, log, signals
from django_dhara.backend import DharaBackend
from django_dhara.compat import TaskResultStatus, task_finished
from django_dhara.enqueue import current_task
from django_dhara.events import EVENTS, Repeats
from django_dhara.formatters import JSONFormatter, LineFormatter
from django_dhara.states import Error
from django_dhara.testing import run_all
from tests.app import tasks
from tests.workers.harness import DJANGOS_LOGGER

pytestmark = pytest.mark.fast

EVIL = "mail\n2026-12-01 00:00:00 ERROR django: forged\x1b[2K\u202e"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _nothing_was_said_before(monkeypatch):
    for module, name in ((log, "_failures"), (log, "_deaths")):
        monkeypatch.setattr(module, name, Repeats(60, 60))
    signals.sums_up.set()
    yield
    signals.sums_up.clear()


def fail(function="shop.tasks.mail", **error):
    """Send what a worker sends of a failed run."""

    class Told:
        id = str(uuid.uuid4())
        attempts = 1

        class task:  # noqa: N801
            module_path = function
            queue_name = "default"

    named = {"class_path": "builtins.OSError", "message": "no route", "traceback": "", "fingerprint": "f1", **error}
    signals.announce(signals.attempt_failed, DharaBackend, task_result=Told, error=Error(**named), delay=1.0)


def written(formatter, record):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.handle(record)
    return stream.getvalue()


def failing_record(**more):
    try:
        raise ValueError(EVIL)
    except ValueError:
        return logging.getLogger("shop").makeRecord(
            "shop", logging.ERROR, "f", 1, "queue %s", (EVIL,), sys.exc_info(), extra=more
        )


def test_names_of_events_are_unique_and_of_one_form():
    names = [event.name for event in EVENTS.values()]
    assert len(names) == len(set(names))
    assert all(name.replace(".", "").replace("_", "").isalpha() and name == name.lower() for name in names)


def test_no_line_goes_past_the_catalogue():
    """But for those of `testing`, which a project's own tests read."""
    package = Path(django_dhara.__file__).parent
    sources = [path for path in package.rglob("*.py") if path.name != "events.py" and "testing" not in path.parts]
    call = re.compile(r"\blog(ger|ging)?\.(debug|info|warning|error|exception|critical|log)\(")
    assert [path.name for path in sources if call.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_the_text_of_an_event_takes_its_fields(event, caplog):
    caplog.set_level(logging.DEBUG)
    event.tell(**{name: 1 if f"%({name})s" not in event.text else EVIL for name in event.fields})
    if event.logger.name.startswith("django_dhara"):
        [record] = caplog.records
        assert record.dhara_event == event.name
        assert record.getMessage().isprintable()


def test_a_record_has_its_event_and_its_fields(db, caplog):
    caplog.set_level(logging.DEBUG, "django_dhara")
    tasks.fail.enqueue()
    run_all()
    [record] = [record for record in caplog.records if getattr(record, "dhara_event", "") == "run.failed"]
    assert (record.name, record.levelname) == ("django_dhara", "INFO")
    assert (record.dhara_function, record.dhara_queue, record.dhara_attempt) == ("tests.app.tasks.fail", "default", 1)
    assert (record.dhara_outcome, record.dhara_state) == ("fail", "PENDING")
    assert record.dhara_duration > 0
    assert uuid.UUID(record.dhara_task_id)
    assert uuid.UUID(record.dhara_worker_id)
    assert {name for name in vars(record) if name.startswith("dhara_")} <= {
        f"dhara_{name}" for name in ("event", *events.RUN_FAILED.fields)
    }


def test_fields_do_not_meet_those_of_a_projects_record_factory(caplog):
    plain = logging.getLogRecordFactory()

    def factory(*args, **kwargs):
        record = plain(*args, **kwargs)
        record.task_id, record.queue, record.function = "of", "the", "project"
        return record

    logging.setLogRecordFactory(factory)
    try:
        events.LEASE_LOST.tell(task_id="1", function="f", queue="q", lease=3)
    finally:
        logging.setLogRecordFactory(plain)
    assert "Lease lost: task 1 (f), lease 3" in caplog.text


# --------------------------------------------------------------------------------------------------------- forged lines


def test_a_name_or_an_error_from_outside_forges_no_line(caplog):  # K11
    caplog.set_level(logging.INFO, "django_dhara")
    fail(EVIL, class_path=EVIL, message=EVIL)
    events.DATABASE_LOST.tell(worker=EVIL, reason=OSError(EVIL))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert all(text.isprintable() for text in texts)
    assert all(value.isprintable() for record in caplog.records for value in vars(record).values() if value == EVIL)


def test_in_text_only_a_record_begins_a_line():
    first, *rest = written(LineFormatter(), failing_record()).splitlines()
    assert "ERROR shop: queue mail\\n2026-12-01" in first
    assert first.isprintable()
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_in_json_a_record_is_one_line():
    [line] = written(JSONFormatter(), failing_record(queue=EVIL, odd=object(), nan=float("nan"))).splitlines()
    told = json.loads(line, parse_constant=pytest.fail)
    assert (told["level"], told["logger"], told["queue"]) == ("ERROR", "shop", EVIL)
    assert told["exception"].endswith("\u202e")
    assert told["nan"] == "nan"
    assert told["odd"].startswith("<object")
    assert line.isascii()


def test_in_json_the_event_and_its_fields_have_short_names(caplog):
    events.LEASE_LOST.tell(task_id="1", function="f", queue="q", lease=3)
    told = json.loads(written(JSONFormatter(), caplog.records[-1]))
    assert told["message"].startswith("Lease lost: task 1 (f)")
    assert {"event": "lease.lost", "task_id": "1", "queue": "q", "lease": 3}.items() <= told.items()
    assert "dhara_event" not in told
    assert told["time"].endswith("+00:00")


def test_in_json_what_a_function_logs_names_its_task():
    task = uuid.uuid4()
    token = current_task.set(task)
    try:
        line = written(JSONFormatter(), logging.makeLogRecord({"msg": "of the %s", "args": ("shop",)}))
    finally:
        current_task.reset(token)
    assert json.loads(line)["task_id"] == str(task)


def test_in_json_arguments_that_do_not_fit_lose_no_line():
    told = json.loads(written(JSONFormatter(), logging.makeLogRecord({"msg": "%d", "args": ("x",)})))
    assert told["message"] == "%d (TypeError in its arguments)"


def test_python_json_logger_sees_the_fields_too(caplog):
    theirs = pytest.importorskip("pythonjsonlogger.json")
    events.LEASE_LOST.tell(task_id="1", function="f", queue="q", lease=3)
    told = json.loads(written(theirs.JsonFormatter(), caplog.records[-1]))
    assert (told["dhara_event"], told["dhara_lease"]) == ("lease.lost", 3)


# ------------------------------------------------------------------------------------------------------------- quietly


def test_a_thousand_failures_of_one_kind_are_two_lines(caplog):
    caplog.set_level(logging.INFO, "django_dhara")
    for number in range(1000):
        fail(message=f"order {number}")
    fail(fingerprint="f2")
    assert [record.dhara_event for record in caplog.records] == ["run.failed"] * 2
    signals.announce(signals.summed_up, DharaBackend, worker="w", settled=1001, failed=1001)
    [record] = caplog.records[2:]
    assert (record.dhara_event, record.dhara_count, record.dhara_fingerprint) == ("run.failed.repeated", 999, "f1")


def test_after_the_summary_the_next_one_is_told_in_full(caplog):
    caplog.set_level(logging.INFO, "django_dhara")
    for _ in range(2):
        fail()
        signals.announce(signals.summed_up, DharaBackend, worker="w", settled=1, failed=1)
    assert [record.dhara_event for record in caplog.records] == ["run.failed"] * 2


def test_each_dead_task_is_an_error_and_the_traceback_comes_once(db, caplog):
    for _ in range(20):
        tasks.fail.using(max_attempts=1).enqueue()
    run_all()
    dead = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert {record.name for record in dead} == {DJANGOS_LOGGER}
    assert {record.dhara_event for record in dead} == {"task.dead"}
    assert len({record.dhara_task_id for record in dead}) == 20
    assert [bool(record.exc_info) for record in dead] == [True] + [False] * 19
    assert dead[0].dhara_fingerprint in dead[1].getMessage()


def test_where_no_worker_sums_up_every_line_is_written(db, caplog):
    caplog.set_level(logging.INFO, "django_dhara")
    signals.sums_up.clear()
    for _ in range(2):
        tasks.fail.using(max_attempts=1).enqueue()
    run_all()
    assert sum(bool(record.exc_info) for record in caplog.records) == 2
    assert sum(getattr(record, "dhara_event", "") == "run.failed" for record in caplog.records) == 2


def test_a_receiver_still_sees_the_exception_of_each(db):
    seen = []

    def receiver(sender, **kwargs):
        seen.append(sys.exc_info()[0])

    task_finished.connect(receiver)
    try:
        for _ in range(2):
            tasks.fail.using(max_attempts=1).enqueue()
        run_all()
    finally:
        task_finished.disconnect(receiver)
    assert seen == [ValueError, ValueError]


def test_lines_of_other_backends_are_left_as_they_are(caplog):
    class Told:
        id, status = "7", TaskResultStatus.FAILED

        class task:  # noqa: N801
            module_path = "theirs"

    for _ in range(2):
        try:
            raise ValueError("theirs")
        except ValueError:
            task_finished.send(object, task_result=Told)
    assert [bool(record.exc_info) for record in caplog.records] == [True, True]


def test_what_comes_up_again_and_again_is_told_ever_more_rarely():
    clock = Clock()
    repeats = Repeats(10, 600, clock)
    told = {}
    for second in range(3600):
        clock.now = 1000.0 + second
        if (left_out := repeats.due("no route")) is not None:
            told[second] = left_out
    assert told == {
        0: 0,
        10: 9,
        30: 19,
        70: 39,
        150: 79,
        310: 159,
        630: 319,
        1230: 599,
        1830: 599,
        2430: 599,
        3030: 599,
    }


def test_what_has_not_come_up_for_long_is_new():
    clock = Clock()
    repeats = Repeats(10, 600, clock)
    assert (repeats.due("a"), repeats.due("a"), repeats.due("b")) == (0, None, 0)
    clock.now += 21
    assert repeats.due("a") == 0


def test_reasons_do_not_fill_the_memory():
    repeats = Repeats(10, 600)
    for number in range(3 * events.MOST_REASONS):
        repeats.due(number)
    assert len(repeats._known) == events.MOST_REASONS
    assert repeats.due(0) == 0


def test_an_outage_is_told_with_a_count(caplog, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(events, "_murmured", Repeats(10, 600, clock))
    for _ in range(30):
        events.DATABASE_LOST.murmur("", worker="w", reason=OSError("no\nroute"))
        clock.now += 1
    assert [record.getMessage() for record in caplog.records] == [
        "Worker w has lost the database: no route",
        "Worker w has lost the database: no route (9 more of these since the last line)",
    ]
