"""Every line that is logged has a name that stays, and fields: the catalogue of them.

A record carries `dhara_event`, the name, and each field as `dhara_<field>`, so that no attribute of ours meets one of
Python's or of a project's own record factory. Texts are one line without control characters: a queue, or an error, from
outside must not forge lines. docs/reference/events.md is made from this module.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from logging import DEBUG, ERROR, INFO, WARNING
from time import monotonic
from typing import Any
from uuid import UUID

from django_dhara.payload import plain

#: A field that is longer is cut: the whole text of an error is in the database.
MOST_CHARACTERS = 500
#: What is said again and again for one reason waits so long for its second line, then twice as long, up to the second
#: number of seconds. A reason that did not come up for twice its pause is new.
PAUSE_SECONDS, LONGEST_SECONDS = 10.0, 600.0
#: So many reasons are remembered; with more of them the oldest is forgotten, and told as a new one.
MOST_REASONS = 1000


class Repeats:
    """How often something may be said that comes up again and again.

    Args:
        pause: seconds between the first line and the second.
        longest: the pause is doubled from line to line, up to this.
        clock: for tests.
    """

    def __init__(self, pause: float, longest: float, clock: Callable[[], float] = monotonic) -> None:
        self._pause, self._longest, self._clock = pause, longest, clock
        self._guard = threading.Lock()
        self._known: dict[Hashable, _Reason] = {}

    def due(self, reason: Hashable) -> int | None:
        """May it be said now? If so, how often it was not said since the last time."""
        now = self._clock()
        with self._guard:
            known = self._known.get(reason)
            if known is None or now > known.newest + 2 * known.pause:
                self._remember(reason, _Reason(now + self._pause, self._pause, now))
                return 0
            known.newest = now
            if now < known.silent_until:
                known.left_out += 1
                return None
            known.pause = min(known.pause * 2, self._longest)
            known.silent_until = now + known.pause
            left_out, known.left_out = known.left_out, 0
            return left_out

    def _remember(self, key: Hashable, reason: _Reason) -> None:
        self._known.pop(key, None)
        if len(self._known) >= MOST_REASONS:
            del self._known[next(iter(self._known))]
        self._known[key] = reason

    def sum_up(self) -> Iterator[tuple[Any, int]]:
        """What was left out, and how often; with that all is forgotten, so what comes next is said again."""
        with self._guard:
            known, self._known = self._known, {}
        yield from ((reason, each.left_out) for reason, each in known.items() if each.left_out)


@dataclass(slots=True)
class _Reason:
    silent_until: float
    pause: float
    newest: float
    left_out: int = 0


_murmured = Repeats(PAUSE_SECONDS, LONGEST_SECONDS)


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of line: its name, its level, and its text with the names of its fields."""

    name: str
    level: int
    text: str
    logger: logging.Logger
    #: Fields that the text does not name.
    more: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """What a record may have beside its text, each as `dhara_<field>`."""
        return tuple(dict.fromkeys((*re.findall(r"%\((\w+)\)", self.text), *self.more)))

    @property
    def is_heard(self) -> bool:
        return self.logger.isEnabledFor(self.level)

    def tell(self, *, exc_info: Any = None, stacklevel: int = 1, **values: Any) -> None:
        """Log it. Fields that the text does not name are attributes of the record only."""
        if self.is_heard:
            self._log(self.text, values, exc_info, stacklevel)

    def murmur(self, about: Hashable, /, *, exc_info: Any = None, **values: Any) -> bool:
        """Log it, but ever more rarely while it comes up again about the same thing, and then with a count.

        Returns:
            Whether it was logged this time.
        """
        left_out = _murmured.due((self.name, about)) if self.is_heard else None
        if left_out:
            text = f"{self.text} (%(left_out)d more of these since the last line)"
            self._log(text, {**values, "left_out": left_out}, exc_info, 1)
        elif left_out is not None:
            self._log(self.text, values, exc_info, 1)
        return left_out is not None

    def _log(self, text: str, values: dict[str, Any], exc_info: Any, stacklevel: int) -> None:
        fields = {name: field(value) for name, value in values.items()}
        extra = {"dhara_event": self.name, **{f"dhara_{name}": value for name, value in fields.items()}}
        given = [fields] if fields else []
        self.logger.log(self.level, text, *given, exc_info=exc_info, extra=extra, stacklevel=stacklevel + 2)


def field(value: Any) -> Any:
    """A value as a field: numbers as they are, the rest as one short line."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value) if isinstance(value, (str, UUID)) else one_line(value)
    return plain(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…")


def one_line(error: object) -> str:
    """What an exception says, without its line breaks. Its `str()` is somebody's code and may raise."""
    try:
        return " ".join(str(error).split()) or type(error).__name__
    except Exception:  # noqa: BLE001
        return type(error).__name__


_tasks, _worker = logging.getLogger("django_dhara"), logging.getLogger("django_dhara.worker")
_django, _api = logging.getLogger("django.tasks"), logging.getLogger("django_dhara.api")
_redaction = logging.getLogger("django_dhara.redaction")


