"""Processes that are killed, frozen, starved, or told to stop."""

import os
import signal
from contextlib import suppress
from time import monotonic, sleep

import psycopg

from tests.chaos.faults.arena import fault
from tests.workers.harness import until


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


def _busy_slot(arena, draw):
    """A worker that runs something; any if none does, or if nobody can be asked."""
    owners = "SELECT pid FROM dhara_worker WHERE id IN (SELECT worker_id FROM dhara_task WHERE state = 'RUNNING')"
    busy = set()
    with suppress(psycopg.Error):
        busy = {pid for (pid,) in arena.server.ask(owners)}
    return draw.choice([slot for slot in arena.fleet.workers if slot.pid in busy] or arena.fleet.workers)


@fault("freeze")
def freeze(arena, draw):
    """SIGSTOP for one to three leases, then SIGCONT: what wakes up believes that nothing has happened."""
    slot = _busy_slot(arena, draw)
    process, pids = slot.process, [slot.pid, *slot.children]
    with arena.during("freeze", pids=pids):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        arena.pause(draw.uniform(1.3, 3.0) * arena.plan.lease)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    until(lambda: not process.lives or process._stat()[0] != "T")


#: A worker is registered before its first claim.
_IS_UP = "SELECT 1 FROM dhara_worker WHERE pid = %s AND stopped_at IS NULL"


@fault("stop and start")
def stop_and_start(arena, draw):
    """SIGTERM, and the supervisor starts it anew: one step of a rolling deploy, which waits for the new one."""
    slot = draw.choice(arena.fleet.workers)
    with arena.during("term", pids=[slot.pid, *slot.children]):
        process = slot.process
        with suppress(ProcessLookupError):
            process.signal(signal.SIGTERM)
        until(lambda: not process.lives, 20)
    if process.popen.returncode == 0:
        arena.witness("F16", pid=process.pid)
    with suppress(psycopg.Error, AssertionError):
        until(lambda: arena.server.ask(_IS_UP, slot.pid) or arena.ends.is_set(), 10)


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
