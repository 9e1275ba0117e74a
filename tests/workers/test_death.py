"""Workers die, freeze and lose the database: their tasks go on elsewhere, and what a late worker says is refused."""

import json
import os
import signal
import time
from contextlib import contextmanager

import pytest

from tests.workers.harness import for_as_long_as, until


def reaped(log):
    return log.count("Rescued task")


@pytest.mark.fast
def test_the_task_of_a_killed_worker_runs_again_and_completes_once(crew, database):  # A01
    first = crew.start()
    task = database.add("nap", "once", 1.0)
    until(lambda: database.effects("once") == 1)
    first.kill()
    assert first.popen.returncode == -signal.SIGKILL
    died = time.monotonic()
    second = crew.start()
    until(lambda: database.effects("once") == 2)
    assert time.monotonic() - died < 5 * (2.0 + 0.3 + 2)  # lease + sweep + start, on a busy machine
    until(lambda: database.states(task) == ["COMPLETED"])
    row = database.task(task)
    assert (row["lease"], row["failures"], row["lost"]) == (2, 0, 1)
    assert database.history(task) == ["LOST"]
    assert database.effects("once ended") == 1
    assert reaped(second.log) == 1


def test_what_a_frozen_worker_says_when_it_wakes_is_refused(crew, database, tmp_path):  # A02
    zombie = crew.start("--no-reap")
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    with zombie.frozen():
        other = crew.start()
        until(lambda: database.task(task)["worker_id"] == crew.id_of(other))
        (tmp_path / "go").touch()
        until(lambda: database.states(task) == ["COMPLETED"])
        before = database.task(task)
    until(lambda: database.effects("held ended") == 2)
    zombie.says("Lease lost: task", str(task))
    assert zombie.stop() == 0
    assert database.task(task) == before
    assert before["lease"] == 2
    assert database.history(task) == ["LOST"]


@pytest.mark.slow
def test_a_frozen_worker_does_not_disturb_a_run_that_goes_on(crew, database, tmp_path):  # A02
    zombie = crew.start("--no-reap", "--drain-timeout", "1")
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    with zombie.frozen():
        other = crew.start()
        until(lambda: database.task(task)["worker_id"] == crew.id_of(other))
    zombie.says("Lease lost: task")
    assert zombie.stop() == 0  # its function still runs: it ends with the process
    assert database.task(task)["worker_id"] == crew.id_of(other)
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.task(task)["interrupted"] == 0


def test_a_dead_run_is_found_behind_many_long_ones_that_live(crew, database):  # A06
    database.rows(
        "INSERT INTO dhara_task (id, backend, function, queue, payload, state, lease, lease_until, worker_id, run_at)"
        " SELECT gen_random_uuid(), 'default', 'tests.app.tasks.count', 'default', '{}', 'RUNNING', 1,"
        " now() + interval '1 hour', gen_random_uuid(), now() - interval '1 day' FROM generate_series(1, 600)"
    )
    dead = database.add(
        "count", "dead", state="RUNNING", lease=1, lease_until="yesterday", worker_id="00000000000000000000000000000001"
    )
    crew.start()
    until(lambda: database.states(dead) == ["COMPLETED"], 4)


def test_a_run_longer_than_the_lease_runs_once_whatever_its_timeout(crew, database):  # A07, D04
    own = database.add("nap_with_own_timeout", "own", 3.5)
    call = database.add("nap", "call", 3.5, timeout=60.0)
    none = database.add("nap", "none", 3.5)
    crew.start()
    crew.start("--queues", "idle")
    until(lambda: database.states(own, call, none) == ["COMPLETED"] * 3)
    assert [database.effects(name) for name in ("own", "call", "none")] == [1, 1, 1]
    assert [database.task(task)["lost"] for task in (own, call, none)] == [0, 0, 0]


@pytest.mark.slow
def test_leases_are_kept_while_the_interpreter_is_busy(crew, database):  # A08
    tasks = [database.add("spin", f"spin {n}", 4.0) for n in range(4)]
    tasks += [database.add("anap", f"nap {n}", 4.0) for n in range(4)]
    worker = crew.start(DHARA_LEASE_SECONDS=3)
    until(lambda: database.effects() >= 8)
    left = []

    def looks():
        left.append(database.value("SELECT min(extract(epoch FROM lease_until - now())) FROM dhara_task"
                                   " WHERE state = 'RUNNING'"))  # fmt: skip
        return database.states(*tasks) == ["COMPLETED"] * 8

    until(looks, 40)
    assert min(seconds for seconds in left if seconds is not None) > 0
    assert reaped(worker.log) == 0
    assert database.value("SELECT max(lease) FROM dhara_task") == 1


