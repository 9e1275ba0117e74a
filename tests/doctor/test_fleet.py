"""Workers and queues: what waits, for whom, and who is not there any more."""

import pytest

from tests.workers.harness import until

WORKER = {"name": "one", "host": "here", "pid": 1, "version": "0.1.0", "queues": "[]", "exclude_queues": "[]"}
WORKER |= {"backend": "default", "concurrency": 5, "lease_seconds": 30}


@pytest.fixture
def worker(patient):
    """The row of a worker that was alive `silent` seconds ago."""

    def make(silent=0.0, age=0.0, **columns):
        values = {**WORKER, **columns}
        patient.database.rows(
            f"INSERT INTO dhara_worker (id, {', '.join(values)}, heartbeat_at, started_at) VALUES (gen_random_uuid(),"
            f" {', '.join(['%s'] * len(values))}, now() - %s * interval '1 s', now() - %s * interval '1 s')",
            *values.values(), silent, age,
        )  # fmt: skip

    return make


@pytest.fixture
def waits(patient):
    """A task that has been ready for an hour."""

    def make(name="count", queue="default", **columns):
        id_ = patient.database.add(name, queue=queue, **columns)
        patient.database.rows("UPDATE dhara_task SET run_at = now() - interval '1 hour' WHERE id = %s", id_)
        return id_

    return make


def test_nobody_works(patient, waits):
    waits()
    finding = patient.has("dhara.D070")
    assert finding.what == "the oldest ready task has waited for 60 min"
    assert finding.do == "manage.py dhara_worker --backend default"
    assert finding.backend == "default"


def test_a_worker_was_killed(patient, crew):
    worker = crew.start("--name", "unlucky", DHARA_LEASE_SECONDS="3")
    until(patient.is_well_now)
    worker.kill()
    until(lambda: not patient.is_well_now())
    assert "1 in the last day (unlucky), the last one " in patient.has("dhara.D071").what


def test_workers_of_two_versions_long_after_a_deploy(patient, worker):
    worker(name="old", version="0.0.9", age=90_000)
    worker(name="new", age=60)
    assert patient.is_well()
    worker(name="newer", age=7200)
    finding = patient.has("dhara.D072")
    assert finding.what == "1 of 0.0.9, 2 of 0.1.0, for 2 h"
    assert finding.do == "Replace those that are older: old"


def test_a_heartbeat_from_the_future(patient, worker):
    worker(silent=-600)
    assert patient.has("dhara.D073").what == "a worker last spoke 10 min from now"


def test_functions_that_may_outlast_the_drain_time(patient):
    patient.options["DRAIN_SECONDS"] = 20
    assert "tests.app.tasks." in patient.has("dhara.D074").what


MINUTE = """INSERT INTO dhara_minute (minute, worker_id, backend, queue, function, interrupted, dead,
                                      run_histogram, wait_histogram)
            VALUES (now() - make_interval(hours => {0}), gen_random_uuid(), 'default', 'default', 'shop.mail', {1}, {2},
                    '{{}}', '{{}}')"""


def test_runs_were_interrupted(patient):
    patient.does(MINUTE.format(2, 3, 0), MINUTE.format(30, 5, 0))
    finding = patient.has("dhara.D075")
    assert finding.what == "in the last day shop.mail 3 times"
    assert "now 60" in finding.do


def test_functions_that_this_code_does_not_have(patient, worker):
    worker()
    patient.database.add("count")
    patient.database.add("x", function="shop.tasks.gone", queue="mail", priority=5)
    finding = patient.has("dhara.D080")
    assert "shop.tasks.gone (" in finding.what
    assert "count" not in finding.what


def test_a_queue_that_nobody_serves(patient, worker, waits):
    worker(queues='["mail"]')
    worker(exclude_queues='["reports"]')
    waits(queue="reports")
    finding = patient.has("dhara.D081")
    assert finding.what == "reports (its oldest ready task has waited for 60 min)"
    assert "--queues reports" in finding.do
    worker(queues='["reports"]')
    assert [finding.id for finding in patient.findings()] == ["dhara.D083"]


def test_a_worker_that_drains_serves_nothing(patient, worker, waits):
    waits(queue="mail")
    worker(name="leaving", draining_at="now")
    assert patient.has("dhara.D081").what == "mail (its oldest ready task has waited for 60 min)"
    worker(name="staying")
    assert patient.has("dhara.D083").what.startswith("the oldest ready task of mail has waited")


def test_a_paused_queue_with_tasks(patient, worker, waits):
    worker()
    waits(queue="mail")
    patient.does(
        "INSERT INTO dhara_queue (backend, name, paused_at) VALUES ('default', 'mail', now() - '3 days'::interval)"
    )
    finding = patient.has("dhara.D082")
    assert finding.what == "mail has been paused for 3 days, and its oldest ready task has waited for 60 min"
    assert finding.do == "django_dhara.resume('mail', backend='default')"


def test_a_queue_that_falls_behind(patient, worker, waits):
    worker()
    waits(queue="mail", priority=-5)
    patient.database.add("count", queue="mail", priority=5)
    assert "the oldest ready task of mail has waited for 60 min" in patient.has("dhara.D083").what


def test_suspects(patient, worker):
    worker()
    patient.database.add("count", lost=1)
    assert patient.has("dhara.D084").what == "1 of tests.app.tasks.count"


def test_dead_letters_grow(patient):
    patient.does(MINUTE.format(0, 0, 12), MINUTE.format(3, 0, 24))
    moved = """INSERT INTO dhara_quarter (start, backend, queue, function, dead, run_histogram, wait_histogram)
        SELECT minute, backend, queue, function, dead, '{}', '{}' FROM dhara_minute WHERE dead = 24"""
    patient.does(moved, "DELETE FROM dhara_minute WHERE dead = 24")  # as a worker rolls it up
    assert patient.has("dhara.D085").what == "12 deaths in the last hour, 1 an hour in the day before"
    patient.does(MINUTE.format(3, 0, 2400))
    assert patient.is_well()


def test_runs_that_nobody_rescues(patient, worker, crew):
    worker()
    patient.does("""INSERT INTO dhara_task (id, backend, queue, function, payload, state, lease, lease_until, worker_id)
        VALUES (gen_random_uuid(), 'default', 'default', 'tests.app.tasks.count', '{}', 'RUNNING', 1,
                now() - interval '10 min', gen_random_uuid())""")
    finding = patient.has("dhara.D086")
    assert finding.what == "1 runs, the first for 10 min"
    reaper = crew.run("dhara_reaper", "--once")
    assert reaper.ends(30) == 0
    assert {finding.id for finding in patient.findings()} <= {"dhara.D084", "dhara.D086"}


def test_tasks_that_nobody_prunes(patient, worker, crew):
    worker()
    id_ = patient.database.add("count")
    ended = "UPDATE dhara_task SET state = 'COMPLETED', finished_at = now() - interval '9 days' WHERE id = %s"
    patient.database.rows(ended, id_)
    finding = patient.has("dhara.D087")
    assert finding.what == "a COMPLETED task is 9 days old, and should have gone after 7 days"
    assert crew.run("dhara_prune").ends(30) == 0
    assert patient.is_well()
