"""What operators do to queues and workers, with real processes: pause, resume, drain, ask; and what workers say."""

import signal
from time import monotonic

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_dhara import conf, fleet, pause, resume, sql
from django_dhara.fleet import Status
from django_dhara.lifecycle import Wanted
from django_dhara.models import Command, Worker
from django_dhara.worker import memory, presence
from tests.workers.harness import for_as_long_as, until

WAYS = {"threads": ("--concurrency", "4"), "processes": ("--processes", "2")}
_FILL = """
INSERT INTO dhara_task (id, backend, queue, function, payload)
SELECT gen_random_uuid(), 'default', 'mail', 'tests.app.tasks.count', '{"args": ["mail"], "kwargs": {}}'
FROM generate_series(1, %s) AS n
"""
PENDING = "SELECT count(*) FROM dhara_task WHERE queue = 'mail' AND state = 'PENDING'"
STARTED_SINCE = "SELECT count(*) FROM app_effect WHERE task = 'mail' AND at > %s"


@pytest.mark.parametrize("way", WAYS)
def test_two_busy_workers_obey_a_pause_within_a_second_and_a_resume_at_once(crew, database, way):
    database.rows(_FILL, 100_000)
    for _ in range(2):
        crew.start(*WAYS[way], DHARA_POLL_SECONDS=60)
    until(lambda: database.value("SELECT count(DISTINCT worker) FROM app_effect") == (2 if way == "threads" else 4), 30)
    pause("mail")
    [[paused_at]] = database.rows("SELECT paused_at FROM dhara_queue")
    until(lambda: database.value("SELECT clock_timestamp() > %s + interval '2.5 s'", paused_at))
    assert 0 < database.value(PENDING) < 100_000
    late = "SELECT count(*) FROM app_effect WHERE task = 'mail' AND at > %s + interval '1 s'"
    assert database.value(late, paused_at) == 0
    assert database.value(STARTED_SINCE, paused_at) < 2 * 500
    other = database.add("count", "other", queue="other")
    until(lambda: database.states(other) == ["COMPLETED"])
    before = timezone.now()
    resume("mail")
    until(lambda: database.value(STARTED_SINCE, before) > 0, 5)
    [[first]] = database.rows("SELECT min(at) FROM app_effect WHERE task = 'mail' AND at > %s", before)
    assert (first - before).total_seconds() < 1


@pytest.mark.parametrize("way", WAYS)
def test_idle_workers_leave_a_paused_queue_alone_and_are_woken_by_its_resume(crew, database, way):
    for _ in range(2):
        crew.start(*WAYS[way], DHARA_POLL_SECONDS=60)
    warm = database.add("count", "warm")
    until(lambda: database.states(warm) == ["COMPLETED"], 30)
    pause("mail")
    waiting = database.add("count", "mail", queue="mail")
    other = database.add("count", "other")
    until(lambda: database.states(other) == ["COMPLETED"])
    for_as_long_as(1.0, lambda: database.states(waiting) == ["PENDING"])
    before = monotonic()
    resume("mail")
    until(lambda: database.states(waiting) == ["COMPLETED"], 10)
    assert monotonic() - before < 1.5


def test_a_pause_that_is_rolled_back_holds_up_nobody(crew, database):
    crew.start()
    with transaction.atomic():
        pause("mail")
        task = database.add("count", "mail", queue="mail")
        until(lambda: database.states(task) == ["COMPLETED"])
        transaction.set_rollback(True)


def test_an_idle_worker_that_seldom_polls_drains_as_soon_as_it_is_told(crew, database):
    worker, other = crew.start("--queues", "mail", DHARA_POLL_SECONDS=60), crew.start(DHARA_POLL_SECONDS=60)
    before = monotonic()
    assert [asked.pid for asked in fleet.order("default", Command.Verb.DRAIN, [crew.id_of(worker)])] == [worker.pid]
    assert worker.ends(10) == 0
    assert monotonic() - before < 3
    assert Command.objects.get().answer == "draining"
    assert {row.pid: row.status for row in fleet.workers("default")} == {
        worker.pid: Status.STOPPED,
        other.pid: Status.ALIVE,
    }
    assert other.lives


