"""The rows of the real backend, for `drain.py`: the statements of `lifecycle` on the connection of the test."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from django_dhara import execution, lifecycle, sql
from django_dhara.backend import DharaBackend
from django_dhara.execution import Run
from django_dhara.lifecycle import Claim, Ending, Report, Wanted
from django_dhara.models import Queue, Task, TaskQuerySet
from django_dhara.results import TaskResult
from django_dhara.states import Outcome, State

#: Nobody renews leases in a test, so they are long.
LEASE_SECONDS = 86_400.0


class Rows:
    """The tasks of a backend, or of some of its queues.

    Args:
        queues: None: all.
    """

    def __init__(self, backend: DharaBackend, queues: tuple[str, ...] | None) -> None:
        self._backend, self._queues = backend, queues
        self._database = backend.settings.database
        self._execute = sql.on(self._database)

    def claim(self, worker: UUID, unknown: Collection[str]) -> Claim | None:
        if self._queues == ():
            return None
        haul = lifecycle.claim(
            self._execute,
            self._database,
            Wanted(self._backend.alias, self._queues or ()),
            worker,
            limit=1,
            suspects=1,
            lease_seconds=LEASE_SECONDS,
            unknown=unknown,
        )
        return next(iter(haul.claims), None)

    def settle(self, run: Run, outcome: Outcome) -> State | None:
        ending = Ending(run.claim.id, run.claim.lease, outcome, run.seconds)
        most = run.options.max_interrupted
        [settled] = lifecycle.settle(self._execute, run.worker, [ending], max_interrupted=most)
        return settled.state

    def execute(self, run: Run) -> Outcome:
        return execution.execute(run)

    def report(self, run: Run, progress: str | None, checkpoint: str | None) -> None:
        lifecycle.report(self._execute, [Report(run.claim.id, run.claim.lease, progress, checkpoint)])

    def now(self) -> datetime:
        [[now]] = self._execute("SELECT statement_timestamp()", {})
        return cast("datetime", now)

    def next_due(self, after: datetime, unknown: Collection[str]) -> timedelta | None:
        closed = Queue.objects.using(self._database).filter(backend=self._backend.alias, paused_at__isnull=False)
        waiting = self._mine().pending().filter(run_at__gt=after).on_queues(self._queues or ())
        waiting = waiting.exclude(function__in=unknown).exclude(queue__in=closed.values("name"))
        wait = waiting.order_by("run_at").annotate(wait=F("run_at") - Now()).values_list("wait", flat=True).first()
        return None if wait is None else max(wait, timedelta(0))

    def shift(self, back: timedelta) -> None:
        self._mine().pending().update(run_at=F("run_at") - back)

    def unshift(self, forth: timedelta) -> None:
        self._mine().scheduled().update(run_at=F("run_at") + forth)

    def result(self, id_: UUID) -> TaskResult:
        return self._backend.get_result(str(id_))

    def _mine(self) -> TaskQuerySet:
        return Task.objects.using(self._database).filter(backend=self._backend.alias)
