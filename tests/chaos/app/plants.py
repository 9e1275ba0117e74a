"""Bugs to plant: each patches this process, never the product's files, and a run must find it.

A chaos run that finds nothing proves something only if it would have found these. `FOUND_BY` says by which profile and
under which rules.
"""

import os
import time
from functools import wraps
from importlib import import_module
from threading import BoundedSemaphore

from tests.chaos.plan import Plan

#: name: (profile, rules one of which must be broken)
FOUND_BY = {
    "settle by state": ("A", {"I5", "I6", "I20"}),
    "attempt counted late": ("A", {"I7"}),
    "settle once": ("A", {"I8"}),
    "enqueue elsewhere": ("C", {"I3", "I4"}),
    "early ack": ("C", {"I1"}),
    "select then insert": ("C", {"I9"}),
    "language stays": ("A", {"clean"}),
    "no look after listen": ("L", {"I14"}),
    "lease by worker clock": ("F", {"I5", "I8"}),
    "any order": ("O", {"I12"}),
    "renewals from the pool": ("A", {"I8"}),
}


def planted():
    """The name of this run's bug."""
    return Plan.here().plant if "CHAOS" in os.environ else ""


def plant():
    if name := planted():
        _PLANTS.get(name, lambda: None)()


def _settle_by_state():
    from django_dhara.lifecycle import runs

    sql = runs._SETTLE
    for old, new in (
        ("task.id = ending.id AND task.lease = ending.lease", "task.id = ending.id"),
        ("task.lease = held.lease AND", ""),
    ):
        assert old in sql, old
        sql = sql.replace(old, new)
    runs._SETTLE = sql


def _attempt_counted_late():
    """A loss is not counted when the task is taken back: nobody is left to count it later."""
    from django_dhara.lifecycle import reaper

    assert "lost = task.lost + 1," in reaper._RESCUE
    reaper._RESCUE = reaper._RESCUE.replace("lost = task.lost + 1,", "")


def _settle_once():
    from django_dhara.worker.loop import Worker

    on_disconnected = Worker._on_disconnected

    @wraps(on_disconnected)
    def forgets(self, error):
        for run in list(self._hand.endings):
            self._hand.forget(run)
        on_disconnected(self, error)

    Worker._on_disconnected = forgets


def _language_stays():
    from django_dhara.worker.executors import Threads

    class Same:
        def copy(self):
            return self

        def run(self, call, *args):
            return call(*args)

    init = Threads.__init__

    @wraps(init)
    def keeps(self, *args):
        init(self, *args)
        self._context = Same()

    Threads.__init__ = keeps


def _no_look_after_listen():
    from django_dhara.worker.ears import Ears

    opens = Ears.open
    Ears.open = wraps(opens)(lambda self, other: opens(self, other) and False)


def _any_order():
    claim = import_module("django_dhara.lifecycle.claim")  # the package has a function of that name
    sql = claim._STATEMENT
    for old in ("ORDER BY priority DESC, random()", "ORDER BY priority DESC, is_rest, run_at, id"):
        assert old in sql, old
        sql = sql.replace(old, "ORDER BY random()")
    claim._STATEMENT = sql


def _renewals_from_the_pool():
    """Functions and renewals share four connections; a renewal that gets none in time is left out."""
    from django_dhara import lifecycle
    from django_dhara.worker import executors

    pool = BoundedSemaphore(4)
    execute, renew = executors.execution.execute, lifecycle.renew

    @wraps(execute)
    def executes(run):
        with pool:
            return execute(run)

    @wraps(renew)
    def renews(execute, worker, leases, **options):
        if pool.acquire(blocking=False):
            try:
                return renew(execute, worker, leases, **options)
            finally:
                pool.release()
        return lifecycle.Renewal(set(), set(), True)

    executors.execution.execute, lifecycle.renew = executes, renews


def _lease_by_worker_clock():
    """Leases end at a time that the worker has read from its own clock."""
    from django_dhara import lifecycle

    def by_own_clock(function):
        @wraps(function)
        def claims(execute, *args, lease_seconds, **options):
            [[now]] = execute("SELECT extract(epoch FROM statement_timestamp())::float8", {})
            return function(execute, *args, lease_seconds=lease_seconds + time.time() - now, **options)

        return claims

    lifecycle.claim, lifecycle.renew = by_own_clock(lifecycle.claim), by_own_clock(lifecycle.renew)


def _select_then_insert():
    """The index that makes keys unique is dropped by `server.prepare`."""
    from django_dhara import enqueue

    columns = "%s, %s, %s, %s, %s, %s"
    sql = enqueue._INSERT_ONE
    conflict = "ON CONFLICT (function, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
    assert conflict in sql, sql
    assert columns in sql, sql
    for name in ("_INSERT_ONE", "_INSERT_MANY"):
        setattr(enqueue, name, getattr(enqueue, name).replace(conflict, ""))
    insert = enqueue._insert_fresh

    @wraps(insert)
    def looks_first(connection, backend, rows):
        from django_dhara.models import Task

        keys = [row.key for row in rows if row.key is not None]
        taken = set(Task.objects.filter(idempotency_key__in=keys).values_list("idempotency_key", flat=True))
        if free := [row for row in rows if row.key not in taken]:
            insert(connection, backend, free)

    enqueue._insert_fresh = looks_first


_PLANTS = {
    "settle by state": _settle_by_state,
    "attempt counted late": _attempt_counted_late,
    "settle once": _settle_once,
    "language stays": _language_stays,
    "no look after listen": _no_look_after_listen,
    "lease by worker clock": _lease_by_worker_clock,
    "any order": _any_order,
    "renewals from the pool": _renewals_from_the_pool,
    "select then insert": _select_then_insert,
}
