"""What goes wrong, how it is put right again, and what proves that it happened.

A fault is called by its name in `FAULTS`: it writes `fault`, does its harm, and writes `heal`. Where the proof is to be
had at once it writes `witness` with the code of reliability.md; of others the history itself is the proof (`F1`: a run
that never ended, `F2`: a write that was refused).
"""

import os
import signal
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import psycopg

from tests.workers.harness import until

FAULTS = {}


def fault(name):
    """Make a function of an `Arena` and a random generator known under a name."""

    def named(function):
        FAULTS[name] = function
        return function

    return named


class Arena:
    """What faults act upon.

    Args:
        ledger: where they say what they did.
        ends: an Event that is set when the load is over: faults that last look at it.
    """

    def __init__(self, plan, server, fleet, ledger, ends, proxy=None, pooler=None):
        self.plan, self.server, self.fleet, self.ledger, self.ends = plan, server, fleet, ledger, ends
        self.proxy, self.pooler = proxy, pooler

    @contextmanager
    def during(self, kind, **fields):
        """The time of a fault; `down=True` says that nobody can reach the database."""
        self.ledger.write("fault", kind=kind, **fields)
        yield
        self.ledger.write("heal", kind=kind, **fields)

    def witness(self, code, **proof):
        self.ledger.write("witness", code=code, **proof)

    def pause(self, seconds):
        """Let a fault last, but not beyond the load."""
        self.ends.wait(seconds)


# ------------------------------------------------------------------------------------------------------- processes


def _kill(arena, kind, pids):
    arena.ledger.write("fault", kind=kind, pids=pids)
    for pid in pids[:1] if kind == "kill" else pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@fault("kill worker")
def kill_worker(arena, draw):
    """SIGKILL; its child processes end with it, as the kernel promises them."""
    slot = draw.choice(arena.fleet.workers)
    _kill(arena, "kill", [slot.pid, *slot.children])


@fault("kill child")
def kill_child(arena, draw):
    """A child process alone, as when memory is short."""
    if children := [pid for slot in arena.fleet.workers for pid in slot.children]:
        _kill(arena, "kill child", [draw.choice(children)])


@fault("kill all")
def kill_all(arena, draw):
    for slot in arena.fleet.workers:
        _kill(arena, "kill", [slot.pid, *slot.children])


@fault("freeze")
def freeze(arena, draw):
    """SIGSTOP for one to three leases, then SIGCONT: what wakes up believes that nothing has happened."""
    slot = draw.choice(arena.fleet.workers)
    process, pids = slot.process, [slot.pid, *slot.children]
    with arena.during("freeze", pids=pids):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        arena.pause(draw.uniform(1.0, 3.0) * arena.plan.lease)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    until(lambda: not process.lives or process._stat()[0] != "T")


@fault("stop and start")
def stop_and_start(arena, draw):
    """SIGTERM, and the supervisor starts it anew: one step of a rolling deploy."""
    slot = draw.choice(arena.fleet.workers)
    with arena.during("term", pids=[slot.pid, *slot.children]):
        process = slot.process
        with suppress(ProcessLookupError):
            process.signal(signal.SIGTERM)
        until(lambda: not process.lives, 20)
    if process.popen.returncode == 0:
        arena.witness("F16", pid=process.pid)


@fault("starve")
def starve(arena, draw):
    """Stopped and continued, half of the time, for some leases."""
    slot = draw.choice(arena.fleet.workers)
    pids = [slot.pid, *slot.children]
    with arena.during("starve", pids=pids):
        ends, stops = monotonic() + 3 * arena.plan.lease, 0
        while monotonic() < ends and not arena.ends.is_set():
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                stops += 1
                sleep(draw.uniform(0.05, 0.2))
    arena.witness("F3", stops=stops)


# ------------------------------------------------------------------------------------------------------- the server


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
    """Those of one kind: the control loops', the listeners', the functions', those that settle, those that enqueue."""
    kinds = {
        "loops": "application_name LIKE 'dhara worker%'",
        "listeners": "application_name LIKE 'dhara listen%'",
        "functions": "application_name LIKE 'chaos worker%'",
        "enqueuers": "application_name LIKE 'chaos enqueuer%'",
        "settling": "query LIKE '%dhara:settle%'",
        "claiming": "query LIKE '%dhara:claim%'",
    }
    kind = draw.choice(list(kinds))
    _end(arena, kinds[kind], kind)


def _end(arena, where, what):
    with arena.during("end sessions", what=what):
        ended = arena.server.terminate(f"application_name <> 'nemesis' AND ({where})")
    if ended:
        arena.witness("F5", what=what, sessions=ended)


# ------------------------------------------------------------------------------------------------------- the network


@fault("cut")
def cut(arena, draw):
    """Every connection through the proxy is reset."""
    with arena.during("cut"):
        cut = arena.proxy.cut()
    if cut:
        arena.witness("F8", cut=cut)


@fault("slow network")
def slow_network(arena, draw):
    """Each packet takes longer, for some seconds."""
    with arena.during("slow network"):
        arena.proxy.delay = draw.uniform(0.005, 0.1)
        before = arena.proxy.passed
        arena.pause(draw.uniform(1, 4))
        arena.proxy.delay = 0.0
    if arena.proxy.passed > before:
        arena.witness("F8", delayed=arena.proxy.passed - before)


@fault("refuse")
def refuse(arena, draw):
    """Nobody gets through, and everybody is told."""
    with arena.during("refuse", through_proxy=True):
        arena.proxy.refuses = True
        cut = arena.proxy.cut()
        arena.pause(draw.uniform(0.5, 2) * arena.plan.lease)
        arena.proxy.refuses = False
    if arena.proxy.refused or cut:
        arena.witness("F8", refused=arena.proxy.refused, cut=cut)


@fault("silence")
def silence(arena, draw):
    """Half open: nothing arrives any more, and nobody is told."""
    with arena.during("silence", through_proxy=True):
        arena.proxy.freeze()
        arena.pause(draw.uniform(0.5, 2) * arena.plan.lease)
        held = arena.proxy.held
        arena.proxy.thaw()
    if held:
        arena.witness("F8", held=held)