@pytest.mark.slow
def test_a_function_that_blocks_the_event_loop_costs_nobody_the_lease(crew, database):  # A10
    others = [database.add("anap", f"nap {n}", 5.0) for n in range(9)]
    worker = crew.start()
    until(lambda: all(database.effects(f"nap {n}") for n in range(9)))
    blocker = database.add("ablock", "blocker", 6.0)
    crew.start("--queues", "idle")  # only reaps
    until(lambda: database.states(blocker, *others) == ["COMPLETED"] * 10, 30)
    assert database.value("SELECT max(lease) FROM dhara_task") == 1
    worker.says("tests.app.tasks.ablock", "has blocked the event loop")


@pytest.mark.slow
def test_recovery_needs_only_the_row_of_the_task(crew, database):  # A11, A13
    first = crew.start()
    task = database.add("nap", "once", 1.0)
    until(lambda: database.effects("once") == 1)
    first.kill()
    assert database.rows("DELETE FROM dhara_worker RETURNING pid") == [(first.pid,)]
    crew.start()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.history(task) == ["LOST"]


@pytest.mark.slow
def test_a_worker_whose_own_row_is_locked_keeps_its_leases_and_claims(crew, database, tmp_path):  # A14
    worker = crew.start()
    crew.start("--queues", "idle")
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    with database.connection.transaction():
        [[beat]] = database.rows("SELECT heartbeat_at FROM dhara_worker WHERE pid = %s FOR UPDATE", worker.pid)
        for_as_long_as(4.0, lambda: database.task(task)["lease"] == 1)
        late = database.value("SELECT clock_timestamp() - %s > interval '3 seconds'", beat)
        assert late, "the heartbeat was written all the same"
        new = database.add("count", "new")
    until(lambda: database.states(new) == ["COMPLETED"], 5)
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.task(task)["lost"] == 0


@pytest.mark.slow
def test_a_task_that_somebody_has_locked_for_a_while_keeps_its_run(crew, database, tmp_path):  # A14
    worker = crew.start(DHARA_LEASE_SECONDS=3)
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    with database.connection.transaction():
        [[ends]] = database.rows("SELECT lease_until FROM dhara_task WHERE id = %s FOR UPDATE", task)
        renewal = "SELECT clock_timestamp() > %s - make_interval(secs => 1)"
        until(lambda: database.value(renewal, ends))
        assert database.task(task)["lease_until"] == ends, "it was renewed all the same"
    new = database.add("count", "new")
    until(lambda: database.states(new) == ["COMPLETED"], 5)
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.effects("held") == 1
    assert "has lost the database" not in worker.log


@pytest.mark.slow
def test_renewals_do_not_need_the_functions_connections(crew, database):  # A15
    pytest.importorskip("psycopg_pool")
    pool = {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": {"min_size": 1, "max_size": 3}}}
    crew.start("--concurrency", "3", DHARA_TEST_DATABASE=json.dumps(pool))
    crew.start("--queues", "idle")
    tasks = [database.add("nap_in_database", f"query {n}", 5.0) for n in range(3)]
    until(lambda: database.effects() == 3)
    busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep%%' AND state = 'active' AND pid <> %s"
    until(lambda: database.value(busy, database.connection.info.backend_pid) == 3)
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 3)
    assert database.value("SELECT max(lease) FROM dhara_task") == 1


@pytest.mark.slow
def test_another_reaper_takes_over_from_one_that_was_killed(crew, database, tmp_path):  # A17
    first = crew.start()
    reaper = crew.run("dhara_reaper")
    until(lambda: database.sessions("dhara reaper"))
    (tmp_path / "go").touch()
    task = database.add("doze", "once", 60.0)
    until(lambda: database.effects("once") == 1)
    held = type(database)(**database.parameters)
    with held.connection.transaction():
        held.rows("LOCK dhara_attempt IN SHARE MODE")  # whoever rescues waits here, with the task's row locked
        first.kill()
        waits = "SELECT pid FROM pg_stat_activity WHERE application_name = 'dhara reaper' AND wait_event_type = 'Lock'"
        [[waiting]] = until(lambda: database.rows(waits))
        reaper.kill()
        second = crew.start()
        until(lambda: waiting not in database.sessions("dhara reaper"))
    held.close()
    until(lambda: database.effects("once") == 2)
    assert database.history(task) == ["LOST"]
    assert database.task(task)["worker_id"] == crew.id_of(second)


