"""A call becomes a row, in the caller's transaction.

Everything that can be wrong with a call is found before any SQL, so that an error never aborts the caller's
transaction. The row is inserted on the caller's own connection: it commits, or vanishes, with what the caller wrote
there.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from inspect import currentframe
from operator import or_
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from django.db import OperationalError, connections, transaction
from django.db.models import Q

from django_dhara import meter, payload, results, tracing, wakeup
from django_dhara.compat import DjangoTask, task_enqueued
from django_dhara.errors import IdempotencyConflict, IsolationError, PayloadError
from django_dhara.results import TaskResult
from django_dhara.signals import announce, current_task, is_heard, task_committed
from django_dhara.sql import array
from django_dhara.states import State
from django_dhara.tasks import Call, Task, bind_arguments

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_dhara.backend import DharaBackend, QueueBackend

try:
    from uuid import uuid7  # type: ignore[attr-defined]  # Python 3.14
except ImportError:
    from uuid_utils.compat import uuid7

#: Rows in one INSERT. Larger statements gain nothing more: the time goes into the rows.
CHUNK = 1000


def new_id() -> UUID:
    """The id of a new task: a UUIDv7, so that ids are in the order of their making, as far as clocks agree."""
    return UUID(bytes=uuid7().bytes)


class AliasWarning(RuntimeWarning):
    """An enqueue while a transaction is open on another database only: the task will not roll back with it."""


@dataclass(slots=True)
class _Row:
    """A checked call, with the values of its columns."""

    task: DjangoTask
    encoded: payload.Encoded
    id: str
    function: str
    key: str | None
    hash: bytes | None
    metadata: str | None
    max_attempts: int
    timeout: float | None
    delay_seconds: float | None
    #: When the row was inserted; None while it is not, and for ever if a task with its key is there already.
    enqueued_at: datetime | None = None
    committed: bool = False
    result: TaskResult | None = None

    @property
    def queue(self) -> str:
        return self.task.queue_name


class Enqueued(Sequence[TaskResult]):
    """The results of a bulk, in the order of its calls. Each is made when somebody looks at it: who enqueues thousands
    rarely does, and to make them would cost as much as to check the calls."""

    def __init__(self, backend: DharaBackend, rows: Sequence[_Row]) -> None:
        self._backend, self._rows = backend, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TaskResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[TaskResult]: ...

    def __getitem__(self, index: int | slice) -> TaskResult | list[TaskResult]:
        if isinstance(index, slice):
            return [self._result(row) for row in self._rows[index]]
        return self._result(self._rows[index])

    def __repr__(self) -> str:
        return f"<Enqueued: {len(self)} tasks>"

    def _result(self, row: _Row) -> TaskResult:
        if row.result is None:
            row.result = _result(self._backend, row)
        return row.result


def enqueue(backend: DharaBackend, calls: Sequence[Call]) -> Sequence[TaskResult]:
    """Insert the tasks of `calls` and return their results in the same order.

    Raises:
        ArgumentsError, PayloadError: before any SQL.
        IdempotencyConflict: a key is taken by a task with other arguments; none of the calls is enqueued.
        IsolationError: a race for a key in a transaction above READ COMMITTED.
    """
    rows = [check(backend, call) for call in calls]
    connection = connections[backend.settings.database]
    _warn_of_other_alias(connection)
    if tracing.tracer is None or not rows:
        _insert_all(connection, backend, rows)
    else:
        with tracing.tracer.enqueuing(backend.alias, rows) as carrier:
            for row in rows:
                row.metadata = tracing.with_carrier(row.metadata, carrier)
            _insert_all(connection, backend, rows)
    _announce(connection, backend, rows)
    return Enqueued(backend, rows)


def _insert_all(connection: BaseDatabaseWrapper, backend: DharaBackend, rows: list[_Row]) -> None:
    if len(rows) == 1:
        _insert(connection, backend, rows)
        return
    try:
        _insert_many(connection, backend, rows)
    except IdempotencyConflict as error:
        raise within_bulk(error, rows) from None


def within_bulk(error: IdempotencyConflict, rows: Sequence[_Row]) -> IdempotencyConflict:
    """The same, or, where another call of this bulk has the key, one that says so: its task never came to be."""
    first = next((position for position, row in enumerate(rows) if row.id == str(error.task_id)), None)
    if first is None:
        return error
    one = rows[first]
    [other, *_] = [row for row in rows if (row.function, row.key) == (one.function, one.key) and row.hash != one.hash]
    return IdempotencyConflict(
        f"idempotency_key {one.key!r} of {one.function} is in this bulk twice, with other arguments: "
        f"{_short(one.encoded.text)}, and {_short(other.encoded.text)}. {_ADVICE}",
        function=one.function,
        key=one.key or "",
        position=first,
    )


#: What to do about a conflict.
_ADVICE = (
    "Use another key, or the same arguments, given the same way: by position and by name are not the same arguments."
)


def check(backend: QueueBackend, call: Call) -> _Row:
    """A call with the values of its columns, if it may be enqueued.

    Raises:
        InvalidTask, ArgumentsError, PayloadError
    """
    task, options = call.task, backend.settings
    backend.validate_task(task)
    bind_arguments(task, call.args, call.kwargs)
    try:
        encoded = payload.encode(
            call.args, call.kwargs, max_bytes=options.max_payload_bytes, strict=options.strict_json
        )
    except PayloadError as error:
        error.add_note(f"Nothing of this call of {task.module_path} was enqueued.")
        raise
    ours = task if isinstance(task, Task) else None
    key = ours.idempotency_key if ours else None
    metadata = ours.metadata if ours else None
    return _Row(
        task=task,
        encoded=encoded,
        id=str(new_id()),
        function=task.module_path,
        key=key,
        hash=payload.canonical_hash(encoded) if key is not None else None,
        metadata=None if metadata is None else payload.encode_metadata(metadata, max_bytes=options.max_payload_bytes),
        max_attempts=(ours and ours.max_attempts) or options.max_attempts,
        timeout=ours.timeout if ours else None,
        delay_seconds=ours.delay.total_seconds() if ours and ours.delay is not None else None,
    )


def _warn_of_other_alias(connection: BaseDatabaseWrapper) -> None:
    if connection.in_atomic_block:
        return
    for other in connections.all(initialized_only=True):
        if other.in_atomic_block:
            warnings.warn(
                f"A transaction is open on {other.alias!r}, but this task is enqueued on {connection.alias!r}: "
                f"it will not roll back with it. Open the transaction with atomic(using={connection.alias!r}).",
                AliasWarning,
                stacklevel=_level_of_caller(),
            )


#: The packages whose frames may lie between `enqueue` and who calls it; the tracers wrap `Task.enqueue`.
_BETWEEN = frozenset(
    ("django", "django_tasks", "django_dhara", "sentry_sdk", "wrapt", "ddtrace", "newrelic", "opentelemetry")
)


def _level_of_caller() -> int:
    """How many frames lie between here and the code that enqueues; a warning is shown once for each place."""
    level, frame = 0, currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    return level


def _insert_many(connection: BaseDatabaseWrapper, backend: DharaBackend, rows: list[_Row]) -> None:
    # Keys in one order everywhere, or two bulk enqueues with crossed keys would wait for each other.
    ordered = sorted(rows, key=lambda row: (row.function, row.key or ""))
    keyed = any(row.key is not None for row in rows)
    if len(ordered) <= CHUNK and not keyed:
        _insert(connection, backend, ordered)
        return
    with transaction.atomic(using=connection.alias, savepoint=keyed):
        for start in range(0, len(ordered), CHUNK):
            _insert(connection, backend, ordered[start : start + CHUNK])


_INTO = """
INSERT INTO dhara_task (backend, parent_id, id, function, queue, priority, run_at, payload, payload_hash,
                        idempotency_key, max_attempts, timeout, metadata, state, enqueued_at)
