"""Tasks in memory, for backends that a test uses in place of the database: the same life, without rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from django_dhara import results
from django_dhara.compat import DjangoTask, TaskError, TaskResultDoesNotExist
from django_dhara.states import FINAL, Completed, Discarded, Failed, Outcome, State, TimedOut
from django_dhara.tasks import MAX_DELAY

if TYPE_CHECKING:
    from django_dhara.execution import Run
    from django_dhara.lifecycle import Claim
    from django_dhara.results import TaskResult
    from django_dhara.tasks import Task


@dataclass(slots=True)
class Entry:
    """One enqueued call, with what its row would say."""

    task: DjangoTask
    backend: str
    claim: Claim
    args: list[Any]
    kwargs: dict[str, Any]
    payload_hash: bytes | None
    run_at: datetime
    state: State = State.PENDING
    worker: UUID | None = None
    finished_at: datetime | None = None
    outcome: Outcome | None = None
    progress: str | None = None
    #: Of each failed run: error class, traceback, worker.
    history: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def id(self) -> UUID:
        return self.claim.id

    @property
    def text(self) -> str:
        return self.claim.payload

    @property
    def result(self) -> TaskResult:
        """Its TaskResult, as it stands now."""
        claim, is_present = self.claim, self.state in (State.RUNNING, State.COMPLETED)
        value = json.loads(self.outcome.result) if isinstance(self.outcome, Completed) else None
        return results.make(
            results.enqueued_task(self.task, run_after=self.run_at),
            id=str(claim.id),
            state=self.state,
            enqueued_at=claim.enqueued_at,
            started_at=claim.started_at,
            last_attempted_at=claim.attempted_at,
            finished_at=self.finished_at,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            errors=[TaskError(exception_class_path=path, traceback=trace) for path, trace, _ in self.history],
            worker_ids=[worker for *_, worker in self.history] + [str(self.worker)] * is_present,
            return_value=value,
            progress=json.loads(self.progress) if self.progress else None,
            counted=claim.failures + is_present,
        )


class Memory:
    """Entries in the order of their enqueue.

    Args:
        entries: a list that others may share.
        queues: None: all.
    """

    def __init__(self, entries: list[Entry], queues: tuple[str, ...] | None = None) -> None:
        self.entries, self._queues = entries, queues

    def on_queues(self, queues: tuple[str, ...] | None) -> Memory:
        return Memory(self.entries, queues)

    def find(self, id_: object) -> Entry:
        for entry in self.entries:
            if str(entry.id) == str(id_):
                return entry
        raise TaskResultDoesNotExist(str(id_))

    def keyed(self, function: str, key: str) -> Entry | None:
        wanted = function, key
        found = (entry for entry in self.entries if (entry.claim.function, entry.claim.idempotency_key) == wanted)
        return next(found, None)

    def claim(self, worker: UUID, unknown: Collection[str]) -> Claim | None:
        now = timezone.now()
        ready = [entry for entry in self._pending(unknown) if entry.run_at <= now]
        ready.sort(key=lambda entry: (-entry.claim.priority, entry.run_at))  # stable: then as enqueued
        return start(ready[0], worker) if ready else None

    def settle(self, run: Run, outcome: Outcome) -> State | None:
        entry = self.find(run.claim.id)
        if entry.state is not State.RUNNING or entry.claim.lease != run.claim.lease:
            return None
        _end(entry, outcome)
        return entry.state

    def execute(self, run: Run) -> Outcome:
        """An atomic function's transaction is real; that the task is settled in it means nothing here."""
        from django_dhara import execution

        if not run.is_atomic:
            return execution.execute(run)
        run.task = results.changed(cast("Task", run.task), atomic=False)
        try:
            with transaction.atomic(using=run.options.database):
                outcome = execution.execute(run)
                if isinstance(outcome, Completed):
                    # A query that failed and was hidden: Django would roll back without a word.
                    transaction.get_connection(run.options.database).validate_no_broken_transaction()
                else:
                    transaction.set_rollback(True, using=run.options.database)
        except Exception as error:  # noqa: BLE001 - on_commit callbacks are user code
            outcome = execution.judge(run, error)
        return outcome

    def report(self, run: Run, progress: str | None, checkpoint: str | None) -> None:
        entry = self.find(run.claim.id)
        entry.progress = progress or entry.progress
        entry.claim = replace(entry.claim, checkpoint=checkpoint or entry.claim.checkpoint)

    def now(self) -> datetime:
        return timezone.now()

    def next_due(self, after: datetime, unknown: Collection[str]) -> timedelta | None:
        due = min((entry.run_at for entry in self._pending(unknown) if entry.run_at > after), default=None)
        return None if due is None else max(due - timezone.now(), timedelta(0))

    def shift(self, back: timedelta) -> None:
        for entry in self.entries:
            entry.run_at -= back if entry.state is State.PENDING else timedelta(0)

    def unshift(self, forth: timedelta) -> None:
        now = timezone.now()
        for entry in self.entries:
            entry.run_at += forth if entry.state is State.PENDING and entry.run_at > now else timedelta(0)

    def result(self, id_: UUID) -> TaskResult:
        return self.find(id_).result

    def _pending(self, unknown: Collection[str]) -> Iterator[Entry]:
        for entry in self.entries:
            is_wanted = self._queues is None or entry.claim.queue in self._queues
            if entry.state is State.PENDING and is_wanted and entry.claim.function not in unknown:
                yield entry


def start(entry: Entry, worker: UUID) -> Claim:
    """pending -> running"""
    now = timezone.now()
    claim = entry.claim
    entry.state, entry.worker = State.RUNNING, worker
    entry.claim = replace(
        claim,
        lease=claim.lease + 1,
        started_at=claim.started_at if entry.claim.lease else now,
        attempted_at=now,
        history=json.dumps(entry.history) if entry.history else None,
    )
    return entry.claim


def _end(entry: Entry, outcome: Outcome) -> None:
    """running -> completed, dead or pending, as `lifecycle.settle` decides it."""
    error, delay = getattr(outcome, "error", None), getattr(outcome, "delay", 0.0)
    entry.outcome = outcome
    if isinstance(outcome, Failed | TimedOut | Discarded):
        entry.claim = replace(entry.claim, failures=entry.claim.failures + 1)
        entry.history.append((error.class_path, error.traceback, str(entry.worker)) if error else ("", "", ""))
    is_spent = entry.claim.failures >= entry.claim.max_attempts
    match outcome:
        case Completed():
            entry.state = State.COMPLETED
        case Discarded():
            entry.state = State.DEAD
        case Failed() | TimedOut() if is_spent:
            entry.state = State.DEAD
        case _:
            entry.state = State.PENDING
            entry.run_at = timezone.now() + min(timedelta(seconds=delay), MAX_DELAY)
    entry.finished_at = timezone.now() if entry.state in FINAL else None