@pytest.mark.slow
def test_an_outage_longer_than_the_lease_is_not_a_death(server_crew, server, tmp_path):  # A19
    crew = server_crew
    workers = [crew.start("--concurrency", "1", DHARA_LEASE_SECONDS=4) for _ in range(3)]
    tasks = [server.database.add("doze", f"long {n}", 16.0) for n in range(3)]
    until(lambda: server.database.effects() == 3)
    idle = [crew.start("--concurrency", "1", DHARA_LEASE_SECONDS=4) for _ in range(2)]
    runs_out = server.database.value("SELECT max(lease_until) FROM dhara_task")
    server.stop()
    for worker in workers + idle:
        worker.says("has lost the database")
    for_as_long_as(8.0, lambda: server.cluster.pid() is None)
    server.start()
    database = crew.database = server.connect()
    assert database.value("SELECT pg_postmaster_start_time()") > runs_out, "the outage was too short"
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 3, 60)
    assert [database.effects(f"long {n}") for n in range(3)] == [1, 1, 1]
    assert [database.task(task)["lost"] for task in tasks] == [0, 0, 0]


@pytest.mark.slow
def test_an_outage_of_twice_the_lease_repeats_none_of_three_hundred_runs(server_crew, server, tmp_path):  # A19
    crew, begun = server_crew, tmp_path / "begun"
    begun.touch()
    workers = [crew.start("--concurrency", "100", DHARA_MAX_PREFETCH=0) for _ in range(3)]
    crew.start("--queues", "idle")  # only reaps
    tasks = [
        server.database.add("", str(begun), f"run {n}", 14.0, function="tests.app.faults.wait_offline")
        for n in range(300)
    ]
    until(lambda: len(begun.read_text().splitlines()) == 300)
    runs_out = server.database.value("SELECT max(lease_until) FROM dhara_task")
    server.stop()
    for worker in workers:
        worker.says("has lost the database")
    for_as_long_as(2 * 2.0, lambda: server.cluster.pid() is None)
    server.start()
    database = crew.database = server.connect()
    assert database.value("SELECT pg_postmaster_start_time()") > runs_out, "the outage was too short"
    assert database.value("SELECT count(*) FROM dhara_task WHERE state = 'RUNNING'") == 300
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 300, 40)
    assert len(begun.read_text().splitlines()) == 300
    assert database.rows("SELECT DISTINCT lost, failures, interrupted FROM dhara_task") == [(0, 0, 0)]
    assert all(worker.lives for worker in workers)


@contextmanager
def slow_renewals(database, seconds):
    """The change of a running task takes so long."""
    database.rows(f"""
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$
    """)
    database.rows(
        "CREATE TRIGGER slow BEFORE UPDATE ON dhara_task FOR EACH ROW "
        "WHEN (OLD.state = 'RUNNING' AND NEW.state = 'RUNNING') EXECUTE FUNCTION slow()"
    )
    try:
        yield
    finally:
        database.rows("DROP FUNCTION slow CASCADE")


def test_leases_are_kept_where_the_server_cannot_renew_all_at_once(crew, database, tmp_path):
    worker = crew.start("--concurrency", "60", "--no-reap", DHARA_MAX_PREFETCH=0, DHARA_LEASE_SECONDS=6)
    tasks = [database.add("hold", f"held {n}", str(tmp_path / "go")) for n in range(60)]
    until(lambda: database.effects() == 60)
    with slow_renewals(database, 0.027):  # all of them in 1.6 s; a statement has 1.44 s
        worker.says("tries again: canceling statement due to statement timeout")
        # That one costs so much time that some may come late once; without any success all would be over for good.
        for_as_long_as(12.0, lambda: database.value("SELECT min(lease_until) > now() - interval '2 s' FROM dhara_task"))
    (tmp_path / "go").touch()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 60)


def test_a_worker_that_comes_to_renewing_late_loses_nothing(crew, database, tmp_path):
    worker = crew.start("--concurrency", "60", DHARA_MAX_PREFETCH=0, DHARA_LEASE_SECONDS=2)
    reaper = crew.run("dhara_reaper", DHARA_LEASE_SECONDS=2)
    tasks = [database.add("hold", f"held {n}", str(tmp_path / "go")) for n in range(60)]
    until(lambda: database.effects() == 60)
    with slow_renewals(database, 0.02):  # all of them in 1.2 s; a statement has 0.48 s
        worker.says("tries again: canceling statement due to statement timeout")
        until(lambda: database.value("SELECT min(lease_until) < now() FROM dhara_task"))  # there is something to take
        for_as_long_as(6.0, lambda: database.value("SELECT sum(lost) FROM dhara_task") == 0)
    (tmp_path / "go").touch()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 60)
    assert database.rows("SELECT DISTINCT lease, lost FROM dhara_task") == [(1, 0)]
    assert reaper.stop() == 0


