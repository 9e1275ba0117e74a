"""Backends for the settings of tests: they check a call as the real one does, and keep it in memory.

    TASKS = {"default": {"BACKEND": "django_dhara.testing.InlineBackend"}}

Both take the options of the real backend and have its Task class, so `@task(max_attempts=5)` can be imported under
them. Neither needs a database by itself. Cancel, revive, pause and resume work on rows: they need the real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils import timezone

from django_dhara.backend import QueueBackend
from django_dhara.compat import task_enqueued
from django_dhara.enqueue import as_duplicate, check, within_bulk
from django_dhara.errors import IdempotencyConflict
from django_dhara.signals import announce, task_committed
from django_dhara.states import State
from django_dhara.tasks import Call
from django_dhara.testing.memory import Entry, Memory, start

if TYPE_CHECKING:
    from django_dhara.enqueue import _Row
    from django_dhara.results import TaskResult
    from django_dhara.testing.drain import Drain

#: Django makes one backend for each thread and context; what they keep is for all of them, by alias.
_entries: dict[str, list[Entry]] = {}


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "TASKS":
        _entries.clear()


class MemoryBackend(QueueBackend):
    """What the two have in common: calls are checked and kept; nothing is written."""

    @property
    def memory(self) -> Memory:
        return Memory(_entries.setdefault(self.alias, []))

    @property
    def calls(self) -> list[TaskResult]:
        """The results of all calls since the last `clear()`, as they stand now, in the order of their enqueue."""
        return [entry.result for entry in self.memory.entries]

    def clear(self) -> None:
        """Forget all calls. Changing TASKS, by `override_settings` for one, does it too."""
        self.memory.entries.clear()

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult]:
        """Check all calls, then keep them in their order."""
        rows = [check(self, call) for call in calls]
        entries, before = self.memory.entries, len(self.memory.entries)
        try:
            kept = [self._keep(row) for row in rows]
        except IdempotencyConflict as error:
            del entries[before:]
            raise within_bulk(error, rows) from None
        for entry in entries[before:]:
            announce(task_enqueued, type(self), task_result=entry.result)
            announce(task_committed, type(self), task_result=entry.result)
        self._enqueued(entries[before:])
        return [entry.result if is_new else as_duplicate(row, entry, entry.result) for row, entry, is_new in kept]

    def get_result(self, result_id: str) -> TaskResult:
        """A call that was kept.

        Raises:
            TaskResultDoesNotExist: (Django's)
        """
        return self.memory.find(result_id).result

    def _keep(self, row: _Row) -> tuple[_Row, Entry, bool]:
        """The entry of a call, and whether it is a new one."""
        known = self.memory.keyed(row.function, row.key) if row.key is not None else None
        if known is not None:
            as_duplicate(row, known, known.result)
            return row, known, False
        entry = _new_entry(self.alias, row)
        self.memory.entries.append(entry)
        return row, entry, True

    def _enqueued(self, entries: list[Entry]) -> None:
        """Called with new entries."""


class ManualBackend(MemoryBackend):
    """Keeps calls; they run when the test asks for it: `backend.run_all()`."""

    def run_all(self, **named: Any) -> list[TaskResult]:
        """See `django_dhara.testing.run_all`, whose arguments these are."""
        from django_dhara.testing.drain import run_all

        return run_all(backend=self.alias, **named)

    def run_one(self, **named: Any) -> TaskResult | None:
        """See `django_dhara.testing.run_one`, whose arguments these are."""
        from django_dhara.testing.drain import run_one

        return run_one(backend=self.alias, **named)


class InlineBackend(MemoryBackend):
    """Runs each call as it is enqueued, to its end, before `enqueue()` returns.

    Nothing is waited for: a `run_after` is passed over, and a task that fails or snoozes runs again at once, until it
    succeeds or its attempts are spent. What it raises is in its result, not raised.
    """

    def _enqueued(self, entries: list[Entry]) -> None:
        from django_dhara.testing.drain import Drain

        drain = Drain(self, self.memory, horizon=timedelta(0))
        for entry in entries:
            _run_to_its_end(entry, drain)


def _run_to_its_end(entry: Entry, drain: Drain) -> None:
    from django_dhara.testing.drain import MAX_RUNS

    for _ in range(MAX_RUNS):
        drain.run(start(entry, drain.worker))
        if entry.state is not State.PENDING:
            return
    raise RuntimeError(f"{entry.claim.function} has run {MAX_RUNS} times: does it snooze for ever?")


def _new_entry(alias: str, row: _Row) -> Entry:
    from django_dhara.lifecycle import Claim

    now = timezone.now()
    values: dict[str, Any] = dict.fromkeys(Claim.__dataclass_fields__)
    values |= dict.fromkeys(("lease", "failures", "lost", "interrupted", "snoozed"), 0)
    values |= {"id": UUID(row.id), "function": row.function}
    values |= {"queue": row.task.queue_name, "priority": row.task.priority}
    values |= {"payload": row.encoded.text, "max_attempts": row.max_attempts, "timeout": row.timeout, "waited": 0.0}
    values |= {"idempotency_key": row.key, "metadata": row.metadata, "enqueued_at": now, "cancel_requested": False}
    run_at: datetime = row.task.run_after or now + timedelta(seconds=row.delay_seconds or 0)
    claim = Claim(**{**values, "run_at": run_at})
    return Entry(row.task, alias, claim, row.encoded.args, row.encoded.kwargs, row.hash, run_at)