"""
_FRESH = """
ON CONFLICT (function, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id::text, enqueued_at
"""
#: One task: PostgreSQL plans a row of values in half the time of an array.
_INSERT_ONE = f"""{_INTO}
VALUES (%s, %s, %s, %s, %s, %s,
        coalesce(%s::timestamptz, statement_timestamp() + make_interval(secs => coalesce(%s::float8, 0))),
        %s, %s, %s, %s, %s, %s, 'PENDING', statement_timestamp())
{_FRESH}"""
#: Many: arrays, one element a row. COPY cannot skip a taken key.
_INSERT_MANY = f"""{_INTO}
SELECT %s, %s, call.id, call.function, call.queue, call.priority,
       coalesce(call.run_at, statement_timestamp() + make_interval(secs => coalesce(call.delay, 0))),
       call.payload, call.hash, call.key, call.max_attempts, call.timeout, call.metadata,
       'PENDING', statement_timestamp()
FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::smallint[], %s::timestamptz[], %s::float8[], %s::text[]::jsonb[],
            %s::bytea[], %s::text[], %s::int[], %s::float8[], %s::text[]::jsonb[])
     AS call(id, function, queue, priority, run_at, delay, payload, hash, key, max_attempts, timeout, metadata)
{_FRESH}"""


#: Where nothing has a key, all rows are new, and one time is the answer to all of them.
_INSERT_KEYLESS = f"""WITH made AS ({_INSERT_MANY.replace(_FRESH, "RETURNING 1")})
SELECT statement_timestamp() FROM made LIMIT 1"""


def _insert(connection: BaseDatabaseWrapper, backend: DharaBackend, rows: list[_Row]) -> None:
    if len(rows) > 1 and all(row.key is None for row in rows):
        [[now]] = _execute(connection, backend, _INSERT_KEYLESS, _arrays(rows))
        for row in rows:
            row.enqueued_at = now
        return
    missing = rows
    while missing:
        _insert_fresh(connection, backend, missing)
        # The rest met its key. It is read by a second statement, since the snapshot of the first is older than a
        # row that it waited for; and should that row be pruned in between, the insert is tried again.
        taken = [row for row in missing if row.enqueued_at is None]
        _read_taken(connection, taken)
        missing = [row for row in taken if row.result is None]


def _insert_fresh(connection: BaseDatabaseWrapper, backend: DharaBackend, rows: list[_Row]) -> None:
    """Insert the rows whose keys are free."""
    if len(rows) == 1:
        made = _execute(connection, backend, _INSERT_ONE, _values(rows[0]))
    else:
        made = _execute(connection, backend, _INSERT_MANY, _arrays(rows))
    times = dict(made)
    for row in rows:
        row.enqueued_at = times.get(row.id)


def _execute(
    connection: BaseDatabaseWrapper, backend: DharaBackend, statement: str, values: Sequence[Any]
) -> list[tuple[Any, ...]]:
    with _isolation_explained(), connection.cursor() as cursor:
        cursor.execute(statement, [backend.alias, current_task.get(), *values])
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _arrays(rows: list[_Row]) -> list[str]:
    return [array(column) for column in zip(*map(_values, rows), strict=True)]


def _in_utc(when: datetime | None) -> datetime | None:
    """PostgreSQL reads no offset of 16 hours and more, which Python allows, and would fail the caller's transaction."""
    return when.astimezone(UTC) if when is not None and when.tzinfo is not None else when