#: What every line about the end of a run has.
_RUN = ("task_id", "function", "queue", "attempt", "worker_id", "duration", "outcome", "state")
_ERROR = ("error_class", "fingerprint")


def _of_tasks(name: str, level: int, text: str, *more: str) -> Event:
    return Event(name, level, text, _tasks, more)


def _of_workers(name: str, level: int, text: str, *more: str) -> Event:
    return Event(name, level, text, _worker, more)


# ------------------------------------------------------------------------------------------------------------- tasks

RUN_FAILED = _of_tasks(
    "run.failed",
    INFO,
    "Task %(task_id)s (%(function)s) failed in attempt %(attempt)d: %(error_class)s: %(error_message)s; %(then)s",
    *_RUN,
    *_ERROR,
    "delay",
)
RUNS_FAILED = _of_tasks(
    "run.failed.repeated",
    INFO,
    "%(function)s failed in the same way since its last line, runs: %(count)d; %(error_class)s, fingerprint "
    "%(fingerprint)s",
)
TASK_CANCELED = _of_tasks("task.canceled", INFO, "Task %(task_id)s (%(function)s) is canceled", *_RUN)
TASK_RESCUED = _of_tasks(
    "task.rescued",
    WARNING,
    "Rescued task %(task_id)s (%(function)s) of a lost worker: now %(state)s",
    "queue",
    "outcome",
)
LEASE_LOST = _of_tasks(
    "lease.lost",
    WARNING,
    "Lease lost: task %(task_id)s (%(function)s), lease %(lease)d; another run may have it, and nothing of this one is "
    "written",
    "queue",
)
#: Django's own lines, which get a name and fields on their way; see `log.py`.
TASK_ENQUEUED = Event("task.enqueued", DEBUG, "Task id=… path=… enqueued backend=…", _django, ("task_id", "function"))
TASK_STARTED = Event("task.started", INFO, "Task id=… path=… state=RUNNING", _django, ("task_id", "function"))
TASK_COMPLETED = Event("task.completed", INFO, "Task id=… path=… state=SUCCESSFUL", _django, _RUN)
TASK_DEAD = Event("task.dead", ERROR, "Task id=… path=… state=FAILED", _django, (*_RUN, *_ERROR))

# ----------------------------------------------------------------------------------------------------- runs in a worker

RUN_ENDED = _of_workers(
    "run.ended",
    DEBUG,
    "Task %(task_id)s (%(function)s) of %(queue)s, attempt %(attempt)d: %(outcome)s after %(duration).3f s, "
    "now %(state)s",
    "worker_id",
    *_ERROR,
)
RESULT_CHANGED = _of_workers("run.result_changed", WARNING, "The result of %(function)s %(task_id)s was %(change)s")
BACKOFF_FAILED = _of_workers("run.backoff_failed", ERROR, "The backoff of %(function)s failed; the default was used")
CONNECTION_LEFT = _of_workers(
    "run.left_connection",
    WARNING,
    "%(function)s left %(what)s on connection '%(database)s': it was rolled back and closed",
)
CONNECTION_STUCK = _of_workers(
    "connection.not_closed", ERROR, "Connection '%(database)s' could not be closed and is forgotten"
)
CONNECTIONS_STUCK = _of_workers("run.connections_not_closed", WARNING, "Connections of %(function)s were not closed")
LOOP_BLOCKED = _of_workers(
    "run.blocks_loop",
    WARNING,
    "%(function)s (task %(task_id)s) has blocked the event loop for %(duration).1f s: no other `async def` function "
    "runs meanwhile. Await, or make it a plain function.",
    "queue",
)
LOOP_STOPPED = _of_workers(
    "loop.stopped", ERROR, "Something that a function started has stopped the event loop; it goes on"
)
FUNCTION_UNKNOWN = _of_workers(
    "function.unknown", ERROR, "%(reason)s It is left to other workers for %(seconds)g s.", "function"
)
OUTCOME_REFUSED = _of_workers("outcome.refused", ERROR, "Task %(task_id)s is not settled: %(reason)s")
OUTCOME_MINIMAL = _of_workers(
    "outcome.minimal", ERROR, "The outcome of task %(task_id)s could not be stored; a minimal one is"
)
REPORT_REFUSED = _of_workers("report.refused", ERROR, "What task %(task_id)s said of itself could not be stored")
STRAYS_RETURNED = _of_workers("claim.strays", INFO, "%(count)d tasks of a claim without an answer are handed back")
RECEIVER_FAILED = _of_workers("receiver.failed", ERROR, "A receiver of task_started ended badly")
RECEIVERS_SLOW = _of_workers(
    "receivers.slow",
    WARNING,
    "%(count)d signals wait for their receivers, which are slower than the functions: nothing more is claimed until "
    "they have caught up",
)
ANNOUNCEMENT_FAILED = _of_workers("announcement.failed", ERROR, "A signal could not be sent, or a line not written")

