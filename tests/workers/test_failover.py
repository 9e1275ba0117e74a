"""A server that only reads, an answer that never comes to the one who enqueues, a signal to the whole process group."""

import os
import signal
from time import monotonic

from django_dhara.conf import Options
from tests.workers.harness import until

ENQUEUE = "from tests.app.tasks import count; count.enqueue('once')"


REFUSED = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"


def test_a_worker_leaves_a_server_that_only_reads_and_finds_one_that_writes(crew, database):  # B11
    worker, name = crew.start(), database.parameters["dbname"]
    database.rows(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')  # for new sessions
    try:
        before = database.value(REFUSED)
        assert database.terminate("dhara worker%")
        task = database.add("count", "after")
        until(lambda: database.value(REFUSED) >= before + 2)  # it comes back, is refused, and leaves again
        assert database.states(task) == ["PENDING"]
        assert worker.lives
    finally:
        database.rows(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    until(lambda: database.states(task) == ["COMPLETED"], 5 * 10)
    worker.says("has the database again")
    assert worker.stop() == 0


def test_an_enqueue_whose_answer_is_lost_is_an_error_and_never_sent_twice(crew, database, proxy):  # B14
    proxy.swallows = b"INSERT INTO dhara_task"
    caller = crew.run("shell", "-c", ENQUEUE, **proxy.env)
    assert caller.ends(30) == 1
    assert "django.db.utils.OperationalError" in caller.log
    assert proxy.swallowed, "the answer came through"
    assert database.value("SELECT count(*) FROM dhara_task") <= 1


def test_with_a_key_an_enqueue_whose_answer_is_lost_may_be_repeated(crew, database, proxy):  # B14
    code = ENQUEUE.replace("count.", "count.using(idempotency_key='k').")
    proxy.swallows = b"INSERT INTO dhara_task"
    assert crew.run("shell", "-c", code, **proxy.env).ends(30) == 1
    assert proxy.swallowed, "the answer came through"
    assert crew.run("shell", "-c", code, **proxy.env).ends(30) == 0
    assert database.rows("SELECT idempotency_key FROM dhara_task") == [("k",)]


def test_a_signal_to_the_whole_process_group_lets_functions_finish(crew, database):  # C04
    worker = crew.start()
    tasks = [database.add("nap", f"nap {n}", 1.0) for n in range(3)]
    until(lambda: all(database.effects(f"nap {n}") for n in range(3)))
    os.killpg(os.getpgid(worker.pid), signal.SIGTERM)
    began = monotonic()
    assert worker.ends() == 0
    assert monotonic() - began > 0.1, "nothing ran any more"
    assert database.states(*tasks) == ["COMPLETED"] * 3
    assert database.value("SELECT max(interrupted) FROM dhara_task") == 0


def test_by_default_a_dead_workers_task_is_back_within_a_minute():  # A18
    options = Options()
    assert options.lease_seconds + options.sweep_seconds + options.poll_seconds < 60
