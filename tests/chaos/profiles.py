"""Profiles: which faults beside which load. Faults hide each other, so each profile has few.

A floor is how many times a fault is expected to hit in a minute of load; a run with less than half of it proves
nothing and is VACUOUS.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Load:
    """What one enqueuer does.

    Args:
        modes: how it enqueues, by weight; see `enqueuer.py`.
        functions: what it enqueues, by weight.
        rate: transactions a second.
        racers: threads of one enqueuer that race for a key.
        bulk: calls of one `enqueue_many`, or half of the most that are enqueued by one transaction.
        queues: so many, of which each call goes to one; 0: the default queue.
    """

    modes: dict
    functions: dict
    rate: float = 25.0
    racers: int = 4
    bulk: int = 10
    queues: int = 0


@dataclass(frozen=True)
class Lane:
    """Faults that come one after the other, in an order that the seed fixes.

    Args:
        faults: names of `faults.FAULTS`, by weight.
        gap: mean seconds of quiet between two of them.
    """

    faults: dict
    gap: float = 2.0


@dataclass(frozen=True)
class Profile:
    """One kind of run.

    Args:
        workers: flags of each worker.
        worker_env: more of the environment of each worker.
        floors: hits that are expected in a minute, by fault.
        actions: of the operator, a second; 0: none.
        proxied: roles that reach the server through the proxy.
        pooled: everything goes through PgBouncer in transaction mode.
        env: of every process.
        isolation: default of the database.
        standby: the server has a synchronous one.
        disk: megabytes of a disk of the server's own, at first and for each minute of the run; empty: it has none.
        clock: that of the server is stepped.
        server: settings of PostgreSQL.
        requires: programs that must be installed.
        lease: in seconds.
        pickup: seconds within which an acknowledged task must have started in a quiet time, as P11 has it.
        pickup_in_faults: ... and in any other time, too.
        recovers: throughput must come back after faults of the database.
    """

    name: str
    title: str
    load: Load
    lanes: tuple = ()
    workers: tuple = ((), (), ("--processes", "2"))
    floors: dict = field(default_factory=dict)
    worker_env: tuple = ()
    enqueuers: int = 2
    actions: float = 0.0
    proxied: tuple = ()
    pooled: bool = False
    env: dict = field(default_factory=dict)
    isolation: str = ""
    standby: bool = False
    disk: tuple = ()
    clock: bool = False
    server: dict = field(default_factory=dict)
    requires: tuple = ()
    lease: float = 2.0
    pickup: float | None = None
    pickup_in_faults: bool = False
    recovers: bool = True

    @property
    def is_poisoned(self):
        return "killer" in self.load.functions


SHORT = {"instant": 60, "brief": 30, "slow": 5}
LONG = {"instant": 40, "brief": 20, "slow": 15, "long": 8, "effect": 12, "async": 5, "flaky": 3, "speaks": 2}
MIXED = {**SHORT, "long": 3, "effect": 10, "async": 5, "flaky": 5, "snoozing": 3, "speaks": 2, "hopeless": 1}
#: Above READ COMMITTED an atomic function that outlasts a renewal of its lease cannot commit; a system check says so.
ABOVE = {**MIXED, "effect": 2, "long effect": 1}
PLAIN = {"plain": 70, "autocommit": 30}
ALL_MODES = {
    "plain": 30,
    "autocommit": 15,
    "rollback": 15,
    "savepoint": 10,
    "silent": 5,
    "bulk": 5,
    "race": 12,
    "replay": 8,
}

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
ROLES = ("worker", "enqueuer", "operator")

_KILLS = {"kill worker": 4, "kill child": 2, "kill all": 1}
_DATABASE = {"crash": 3, "crash long": 2, "crash backend": 1, "end sessions": 4, "end some sessions": 6}

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "A",
            "owners: long tasks, workers killed and frozen, the server crashing",
            Load(PLAIN, LONG, rate=10),
            (Lane({**_KILLS, "freeze": 5}, 1.0), Lane(_DATABASE, 4.0)),
            floors={"F1": 3, "F2": 1, "F4": 1, "F5": 2},
        ),
        Profile(
            "B",
            "cancels and revivals, workers killed and frozen, sessions ended",
            Load(PLAIN, MIXED, rate=15),
            (Lane({**_KILLS, "freeze": 5}, 1.5), Lane({"end sessions": 1, "end some sessions": 3}, 3.0)),
            floors={"F1": 2, "F2": 0.5, "F5": 2, "cancels": 60},
            actions=15.0,
        ),
        Profile(
            "C",
            "enqueueing: rollbacks, savepoints, racers, bulk; the server crashing, sessions ended, the network cut",
            Load(ALL_MODES, {**SHORT, "effect": 10}, racers=25),
            (Lane(_DATABASE, 5.0), Lane({"cut": 3, "slow network": 2, "refuse": 1}, 4.0)),
            floors={"F4": 1, "F5": 2, "F8": 2, "racers": 200},
            proxied=("enqueuer",),
        ),
        Profile(
            "D",
            "network: slow, cut, refusing and silent; no slots left, small timeouts",
            Load(ALL_MODES, MIXED, rate=20),
            (
                Lane({"cut": 3, "slow network": 3, "refuse": 2, "silence": 3}, 3.0),
                Lane({"no slots": 1, "small timeouts": 2}, 6.0),
            ),
            floors={"F8": 4, "F11": 0.5, "F12": 0.5},
            proxied=ROLES,
            actions=3.0,
            server={"max_connections": "70"},
            recovers=False,
        ),
        Profile(
            "DP",
            "everything through PgBouncer in transaction mode, which is restarted and paused; sessions ended",
            Load(ALL_MODES, MIXED, rate=20),
            (
                Lane({"restart pooler": 3, "pause pooler": 3, "crash": 1}, 4.0),
                Lane({"end sessions": 1, "end some sessions": 3, **_KILLS}, 3.0),
            ),
            floors={"F7": 3, "F5": 2},
            actions=3.0,
            pooled=True,
            requires=("pgbouncer",),
        ),
        Profile(
            "DF",
            "failover to a synchronous standby, with promotion",
            Load(ALL_MODES, MIXED, rate=20),
            (Lane({"fail over": 1}, 6.0), Lane(_KILLS, 8.0)),
            floors={"F6": 1},
            proxied=ROLES,
            actions=3.0,
            standby=True,
        ),
        Profile(
            "DR",
            "the database's default isolation is REPEATABLE READ; owners and sessions as in A",
            Load(ALL_MODES, ABOVE),
            (Lane({**_KILLS, "freeze": 5}, 1.5), Lane(_DATABASE, 5.0)),
            floors={"F1": 2, "F2": 0.5, "F4": 1, "F5": 2, "E009": 0.1, "refused atomic": 2},
            isolation="repeatable read",
            actions=3.0,
        ),
        Profile(
            "DS",
            "the database's default isolation is SERIALIZABLE; owners and sessions as in A",
            Load(ALL_MODES, ABOVE),
            (Lane({**_KILLS, "freeze": 5}, 1.5), Lane(_DATABASE, 5.0)),
            floors={"F1": 2, "F2": 0.5, "F4": 1, "F5": 2, "E009": 0.1, "refused atomic": 2},
            isolation="serializable",
            actions=3.0,
        ),
        Profile(
            "E",
            "pressure: hundreds of tasks a second; held snapshots and logs, locks, slow writes, a full disk",
            Load({"bulk": 1}, {"instant": 1}, rate=5, bulk=100),
            (
                Lane({"slow writes": 2, "lock table": 2, "fill disk": 1}, 5.0),
                Lane({"hold snapshot": 2, "prepared transaction": 1, "unused slot": 1, "deaf listener": 1}, 3.0),
            ),
            floors={"F9": 0.5, "F13": 1, "F13p": 0.5, "F13s": 0.5, "F14": 0.5, "F15": 0.5, "F20": 0.5},
            disk=(1200, 160),
            server={
                "max_wal_size": "128MB",
                "min_wal_size": "32MB",
                "max_prepared_transactions": "2",
                "max_slot_wal_keep_size": "96MB",
            },
            recovers=False,
        ),
        Profile(
            "K",
            "clerk: settles by the hundred; its session ended in mid-statement, the server crashing, workers killed",
            Load({"bulk": 1}, {"instant": 1}, rate=0.6, bulk=500),
            (
                Lane({"end clerks": 6, "end sessions": 1, "crash": 1, "crash long": 1}, 2.0),
                Lane({"kill worker": 1}, 8.0),
            ),
            floors={"clerk": 60, "F5c": 2, "F4": 0.5},
        ),
        Profile(
            "F",
            "time: workers whose clocks are ten minutes ahead, ten behind, or twice as fast; scheduled tasks, retries",
            Load({"plain": 40, "ahead": 60}, {**MIXED, "flaky": 20}),
            (Lane({**_KILLS, "freeze": 3}, 3.0), Lane({"end some sessions": 1}, 5.0)),
            floors={"F10": 3, "F1": 1},
            worker_env=tuple(
                {"LD_PRELOAD": FAKETIME, "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
                for clock in ("+600s", "-600s", "+0 x2")
            ),
            requires=("faketime",),
        ),
        Profile(
            "FS",
            "time: the server's own clock steps an hour forward, again and again, and back for seconds",
            Load({"plain": 40, "ahead": 60}, {**MIXED, "flaky": 20}),
            (Lane({"clock forward": 2, "clock back": 1}, 5.0), Lane({"kill worker": 1, "end some sessions": 1}, 6.0)),
            floors={"F10s": 4},
            actions=3.0,
            clock=True,
            requires=("faketime",),
            recovers=False,
        ),
        Profile(
            "G",
            "poison: functions and rows that abuse or kill their worker; starved processes",
            Load({"plain": 95, "odd row": 5}, {**SHORT, "effect": 5, "abuse": 12, "killer": 0.4, "speaks": 3}),
            (Lane({"starve": 1}, 6.0),),
            floors={"F18": 60, "F3": 0.5},
        ),
        Profile(
            "H",
            "deploys: one worker after the other is told to stop, and started anew",
            Load(PLAIN, LONG, rate=12),
            (Lane({"stop and start": 1}, 0.3), Lane({"stop and start": 1}, 0.3)),
            workers=((), (), (), (), ("--processes", "2")),
            floors={"F16": 6},
        ),
        Profile(
            "O",
            "order: one worker with one slot, priorities; the server crashing, sessions ended",
            Load({"ranked": 1}, {"brief": 1}, rate=0.25, bulk=80),
            (Lane({"crash": 1, "end sessions": 1, "end some sessions": 2}, 5.0),),
            workers=(("--concurrency", "1", "--async-concurrency", "0"),),
            floors={"F4": 1, "F5": 2},
            enqueuers=1,
            env={"DHARA_MAX_PREFETCH": 0},
        ),
        Profile(
            "L",
            "listeners: their sessions ended again and again; six workers that hardly poll, each with few tasks",
            Load({"plain": 1}, {"instant": 1}, rate=1.5, queues=6),
            (Lane({"end listeners": 1}, 0.7),),
            workers=tuple(("--poll-interval", "30", "--queues", f"q{number}") for number in range(6)),
            floors={"F5": 15, "sessions": 60},
            enqueuers=1,
            pickup=4.0,
            pickup_in_faults=True,
            recovers=False,
        ),
    )
}