# ------------------------------------------------------------------------------------------------------------ workers

WORKER_STARTED = _of_workers("worker.started", INFO, "%(introduction)s", "worker")
CHECK_WARNS = _of_workers("worker.check_warns", WARNING, "%(reason)s (%(check)s)", "hint")
METRICS_SERVED = _of_workers("worker.metrics", INFO, "Metrics of worker %(worker)s: http://%(host)s:%(port)d/metrics")
WORKER_STOPPED = _of_workers("worker.stopped", INFO, "Worker %(worker)s stopped.", "exit_code")
WORKER_DRAINS = _of_workers(
    "worker.drains",
    INFO,
    "Worker %(worker)s drains: %(running)d functions are running and have %(seconds)g s; a second signal hands them "
    "back at once",
)
WORKER_RELEASES = _of_workers("worker.releases", WARNING, "Worker %(worker)s releases %(running)d running tasks")
WORKER_FAILS = _of_workers("worker.fails", ERROR, "Worker %(worker)s stops: %(reason)s")
WORKER_DIED = _of_workers("worker.died", ERROR, "The control loop of worker %(worker)s has died")
THREAD_DIED = _of_workers("worker.thread_died", ERROR, "Thread %(thread)s has died")
WORKER_SUMMARY = _of_workers("worker.summary", INFO, "Worker %(worker)s settled %(settled)d runs, %(failed)d failed")
METRICS_FAILED = _of_tasks(
    "metrics.failed", WARNING, "The metrics lack the %(part)s in database '%(database)s': %(reason)s"
)
HEARTBEAT_FAILED = _of_workers(
    "worker.heartbeat_failed", WARNING, "The heartbeat file %(path)s cannot be written: %(reason)s"
)
LEAVE_FAILED = _of_workers("worker.leave_failed", WARNING, "Worker %(worker)s could not take its leave: %(reason)s")
OUTCOMES_UNWRITTEN = _of_workers(
    "worker.outcomes_unwritten", ERROR, "Worker %(worker)s leaves %(count)d outcomes unwritten"
)

# ----------------------------------------------------------------------------------------------------------- database

DATABASE_AWAY = _of_workers("database.away", WARNING, "Worker %(worker)s waits for the database: %(reason)s")
DATABASE_LOST = _of_workers("database.lost", WARNING, "Worker %(worker)s has lost the database: %(reason)s")
DATABASE_BACK = _of_workers("database.back", WARNING, "Worker %(worker)s has the database again")
MIGRATIONS_MISSING = _of_workers(
    "database.migrations_missing",
    WARNING,
    "Waiting for migrations of dhara: %(migrations)s. Run `manage.py migrate`.",
    "worker",
)
STATEMENT_BUSY = _of_workers("statement.busy", INFO, "Worker %(worker)s tries again: %(reason)s")
STATEMENT_FAILED = _of_workers("statement.failed", ERROR, "Worker %(worker)s: a statement failed")
SERVICE_WAITS = _of_workers("service.waits", WARNING, "%(service)s tries again: %(reason)s")
LISTEN_WAITS = _of_workers("listen.waits", INFO, "Not listening for wake-ups yet: %(reason)s")
LISTEN_LOST = _of_workers("listen.lost", WARNING, "The listening session was lost and is opened again: %(reason)s")
LISTEN_DEAF = _of_workers(
    "listen.deaf",
    WARNING,
    "LISTEN hears nothing on this connection, as behind a pooler in transaction mode: new tasks are found by polling. "
    "Set LISTEN_DSN to a direct connection to get wake-ups.",
)

# ---------------------------------------------------------------------------------------------- the HTTP API, arguments

API_CHANGED = Event(
    "api.changed", INFO, "%(caller)s: %(verb)s of %(what)s by the API: %(answer)s", _api, ("task_id", "count")
)
API_BULK_BEGUN = Event(
    "api.bulk_begun", INFO, "%(caller)s: began bulk change %(change_id)s by the API: %(verb)s of %(search)s", _api
)
API_BULK_STOPPED = Event("api.bulk_stopped", INFO, "%(caller)s: stopped bulk change %(change_id)s by the API", _api)
API_QUEUE_CHANGED = Event(
    "api.queue_changed", INFO, "%(caller)s: %(verb)s queue %(queue)s by the API", _api, ("backend",)
)
API_UNAVAILABLE = Event("api.unavailable", WARNING, "The API answers 503: %(reason)s", _api)
API_TOKENS_UNCOUNTED = Event(
    "api.tokens_uncounted", WARNING, "Wrong tokens are not counted: the cache raised %(error_class)s", _api
)
ARGUMENTS_HIDDEN = Event(
    "arguments.hidden",
    ERROR,
    'The arguments of %(function)s are hidden: the hook DHARA["REDACT"] does not work',
    _redaction,
)

#: By the name of the constant.
EVENTS: dict[str, Event] = {name: value for name, value in globals().items() if isinstance(value, Event)}
