"""A process that enqueues, in every way in which a caller can: `python -m tests.chaos.enqueuer NUMBER`.

It says what it is about to do, and what came of it. Acknowledged is only what `on_commit` has said: a block that ended
without an exception proves nothing.
"""

import os
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from time import monotonic, sleep

import django
from django.db import connection, connections, transaction

from tests.chaos.history import Ledger
from tests.chaos.plan import Plan
from tests.chaos.profiles import PROFILES

#: Racers of all enqueuers meet at multiples of this, in seconds: the key is the number of the slot.
SLOT_SECONDS = 0.5

#: Functions and modes that come after a calm time.
POISON = {"abuse", "killer", "odd row"}

_ODD_ROW = """
INSERT INTO dhara_task (id, backend, queue, function, payload, metadata, max_attempts)
VALUES (gen_random_uuid(), 'default', 'default', 'tests.chaos.app.tasks.work', %s::jsonb, %s::jsonb, 2)
"""


class _RolledBack(Exception):
    """Raised by the caller's own code."""


class Operation:
    """One transaction of a caller: what it enqueued, and how it ended."""

    def __init__(self, ledger, op, mode, plant=""):
        self._ledger, self.op, self.mode, self._plant = ledger, op, mode, plant
        self._results = []
        self._said_precommit = self._is_acked = False

    def call(self, function, uid, *args, key=None):
        """Enqueue one call."""
        self._ledger.write("try", op=self.op, mode=self.mode, uid=uid, key=key)
        task = function if key is None else function.using(idempotency_key=key)
        if self._plant == "enqueue elsewhere":
            result = _elsewhere(lambda: task.enqueue(uid, *args))
        else:
            result = task.enqueue(uid, *args)
        self.add(uid, result)
        return result

    def add(self, uid, result):
        self._results.append([uid, str(result.id), result.duplicate])

    def run(self, body, *, ends="commit"):
        """`body` in a transaction that commits, or is rolled back by an exception, or quietly."""
        from tests.chaos.app.models import Written

        try:
            with transaction.atomic():
                body(self)
                Written.objects.create(op=self.op)
                self._say_precommit()
                transaction.on_commit(self.ack)
                self._end_by(ends)
        except _RolledBack:
            self._say("rb")
        except Exception as error:
            self._failed(error)
        else:
            if not self._is_acked:
                self._say("silent")

    def _end_by(self, ends):
        if self._plant == "early ack":
            self.ack()
        if ends == "rollback":
            raise _RolledBack
        if ends == "silent":
            transaction.set_rollback(True)

    def run_alone(self, function, *args):
        """One enqueue without a transaction around it."""
        try:
            self._say_precommit()
            result = self.call(function, *args)
            if result.committed:
                self.ack()
            else:
                self._say("silent")
        except Exception as error:
            self._failed(error)

    def undo(self, uid):
        """The savepoint around this call was rolled back."""
        gone = [made for made in self._results if made[0] == uid]
        self._results = [made for made in self._results if made[0] != uid]
        self._ledger.write("rb", op=self.op, made=gone or [[uid, None, False]])

    def ack(self):
        self._is_acked = True
        self._say("ack")

    def _say_precommit(self):
        self._said_precommit = True
        self._ledger.write("precommit", op=self.op)

    def _failed(self, error):
        if not self._is_acked:
            # Before the commit was sent nothing can have been committed; of what came after nobody knows.
            self._say("unknown" if self._said_precommit else "rb", error=type(error).__name__)
        _recover()

    def _say(self, event, **more):
        self._ledger.write(event, op=self.op, made=self._results, **more)


def _elsewhere(call):
    """On another thread, and so on another connection than the caller's."""
    made = []

    def runs():
        made.append(call())
        connections.close_all()

    thread = threading.Thread(target=runs)
    thread.start()
    thread.join()
    return made[0]


def _recover():
    """A caller whose connection broke gets a new one."""
    try:
        connection.close()
    except Exception:
        connection.connection = None
    sleep(0.05)