def test_a_busy_worker_says_what_its_threads_do_and_that_it_drains(crew, database, tmp_path):
    worker = crew.start("--concurrency", "1", DHARA_POLL_SECONDS=60)
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held"))
    id_ = crew.id_of(worker)
    fleet.order("default", Command.Verb.STACKS, [id_])
    until(lambda: Command.objects.filter(answered_at__isnull=False).exists(), 5)
    assert any("in hold" in stack for stack in Command.objects.get().answer.values())
    fleet.order("default", Command.Verb.DRAIN, [id_])
    until(lambda: fleet.workers("default").get().status == Status.DRAINING)
    (tmp_path / "go").touch()
    assert worker.ends(10) == 0
    assert database.states(task) == ["COMPLETED"]


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_says_how_much_memory_it_and_its_children_have(crew, database, way):
    worker = crew.start(*WAYS[way])
    done = database.add("count", "done")
    until(lambda: database.states(done) == ["COMPLETED"], 30)
    least, most = (0.7, 1.5) if way == "threads" else (2.0, 4.5)
    told = "SELECT memory_bytes / 1e6 FROM dhara_worker"
    until(lambda: least * worker.megabytes < (database.value(told) or 0) < most * worker.megabytes, 10)


def test_a_killed_worker_is_late_then_lost_and_its_row_goes(crew, database):
    worker = crew.start()
    worker.kill()
    until(lambda: fleet.workers("default").get().status == Status.LATE)
    database.rows("UPDATE dhara_worker SET heartbeat_at = heartbeat_at - interval '5 min'")
    assert fleet.workers("default").get().status == Status.LOST
    assert fleet.order("default", Command.Verb.DRAIN, [crew.id_of(worker)]) == []
    database.rows("UPDATE dhara_worker SET heartbeat_at = heartbeat_at - interval '1 day'")
    crew.start(DHARA_PRUNE_SECONDS=1)
    until(lambda: [row.status for row in fleet.workers("default")] == [Status.ALIVE])


# Tables of the version before, without the column


@pytest.fixture
def here(db):
    """What this process says of itself in a row, each statement in a savepoint as if it were a transaction."""
    row = Worker.objects.create(
        backend="default", name="w", host="h", pid=1, version="0", concurrency=1, lease_seconds=2
    )
    present = presence.Presence(row.pk, "w", conf.Options(lease_seconds=2.0), Wanted("default"))
    said = []

    def execute(statement, parameters):
        said.append(statement)
        try:
            with transaction.atomic():
                return sql.on("default")(statement, parameters)
        except Exception as error:
            raise (error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error) from None

    def beat():
        present._memory_at = 0.0
        said.clear()
        present.tell_memory(execute, [])
        return len(said)

    return beat


def alter(what):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE dhara_worker {what}")


def test_memory_is_not_written_where_there_is_no_column_until_there_is_one(here, monkeypatch):
    alter("DROP COLUMN memory_bytes")
    assert [here(), here()] == [1, 0], "it looked again at once, or wrote"
    alter("ADD COLUMN memory_bytes bigint")
    monkeypatch.setattr(presence, "monotonic", lambda: monotonic() + 61)
    assert here() == 2
    assert Worker.objects.get().memory_bytes == pytest.approx(memory.resident(), rel=0.3)


def test_a_column_that_goes_away_again_harms_nothing(here):
    here()
    alter("DROP COLUMN memory_bytes")
    assert [here(), here()] == [1, 0]


def test_where_the_kernel_does_not_tell_nothing_is_written(here, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    assert here() == 1
    assert memory.resident([1]) is None


def test_a_child_that_is_gone_has_no_memory(crew, database):
    worker = crew.start()
    alone = memory.resident()
    assert memory.resident([worker.pid]) > alone
    worker.signal(signal.SIGKILL)
    worker.ends()
    assert memory.resident([worker.pid]) == pytest.approx(alone, rel=0.1)