def test_a_worker_gives_signs_of_life_while_the_tasks_are_locked(crew, database, tmp_path):
    worker = crew.start(DHARA_LEASE_SECONDS=2)
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects() == 1)
    with database.connection.transaction():
        database.rows("LOCK TABLE dhara_task")
        worker.says("tries again")
        age = "SELECT extract(epoch FROM clock_timestamp() - max(heartbeat_at)) FROM dhara_worker"
        for_as_long_as(4.0, lambda: database.value(age) < 2.0)
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.rows("SELECT lease, lost FROM dhara_task") == [(1, 0)]


def test_a_rescue_that_a_silent_network_delivers_late_takes_nothing(crew, database, proxy):
    reaper = crew.run("dhara_reaper", **proxy.env)  # it has nothing else to say
    until(lambda: proxy.passed > 20)
    database.rows(
        "INSERT INTO dhara_task (id, backend, queue, function, payload, state, lease, worker_id, started_at, "
        "attempted_at, lease_until) VALUES (gen_random_uuid(), 'default', 'default', 'tests.app.tasks.count', '{}', "
        "'RUNNING', 1, gen_random_uuid(), now(), now(), now() + interval '1.3 s')"
    )
    proxy.freeze()
    until(lambda: database.value("SELECT lease_until < now() FROM dhara_task"))
    assert proxy.held
    proxy.thaw()
    for_as_long_as(1.0, lambda: database.states() == {"RUNNING"})
    until(lambda: database.states() == {"PENDING"})  # nobody has renewed
    assert reaper.stop() == 0


@contextmanager
def disk_full(database):
    """No row of a task can be changed, and the server says why; it reads as ever."""
    database.rows("""
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = 'disk_full'; END $$
    """)
    database.rows("CREATE TRIGGER no_room BEFORE UPDATE ON dhara_task FOR EACH ROW EXECUTE FUNCTION no_room()")
    try:
        yield
    finally:
        database.rows("DROP FUNCTION no_room CASCADE")


def test_a_full_disk_is_not_a_death(crew, database, tmp_path):  # A19
    owner = crew.start("--no-reap")
    task = database.add("hold", "held", str(tmp_path / "go"))
    until(lambda: database.effects("held") == 1)
    reaper = crew.start("--queues", "idle")
    with disk_full(database):
        until(lambda: database.value("SELECT lease_until < now() FROM dhara_task"))
        reaper.says("has lost the database: no room")
        os.kill(owner.pid, signal.SIGSTOP)  # there is room for the reaper first
    spared = "SELECT lease_until > now() OR state <> 'RUNNING' FROM dhara_task"
    until(lambda: database.value(spared))
    os.kill(owner.pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
    assert database.effects("held") == 1
    assert (database.task(task)["lease"], database.task(task)["lost"]) == (1, 0)


def test_in_an_outage_nothing_is_started_and_all_that_ends_is_kept(server_crew, server, tmp_path):
    crew, begun = server_crew, tmp_path / "begun"
    worker = crew.start("--concurrency", "3", DHARA_LEASE_SECONDS=10)
    tasks = [
        server.database.add("", str(begun), f"run {n}", 0.4, function="tests.app.faults.wait_offline")
        for n in range(60)
    ]
    until(lambda: begun.exists() and len(begun.read_text().splitlines()) > 10)
    server.stop()
    worker.says("has lost the database")
    before = len(begun.read_text().splitlines())
    for_as_long_as(2.0, lambda: len(begun.read_text().splitlines()) <= before + 3)
    server.start()
    database = crew.database = server.connect()
    until(lambda: database.states(*tasks) == ["COMPLETED"] * 60, 30)
    assert len(begun.read_text().splitlines()) == 60
    assert worker.stop() == 0


@pytest.mark.slow
def test_who_died_in_an_outage_is_rescued_within_two_leases_of_its_end(server_crew, server, tmp_path):  # A19
    crew = server_crew
    victim = crew.start()
    task = server.database.add("hold", "once", str(tmp_path / "go"))
    until(lambda: server.database.effects("once") == 1)
    crew.start()
    server.stop()
    victim.kill()
    server.start()
    database = crew.database = server.connect()
    up = time.monotonic()
    until(lambda: database.effects("once") == 2, 20)
    assert time.monotonic() - up < 2 * 2.0 + 3
    (tmp_path / "go").touch()
    until(lambda: database.states(task) == ["COMPLETED"])
