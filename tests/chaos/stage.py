"""One run from its first process to its evidence: load and faults, heal, drain, stop, dump."""

import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from tests.chaos import faults, history, nemesis
from tests.chaos.checker import Attempt, Evidence, Row
from tests.chaos.checker.evidence import Limits
from tests.chaos.clock import Clock
from tests.chaos.fleet import Fleet
from tests.chaos.monitor import Monitor
from tests.chaos.pooler import Pooler
from tests.chaos.server import DATABASE, ROLE, ChaosServer
from tests.chaos.standby import Pair
from tests.workers.harness import Process, Proxy, until

#: For what the load has left, beyond as long again as the load: faults can leave more than half of it.
DRAIN_SECONDS = 120.0

_LEFT = """
SELECT count(*) FROM dhara_task WHERE state = 'RUNNING' OR (state = 'PENDING' AND run_at < now() + interval '1 min')
"""


class Stage:
    """What a run stands on; made for one profile, torn down at the end.

    Args:
        plan: of the run.
        profile: of `profiles.py`.
        minutes: of load, by which the disk is measured.
    """

    def __init__(self, plan, profile, minutes):
        self.plan, self.profile = plan, profile
        self.folder = Path(plan.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = history.Ledger(self.folder, "stage")
        self.server = ChaosServer(megabytes=_disk(profile, minutes), clock=profile.clock, **profile.server)
        self.proxy = self.pooler = self.pair = None
        self.fleet = Fleet(self.ledger, self.folder, plan.env)
        self._ends = threading.Event()

    @contextmanager
    def built(self):
        """The server is up and empty; whatever happens, nothing of it is left."""
        try:
            self.server.start()
            self.server.prepare(self.folder / "migrate.log", keys_are_unique=self.plan.plant != "select then insert")
            self._build()
            yield
        finally:
            self.fleet.end()
            self._tear_down()
            self.server.destroy()

    def _tear_down(self):
        if self.proxy is not None:
            self.proxy.close()
        if self.pooler is not None:
            self.pooler.stop()
        if self.pair is not None:
            self.pair.end()

    def _build(self):
        if self.profile.isolation:
            self.server.ask(f"ALTER DATABASE {DATABASE} SET default_transaction_isolation = '{self.profile.isolation}'")
            self._check_isolation()
        if self.profile.proxied:
            self.proxy = Proxy(self.server.socket)
        if self.profile.pooled:
            self.pooler = Pooler(self.server)
            self.pooler.start()
        if self.profile.standby:
            self.pair = Pair(self.server, self._move_to)
            self.pair.attach()
        self._cast()

    def _check_isolation(self):
        """The system check names the atomic functions, which need READ COMMITTED."""
        words = [sys.executable, "manage.py", "check", "--database", "default"]
        env = {**self.plan.env, "DATABASE_URL": self.server.url}
        check = Process(words, self.folder / "check.log", **env)
        if check.ends(60) != 0 and "dhara.E009" in check.log and "long_effect" in check.log:
            self.ledger.write("witness", code="E009")

    def _move_to(self, socket):
        """The proxy leads to another server from now on."""
        self.proxy.target = str(socket)
        self.proxy.cut()

    def _cast(self):
        for number, flags in enumerate(self.profile.workers):
            env = self.profile.worker_env[number] if self.profile.worker_env else {}
            words = ("manage.py", "dhara_worker", "--concurrency", "4", "--drain-timeout", "3", *flags)
            self._add("worker", number, *words, **env)
        for number in range(self.profile.enqueuers):
            self._add("enqueuer", number, "-m", "tests.chaos.enqueuer", str(number))
        if self.profile.actions:
            self._add("operator", 0, "-m", "tests.chaos.operator")

    def _add(self, role, number, *words, **env):
        url = self.pooler.url if self.pooler else self.server.url
        if role in self.profile.proxied:
            url = f"postgresql://{ROLE}@127.0.0.1:{self.proxy.port}/{DATABASE}"
        self.fleet.add(f"{role} {number}", *words, DATABASE_URL=url, **self.profile.env, **env)

    # ---------------------------------------------------------------------------------------------------- the phases

    def play(self, seconds):
        """Everything up to the stop of the last worker.

        Args:
            seconds: of load with faults.
        """
        arena = faults.Arena(self.plan, self.server, self.fleet, self.ledger, self._ends)
        arena.proxy, arena.pooler, arena.pair = self.proxy, self.pooler, self.pair
        monitor, harm = Monitor(arena), nemesis.Nemesis(arena, self.profile.lanes)
        self.fleet.start()
        until(lambda: self._is_running(), 60)
        self._phase("load")
        monitor.start()
        harm.start()
        self._ends.wait(seconds)
        self._phase("heal")
        harm.end()
        nemesis.heal(arena)
        self.fleet.stop(lambda slot: not slot.is_worker, 30)
        self._phase("drain")
        self._drain(seconds + DRAIN_SECONDS)
        self._phase("stop")
        self.fleet.stop(lambda slot: slot.is_worker, 20)
        monitor.end()

    def _phase(self, name):
        self.ledger.write("phase", phase=name, wall=os.times().elapsed)

    def _is_running(self):
        return self.server.value("SELECT count(*) FROM dhara_task WHERE state = 'COMPLETED'") > 0

    def _drain(self, seconds):
        """Until all is done, or far too long; what is left then the checker names."""
        ends = monotonic() + seconds
        while self.server.value(_LEFT) and monotonic() < ends:
            sleep(0.2)

    # ---------------------------------------------------------------------------------------------------- what is left

    def evidence(self, limits):
        """All that the checker looks at."""
        events = history.read(self.folder)
        clock = Clock(events, self.server.clock_offset(), steps=self.profile.clock)
        return Evidence(
            events=events,
            changes=[clock.change(row) for row in self.server.ask(_CHANGES)],
            rows=[Row(*row) for row in self.server.ask(_ROWS)],
            attempts=[
                Attempt(*row) for row in self.server.ask("SELECT task_id::text, lease, ended FROM dhara_attempt")
            ],
            effects=self.server.ask("SELECT task_id::text, lease FROM chaos_effect"),
            written={op for (op,) in self.server.ask("SELECT op FROM chaos_written")},
            minutes=self.server.ask("SELECT function, completed FROM dhara_minute"),
            limits=limits,
        )

    def limits(self):
        return Limits(
            lease=self.plan.lease,
            pickup=self.profile.pickup,
            pickup_in_faults=self.profile.pickup_in_faults,
            order=1.5 if "ranked" in self.profile.load.modes else None,
            poison=self.profile.is_poisoned,
            few=2,  # of four
            throughput=15.0 if self.profile.recovers else None,
        )


def _disk(profile, minutes):
    return int(sum(each * times for each, times in zip(profile.disk, (1, minutes), strict=False)))


_ROWS = """
SELECT id::text, coalesce(metadata->>'uid', payload->'args'->>0), function, state, lease, failures, lost,
       interrupted, snoozed, max_attempts, idempotency_key, run_at < now() + interval '10 min', priority
FROM dhara_task
"""
_CHANGES = """
SELECT n, extract(epoch FROM at)::float8, id::text, was, state, old_lease, lease, coalesce(verb, '?'),
       extract(epoch FROM run_at)::float8, failures, lost, interrupted, snoozed, asked, newly_asked, worker::text
FROM chaos_log ORDER BY n
"""