class Enqueuer:
    def __init__(self, number, plan, ledger):
        self._number, self._plan, self._ledger = number, plan, ledger
        self._load = PROFILES[plan.profile].load
        self._draw = random.Random(f"{plan.seed} enqueuer {number}")
        self._numbers = count()
        self._pool = ThreadPoolExecutor(self._load.racers)
        self._stops = False
        self._slots = []
        #: When it does, by the monotonic clock; None: it has begun to.
        self._poisons_at = monotonic() + plan.calm
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_):
        self._stops = True

    def serve(self):
        due = monotonic()
        while not self._stops:
            mode = self._one_of(self._load.modes)
            getattr(self, f"_{mode.replace(' ', '_')}")()
            due = max(due + 1 / self._load.rate, monotonic() - 1.0)
            sleep(max(due - monotonic(), 0))
        self._pool.shutdown()

    def _one_of(self, weights):
        """One of these by weight; no poison in calm times."""
        if self._is_calm:
            weights = {name: weight for name, weight in weights.items() if name not in POISON}
        return self._draw.choices(list(weights), list(weights.values()))[0]

    @property
    def _is_calm(self):
        if self._poisons_at is not None and monotonic() >= self._poisons_at:
            self._poisons_at = None
            if self._plan.calm:
                self._ledger.write("poison")
        return self._poisons_at is not None

    def _operation(self, mode):
        return Operation(self._ledger, self._name(), mode, self._plan.plant)

    def _name(self):
        return f"{os.getpid()}-{self._number}-{next(self._numbers)}"

    def _drawn(self):
        """A function with its arguments."""
        from tests.chaos.app import tasks
        from tests.chaos.app.abuse import ABUSES

        draw, lease = self._draw, self._plan.lease
        kinds = {
            "instant": lambda: (tasks.work, self._name()),
            "brief": lambda: (tasks.work, self._name(), draw.uniform(0.005, 0.02)),
            "slow": lambda: (tasks.work, self._name(), 0.3),
            "long": lambda: (tasks.work, self._name(), draw.uniform(1.0, 1.5) * lease),
            "effect": lambda: (tasks.effect, self._name(), draw.choice([0, 0.01, 0.3])),
            "long effect": lambda: (tasks.long_effect, self._name()),
            "async": lambda: (tasks.awork, self._name(), draw.uniform(0, 0.3)),
            "flaky": lambda: (tasks.flaky, self._name(), draw.randint(1, 2)),
            "hopeless": lambda: (tasks.flaky, self._name(), 1000),
            "snoozing": lambda: (tasks.snoozing, self._name(), draw.randint(1, 2)),
            "speaks": lambda: (tasks.speaks, self._name()),
            "abuse": lambda: (tasks.abuses, self._name(), draw.choice(ABUSES)),
            "killer": lambda: (tasks.kills, self._name(), draw.choice(["exit", "kill"])),
        }
        function, *args = kinds[self._one_of(self._load.functions)]()
        if self._load.queues:
            function = function.using(queue_name=f"q{draw.randrange(self._load.queues)}")
        return function, *args

    # ----------------------------------------------------------------------------------------------------- the modes

    def _plain(self):
        drawn = self._drawn()
        self._operation("plain").run(lambda op: op.call(*drawn))

    def _autocommit(self):
        self._operation("autocommit").run_alone(*self._drawn())

    def _rollback(self):
        drawn = self._drawn()
        self._operation("rollback").run(lambda op: op.call(*drawn), ends="rollback")

    def _silent(self):
        drawn = self._drawn()
        self._operation("silent").run(lambda op: op.call(*drawn), ends="silent")

    def _savepoint(self):
        outer, inner = self._drawn(), self._drawn()

        def body(op):
            op.call(*outer)
            try:
                with transaction.atomic():
                    op.call(*inner)
                    raise _RolledBack
            except _RolledBack:
                op.undo(inner[1])

        self._operation("savepoint").run(body)

    def _ahead(self):
        """Not before some seconds have passed."""
        function, *args = self._drawn()
        later = function.using(run_after=timedelta(seconds=self._draw.uniform(0.2, 5)))
        self._operation("ahead").run(lambda op: op.call(later, *args))

    def _ranked(self):
        """Many of different priorities at once: more than the worker has done in a moment."""
        drawn = [self._drawn() for _ in range(self._draw.randint(1, 2 * self._load.bulk))]
        ranked = [(function.using(priority=self._draw.randint(-3, 3)), *args) for function, *args in drawn]

        def body(op):
            for each in ranked:
                op.call(*each)

        self._operation("ranked").run(body)

    def _odd_row(self):
        """A row that some other program has written."""
        from tests.chaos.app.abuse import ODD_PAYLOADS

        uid, payload = self._name(), self._draw.choice(ODD_PAYLOADS)
        self._ledger.write("try", op=uid, mode="odd row", uid=uid, key=None)
        try:
            with connection.cursor() as cursor:
                cursor.execute(_ODD_ROW, [payload, f'{{"uid": "{uid}"}}'])
        except Exception:
            _recover()

    def _bulk(self):
        """Many calls without a key, and two with keys that other bulks have too, in another order."""
        from django_dhara.operations import enqueue_many
        from tests.chaos.app import tasks

        calls = [self._drawn() for _ in range(self._load.bulk)]
        keys = [f"bulk {int(monotonic())} {n}" for n in self._draw.sample(range(3), 2)]

        def body(op):
            for _, uid, *_ in calls:
                self._ledger.write("try", op=op.op, mode="bulk", uid=uid, key=None)
            for key in keys:
                self._ledger.write("try", op=op.op, mode="bulk", uid=key, key=key)
            bound = [function.bind(*args) for function, *args in calls]
            bound += [tasks.keyed.using(idempotency_key=key).bind(key) for key in keys]
            for uid, result in zip([uid for _, uid, *_ in calls] + keys, enqueue_many(bound), strict=True):
                op.add(uid, result)

        self._operation("bulk").run(body)

    def _race(self):
        """Many callers for one key at once, in this process and in the others."""
        slot = int(monotonic() / SLOT_SECONDS) + 1
        self._slots.append(slot)
        sleep(max(slot * SLOT_SECONDS - monotonic(), 0))
        racers = [self._pool.submit(self._race_for, f"race {slot}", n % 5 == 4) for n in range(self._load.racers)]
        for racer in racers:
            racer.result()

    def _race_for(self, key, rolls_back):
        from tests.chaos.app import tasks

        ends = "rollback" if rolls_back else "commit"
        self._operation("race").run(lambda op: op.call(tasks.keyed, key, key=key), ends=ends)

    def _replay(self):
        """A key of long ago, once more."""
        if self._slots:
            self._race_for(f"race {self._draw.choice(self._slots)}", rolls_back=False)


def main():
    plan = Plan.here()
    django.setup()
    Enqueuer(int(sys.argv[1]), plan, Ledger(plan.folder, "enqueuer")).serve()


if __name__ == "__main__":
    main()
