"""Every exception of ours.

DharaError
├── PayloadError (ValueError)          arguments or a result that JSON or PostgreSQL cannot hold
│   ├── PayloadTypeError (TypeError)   ... because of a value's type
│   └── PayloadTooLarge                ... because of its size
├── ArgumentsError (TypeError)         a call that does not fit the function's signature
├── IdempotencyConflict                the same idempotency key with other arguments
├── IsolationError                     a keyed enqueue above READ COMMITTED met a concurrent one
├── UnknownFunction (LookupError)      a path that does not exist in this process
├── LeaseLost                          a write of a run whose task belongs to somebody else by now
├── Discard                            raise it in a task: do not retry, DEAD at once
├── Retry                              raise it in a task: a failure with a delay of its own
├── Snooze                             raise it in a task: run again later, no attempt spent
└── Recorded                           what the history says of a run that ended otherwise
    ├── WorkerLost                     a run whose worker died or lost its lease
    ├── ChildDied                      a run whose child process died by itself
    ├── TaskTimeout (TimeoutError)     a run that outlived its timeout
    ├── TaskInterrupted                a run that was released once too often
    └── TaskCanceled                   a task that was canceled
"""

from datetime import timedelta
from typing import Any

__all__ = [
    "ArgumentsError",
    "ChildDied",
    "DharaError",
    "Discard",
    "IdempotencyConflict",
    "IsolationError",
    "LeaseLost",
    "PayloadError",
    "PayloadTooLarge",
    "PayloadTypeError",
    "Recorded",
    "Retry",
    "Snooze",
    "TaskCanceled",
    "TaskInterrupted",
    "TaskTimeout",
    "UnknownFunction",
    "WorkerLost",
]


class DharaError(Exception):
    """The root: catch it to catch everything that django_dhara raises."""


class PayloadError(DharaError, ValueError):
    """Arguments or a result that JSON or PostgreSQL's jsonb cannot hold; the message names the path of the value."""


class PayloadTypeError(PayloadError, TypeError):
    """A value whose type JSON does not have."""


class PayloadTooLarge(PayloadError):
    """A payload above `MAX_PAYLOAD_BYTES`, or a result above `MAX_RESULT_BYTES`."""


class ArgumentsError(DharaError, TypeError):
    """Arguments that do not fit the function's signature; nothing was enqueued."""


class IdempotencyConflict(DharaError, ValueError):
    """The idempotency key is taken by a task of the same function with other arguments; nothing was enqueued.

    Arguments are compared as they were given: `enqueue(7)` and `enqueue(order_id=7)` are not the same.

    Args:
        message: it names both.
        task_id: the task that has the key; None where another call of the same bulk has it.
        function, key: which key of which function.
        position: of the call of the same bulk that has the key; None where a task has it.
    """

    def __init__(
        self, message: str, *, task_id: Any = None, function: str = "", key: str = "", position: int | None = None
    ) -> None:
        super().__init__(message)
        self.task_id, self.function, self.key, self.position = task_id, function, key, position


class IsolationError(DharaError):
    """A keyed enqueue in a REPEATABLE READ or SERIALIZABLE transaction met a concurrent one.

    PostgreSQL answers that with a serialization failure, which ends the transaction: run it again from its start.
    """


class UnknownFunction(DharaError, LookupError):
    """A path whose module or name does not exist in this process."""


class LeaseLost(DharaError):
    """The task was taken from this run (it was rescued, revived or canceled); what the run writes is refused."""


class Discard(DharaError):
    """Raise it in a task that can never succeed: the task is DEAD at once, whatever its budget."""


class _Later(DharaError):
    def __init__(self, delay: float | timedelta = 0, message: str = "") -> None:
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= self.delay < float("inf"):
            raise ValueError(f"{type(self).__name__} needs a delay of zero or more seconds, not {delay!r}")
        super().__init__(message or f"again in {self.delay:g} s")


class Snooze(_Later):
    """Raise it in a task that is not ready yet: it runs again after `delay` seconds and no attempt is spent."""


class Retry(_Later):
    """Raise it in a task that failed and knows when to try again: a failure like any other, with a delay of its own."""

    def __init__(self, after: float | timedelta = 0, message: str = "") -> None:
        super().__init__(after, message)


class Recorded(DharaError):
    """What the history says of a run that did not end by its own return or raise."""


class WorkerLost(Recorded):
    """The worker of this run died, or was cut off for longer than its lease."""


class ChildDied(Recorded):
    """The child process that ran it died by itself: it crashed, the function ended it, or the kernel lacked memory."""


class TaskTimeout(Recorded, TimeoutError):
    """The run outlived its timeout. Its traceback is the stack of the function at that moment, where that is known."""


class TaskInterrupted(Recorded):
    """The run was released by a stopping worker, once more often than `MAX_INTERRUPTED` allows."""


class TaskCanceled(Recorded):
    """The task was canceled. Raise it where `context.canceled` says so: then the task ends CANCELED."""
