"""Rows as they are answered. Large columns are read as text: a row may hold what Python's json cannot read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast

from django_dhara import models, redaction
from django_dhara.api import schemas
from django_dhara.payload import MAX_DEPTH, encode_value
from django_dhara.results import TaskResult
from django_dhara.states import State

#: Columns that can be large.
HEAVY = ("payload", "payload_hash", "result", "progress", "checkpoint", "metadata")
_TEXTS = ("payload", "result", "progress", "metadata")
#: Failed and lost runs that are told of a task, the newest.
_RUNS = 20


def summary(row: models.Task) -> schemas.Summary:
    return schemas.Summary(**_common(row))


def _common(row: models.Task) -> dict[str, Any]:
    counts = row.failures + row.lost
    runs, waits = row.state == State.RUNNING, row.state == State.PENDING
    return {
        "id": row.id,
        "type": row.function,
        "status": str(row.state),
        "queue": row.queue,
        "priority": row.priority,
        "backend": row.backend,
        "attempts": counts + (row.state in (State.RUNNING, State.COMPLETED)),
        "max_attempts": row.max_attempts,
        "retrying": waits and counts > 0,
        "cancel_requested": runs and row.cancel_requested_at is not None,
        "idempotency_key": row.idempotency_key,
        "error": row.error_class,
        "enqueued_at": row.enqueued_at,
        "run_at": row.run_at,
        "started_at": row.started_at,
        "attempted_at": row.attempted_at,
        "finished_at": row.finished_at,
    }


def with_texts(rows: models.TaskQuerySet) -> Any:
    """Rows for `task`."""
    return rows.defer(*HEAVY).annotate(**{f"{name}_text": Cast(name, TextField()) for name in _TEXTS})


def task(row: Any, alias: str) -> schemas.Task:
    """A row of `with_texts` on the database `alias`."""
    return schemas.Task(
        **_common(row),
        payload=payload(row.function, row.payload_text),
        result=_read(row.result_text),
        progress=_read(row.progress_text),
        metadata=_object(_read(row.metadata_text)),
        timeout=row.timeout,
        parent_id=row.parent_id,
        worker_id=row.worker_id,
        errors=_runs(row, alias),
    )


def enqueued(result: TaskResult, max_attempts: int) -> schemas.Enqueued:
    """A task that was enqueued just now."""
    task: Any = result.task
    enqueued_at: Any = result.enqueued_at
    row = models.Task(
        id=result.id,
        backend=result.backend,
        function=task.module_path,
        queue=task.queue_name,
        priority=task.priority,
        max_attempts=max_attempts,
        idempotency_key=task.idempotency_key,
        state=State.PENDING,
        failures=0,
        lost=0,
        enqueued_at=enqueued_at,
        run_at=task.run_after or enqueued_at,
    )
    text = json.dumps({"args": result.args, "kwargs": result.kwargs})
    return schemas.Enqueued(
        **_common(row),
        payload=payload(row.function, text),
        result=None,
        progress=None,
        metadata=None,
        timeout=task.timeout,
        parent_id=None,
        worker_id=None,
        errors=[],
        duplicate=False,
    )


def payload(function: str, text: str) -> Any:
    """Arguments as the project's REDACT leaves them; None: they must not be shown."""
    found = redaction.shown(function, text)
    return None if found.is_hidden else _object(_read(found.text))


def _read(text: str | None) -> Any:
    """The value of a column; None too for what only PostgreSQL can read."""
    try:
        value = None if text is None else json.loads(text)
        if text and text.count("[") + text.count("{") > MAX_DEPTH:
            encode_value(value, "it", max_bytes=sys.maxsize)  # is it nested too deeply?
    except (ValueError, RecursionError):
        return None
    return value


def _object(value: Any) -> Any:
    return value if isinstance(value, Mapping) else None


def _runs(row: models.Task, alias: str) -> list[schemas.Run]:
    newest: list[Any] = list(models.Attempt.objects.using(alias).filter(task_id=row.id).order_by("-id")[:_RUNS])
    return [
        schemas.Run(
            attempt=run.number,
            ended=run.ended,
            error=run.error_class,
            message=run.message,
            traceback=run.traceback,
            worker_id=run.worker_id,
            started_at=run.started_at,
            ended_at=run.ended_at,
        )
        for run in reversed(newest)
    ]
