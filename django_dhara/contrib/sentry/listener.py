"""One event for each DEAD task, and with `DHARA["SENTRY_ATTEMPTS"]` one for each failed run before that.

Events are grouped by function and by the fingerprint of the error, the one that the admin and the log show, so that a
thousand tasks that die alike are one issue. Arguments are sent only if the client was told to (`send_default_pii`, or
`queues` of its `data_collection`): those of the task, and the local variables of the frames, which hold them as well.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import sentry_sdk
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.types import Event, Hint

from django_dhara import events, project, signals

#: Where the receivers connect, so that they do so once.
_UID = "django_dhara.contrib.sentry"


def install() -> None:
    """From now on. The client is the project's to set up, before or after this."""
    signals.task_dead.connect(tell_dead, dispatch_uid=_UID)
    if project.usable().sentry_attempts:
        signals.attempt_failed.connect(tell_failed, dispatch_uid=_UID)
    if _drop_the_log_line not in _installed:
        _installed.append(_drop_the_log_line)
        add_global_event_processor(_drop_the_log_line)


_installed: list[Any] = []


def _drop_the_log_line(event: Event, hint: Hint) -> Event | None:
    """Sentry makes events of ERRORs in the log. Django's line about a DEAD task of ours would be a second one."""
    record = hint.get("log_record")
    is_ours = getattr(record, "dhara_event", "") == events.TASK_DEAD.name and hasattr(record, "dhara_outcome")
    return None if is_ours else event


def tell_dead(sender: type, *, task_result: Any, **kwargs: Any) -> None:
    """Receiver of `task_dead`."""
    _tell(task_result, "error")


def tell_failed(sender: type, *, task_result: Any, delay: float | None, **kwargs: Any) -> None:
    """Receiver of `attempt_failed`. Of the last attempt the death is told."""
    if delay is not None:
        _tell(task_result, "warning")


def _tell(result: Any, level: str) -> None:
    client = sentry_sdk.get_client()
    if not client.is_active():
        return
    facts, function = signals.facts.get(), result.task.module_path
    last = result.errors[-1] if result.errors else None
    class_path = last.exception_class_path if last else "unknown"
    with sentry_sdk.new_scope() as scope:
        scope.set_level(level)  # type: ignore[arg-type]
        scope.set_transaction_name(function, source="task")
        scope.fingerprint = ["django_dhara", function, str(facts.get("fingerprint", class_path))]
        for name, value in _tags(result, facts, class_path).items():
            scope.set_tag(f"dhara.{name}", value)
        shows_arguments = _may_tell_arguments(client.options)
        scope.set_context("dhara", _context(result, facts, shows_arguments=shows_arguments))
        if not shows_arguments:
            scope.add_event_processor(_without_variables)
        error = sys.exc_info()[1]
        if error is not None:
            scope.capture_exception(error)
        else:
            scope.capture_message(f"{function}: {class_path}")


def _may_tell_arguments(options: Mapping[str, Any]) -> bool:
    """As the client was told; in newer SDKs `data_collection` takes the place of `send_default_pii`."""
    categories = options.get("data_collection")
    if isinstance(categories, Mapping) and "queues" in categories:
        return bool(categories["queues"])
    return bool(options.get("send_default_pii"))


def _tags(result: Any, facts: Any, class_path: str) -> dict[str, str]:
    return {
        "function": result.task.module_path,
        "queue": result.task.queue_name,
        "backend": result.backend,
        "outcome": str(facts.get("outcome", "lost")),
        "error": class_path,
    }


def _context(result: Any, facts: Any, *, shows_arguments: bool) -> dict[str, Any]:
    told = {
        "task id": result.id,
        "attempt": result.attempts,
        "worker": str(facts.get("worker_id", "")),
        "enqueued at": str(result.enqueued_at),
        "run seconds": facts.get("duration"),
        # Of a run in a child process, or of one that was lost, this is all that there is.
        "traceback": result.errors[-1].traceback if result.errors else "",
    }
    if shows_arguments:
        told |= {"args": result.args, "kwargs": result.kwargs}
    return told


def _without_variables(event: Event, hint: Hint) -> Event:
    values: Any = (event.get("exception") or {}).get("values") or []
    for value in values:
        for frame in (value.get("stacktrace") or {}).get("frames") or []:
            frame.pop("vars", None)
    return event
