"""The server: crashed, failed over, its sessions ended, its slots used up, its limits made small."""

import os
import signal
from contextlib import ExitStack, suppress
from time import monotonic

import psycopg

from tests.chaos.faults.arena import fault
from tests.chaos.server import ROLE, STEP
from tests.workers.harness import until


def _crash(arena, seconds):
    before = arena.server.started_at()
    with arena.during("crash", down=True):
        arena.server.crash()
        arena.pause(seconds)
        arena.server.start()
    after = arena.server.started_at()
    if after != before:
        arena.witness("F4", seconds=seconds, before=before, after=after)


@fault("crash")
def crash(arena, draw):
    """Gone at once, and back within a lease."""
    _crash(arena, draw.uniform(0, 0.7) * arena.plan.lease)


@fault("crash long")
def crash_long(arena, draw):
    """Gone for twice a lease: no live run may be given away."""
    _crash(arena, draw.uniform(2.0, 2.5) * arena.plan.lease)


@fault("crash backend")
def crash_backend(arena, draw):
    """One server process dies: PostgreSQL ends all others and recovers."""
    with arena.during("crash backend", down=True), suppress(psycopg.OperationalError):
        connection = arena.server.connect()
        chosen = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        pids = [pid for (pid,) in connection.execute(chosen)]
        if pids:
            os.kill(draw.choice(pids), signal.SIGKILL)
        with suppress(psycopg.OperationalError):
            until(lambda: connection.execute("SELECT 1").fetchone() is None, 10)  # it is ended with all others
        arena.witness("F4", backend=True)
        until(lambda: _answers(arena.server), 30)


def _answers(server):
    try:
        return server.value("SELECT 1")
    except psycopg.Error:
        return False


@fault("end sessions")
def end_sessions(arena, draw):
    """All sessions at once."""
    _end(arena, "true", "all")


@fault("end some sessions")
def end_some_sessions(arena, draw):
    """Those of one kind, by who has them or by what they last did."""
    kinds = {
        "loops": "application_name LIKE 'dhara worker%'",
        "listeners": "application_name LIKE 'dhara listen%'",
        "clerks": "application_name LIKE 'dhara settle%'",
        "functions": "application_name LIKE 'chaos worker%'",
        "enqueuers": "application_name LIKE 'chaos enqueuer%'",
        "settling": "query LIKE '%dhara:settle%'",
        "claiming": "query LIKE '%dhara:claim%'",
    }
    kind = draw.choice(list(kinds))
    _end(arena, kinds[kind], kind)


@fault("end listeners")
def end_listeners(arena, draw):
    """The sessions that hear of new tasks; none of the others."""
    _end(arena, "application_name LIKE 'dhara listen%'", "listeners")


_CLERKS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'dhara settle%' AND state = 'active' AND query LIKE '%dhara:settle%'
"""


@fault("end clerks")
def end_clerks(arena, draw):
    """The second session of a worker, while it settles; whether that came to a commit only the server knows."""
    with arena.during("end sessions", what="clerks"), arena.server.connect() as connection:
        ends, found = monotonic() + 2.0, []
        while not found and monotonic() < ends and not arena.ends.is_set():
            found = connection.execute(_CLERKS).fetchall()
    if found:
        arena.witness("F5c", sessions=len(found))


def _end(arena, where, what):
    with arena.during("end sessions", what=what):
        ended = arena.server.terminate(f"application_name <> 'nemesis' AND ({where})")
    if ended:
        arena.witness("F5", what=what, sessions=ended)


@fault("fail over")
def fail_over(arena, draw):
    """The primary is gone, and its synchronous standby takes over; then it gets a standby of its own."""
    before = arena.pair.timeline
    with arena.during("fail over", down=True):
        arena.pair.fail_over()
    after = arena.pair.timeline
    if after == before + 1:
        arena.witness("F6", timeline=after)
    with arena.during("attach"):
        arena.pair.attach()


@fault("clock forward")
def clock_forward(arena, draw):
    """The server's clock is an hour further from one moment to the next: every lease is over."""
    with arena.during("clock forward"):
        _step_clock(arena, STEP)


@fault("clock back")
def clock_back(arena, draw):
    """... an hour behind, for some seconds: nothing that was due is."""
    with arena.during("clock back"):
        _step_clock(arena, -STEP)
        arena.pause(draw.uniform(0.5, 2) * arena.plan.lease)
        _step_clock(arena, STEP)


def _step_clock(arena, seconds):
    before = arena.server.now()
    arena.server.step_clock(seconds)
    stepped = arena.server.now() - before
    if abs(stepped - seconds) < 60:
        arena.witness("F10s", seconds=round(stepped, 1))


@fault("no slots")
def no_slots(arena, draw):
    """Somebody opens sessions until no more are to be had; whoever has to connect anew does not get in."""
    with arena.during("no slots", down=True), ExitStack() as held:
        refused = _take_all_slots(arena.server, held)
        arena.server.terminate("application_name LIKE 'dhara worker%' OR application_name LIKE 'chaos%'")
        refused += _take_all_slots(arena.server, held)
        arena.pause(draw.uniform(0.5, 1.5) * arena.plan.lease)
    if refused:
        arena.witness("F11", refused=refused)


def _take_all_slots(server, held):
    """Until SQLSTATE 53300, twice in a row."""
    refused = 0
    while refused < 2:
        try:
            held.enter_context(psycopg.connect(**{**server.parameters, "user": ROLE}, application_name="nemesis"))
        except psycopg.OperationalError as error:
            refused += "connection slots" in str(error) or "too many" in str(error)
    return refused


@fault("small timeouts")
def small_timeouts(arena, draw):
    """The limits of the role are made small for some seconds, and somebody locks the table now and then."""
    server, texts = (
        arena.server,
        ("due to statement timeout", "due to lock timeout", "due to idle-in-transaction timeout"),
    )
    before = [server.log_lines(text) for text in texts]
    with arena.during("small timeouts"):
        for name, value in {"statement": "300ms", "lock": "100ms", "idle_in_transaction_session": "250ms"}.items():
            server.ask(f"ALTER ROLE {ROLE} SET {name}_timeout = '{value}'")
        server.terminate(f"usename = '{ROLE}'")
        for _ in range(draw.randint(2, 5)):
            _lock_table(server, 0.4, arena)
            arena.pause(draw.uniform(0.5, 1.5))
        server.ask(f"ALTER ROLE {ROLE} RESET ALL")
        server.terminate(f"usename = '{ROLE}'")
    met = [server.log_lines(text) - earlier for text, earlier in zip(texts, before, strict=True)]
    if sum(met):
        arena.witness("F12", statement=met[0], lock=met[1], idle=met[2])


def _lock_table(server, seconds, arena):
    with server.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE dhara_task IN ACCESS EXCLUSIVE MODE")
        arena.pause(seconds)


@fault("lock table")
def lock_table(arena, draw):
    """As a careless migration does, for longer than a statement's deadline, at times for longer than a lease."""
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with arena.during("lock table", down=True), arena.server.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE dhara_task IN ACCESS EXCLUSIVE MODE")
        arena.pause(draw.uniform(0.3, 1.5) * arena.plan.lease)
        waiting = arena.server.value(waits)
    if waiting:
        arena.witness("F14", waiting=waiting)