def _values(row: _Row) -> tuple[Any, ...]:
    return (
        row.id,
        row.function,
        row.task.queue_name,
        int(row.task.priority),
        _in_utc(row.task.run_after),
        row.delay_seconds,
        row.encoded.text,
        row.hash,
        row.key,
        row.max_attempts,
        row.timeout,
        row.metadata,
    )


@contextmanager
def _isolation_explained() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != "40001":
            raise
        raise IsolationError(
            "This transaction is above READ COMMITTED and met a concurrent one, which has taken the same "
            "idempotency key or read what this one writes: run it again from its start."
        ) from error


def _read_taken(connection: BaseDatabaseWrapper, rows: list[_Row]) -> None:
    from django_dhara.backend import read_results
    from django_dhara.models import Task as TaskRow

    keys = defaultdict(list)
    for row in rows:
        keys[row.function].append(row.key)
    if not keys:
        return
    wanted = reduce(or_, (Q(function=path, idempotency_key__in=taken) for path, taken in keys.items()))
    with _isolation_explained():
        found = list(read_results(TaskRow.objects.using(connection.alias).filter(wanted)))
    existing = {(row.function, row.idempotency_key): (row, result) for row, result in found}
    for row in rows:
        if (row.function, row.key) in existing:
            row.result = as_duplicate(row, *existing[row.function, row.key])


def as_duplicate(row: _Row, existing: Any, result: TaskResult) -> TaskResult:
    """What the caller of `row` gets where `existing` has its key: `result`, said to be a duplicate.

    Raises:
        IdempotencyConflict: it has other arguments.
    """
    if bytes(existing.payload_hash or b"") != row.hash:
        raise IdempotencyConflict(
            f"idempotency_key {row.key!r} of {row.function} belongs to task {existing.id} with other arguments: "
            f"it has {_short(existing.text)}, this call has {_short(row.encoded.text)}. "
            f"{_ADVICE}",
            task_id=existing.id,
            function=row.function,
            key=row.key or "",
        )
    # Two calls of one bulk with one key share the row, not the result.
    result = copy(result)
    object.__setattr__(result, "duplicate", True)
    object.__setattr__(result, "committed", False)
    return result


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _result(backend: DharaBackend, row: _Row) -> TaskResult:
    now = row.enqueued_at
    assert now is not None
    return results.make(
        results.enqueued_task(row.task, run_after=now + timedelta(seconds=row.delay_seconds or 0)),
        id=row.id,
        state=State.PENDING,
        enqueued_at=now,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=row.encoded.args,
        kwargs=row.encoded.kwargs,
        backend=backend.alias,
        errors=[],
        worker_ids=[],
        committed=row.committed,
    )


def _announce(connection: BaseDatabaseWrapper, backend: DharaBackend, rows: list[_Row]) -> None:
    if is_heard(task_enqueued, logging.DEBUG):
        for result in Enqueued(backend, rows):
            if not result.duplicate:
                announce(task_enqueued, type(backend), task_result=result)
    if not connection.in_atomic_block and not connection.get_autocommit():
        return  # who commits by hand is not told about; `committed` stays False, and polling finds the task
    transaction.on_commit(lambda: _committed(backend, rows), using=connection.alias, robust=True)


def _committed(backend: DharaBackend, rows: list[_Row]) -> None:
    """Runs once the rows are really there: an `atomic()` block that ended without an exception proves no commit."""
    for row in rows:
        row.committed = True
        if row.result is not None:
            object.__setattr__(row.result, "committed", True)
    new = [row for row in rows if row.enqueued_at is not None]
    for (queue, function), number in Counter((row.task.queue_name, row.function) for row in new).items():
        meter.ENQUEUED.add(backend.alias, queue, function, amount=number)
    if task_committed.receivers:
        for result in Enqueued(backend, new):
            announce(task_committed, type(backend), task_result=result)
    if new and backend.settings.notify:
        wakeup.send(backend.settings.database, backend.alias, {row.task.queue_name for row in new})
