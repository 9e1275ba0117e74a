"""The states of a task, the arrows between them, and how a run can end.

A task is PENDING until a worker claims it: ready, scheduled and waiting for a retry are all PENDING, and `run_at`
tells them apart. It is RUNNING while one run holds its lease. COMPLETED, DEAD and CANCELED are final, but for an
operator who revives a DEAD or CANCELED task.

Nothing here knows the database: `lifecycle.py` writes these arrows, each as one guarded UPDATE.
"""

from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class State(TextChoices):
    """Where a task is in its life."""

    PENDING = "PENDING", _("Pending")
    RUNNING = "RUNNING", _("Running")
    COMPLETED = "COMPLETED", _("Completed")
    DEAD = "DEAD", _("Dead")
    CANCELED = "CANCELED", _("Canceled")


FINAL = (State.COMPLETED, State.DEAD, State.CANCELED)
REVIVABLE = (State.DEAD, State.CANCELED)


class Arrow(NamedTuple):
    """One allowed change of state."""

    source: State
    verb: str
    target: State


#: Every change of state there is. docs/explanation/states.md draws them; a test holds the two together.
ARROWS: tuple[Arrow, ...] = (
    Arrow(State.PENDING, "claim", State.RUNNING),
    Arrow(State.PENDING, "cancel", State.CANCELED),
    Arrow(State.RUNNING, "complete", State.COMPLETED),
    Arrow(State.RUNNING, "fail", State.PENDING),
    Arrow(State.RUNNING, "fail", State.DEAD),
    Arrow(State.RUNNING, "fail", State.CANCELED),
    Arrow(State.RUNNING, "time out", State.PENDING),
    Arrow(State.RUNNING, "time out", State.DEAD),
    Arrow(State.RUNNING, "time out", State.CANCELED),
    Arrow(State.RUNNING, "discard", State.DEAD),
    Arrow(State.RUNNING, "discard", State.CANCELED),
    Arrow(State.RUNNING, "snooze", State.PENDING),
    Arrow(State.RUNNING, "snooze", State.CANCELED),
    Arrow(State.RUNNING, "interrupt", State.PENDING),
    Arrow(State.RUNNING, "interrupt", State.DEAD),
    Arrow(State.RUNNING, "interrupt", State.CANCELED),
    Arrow(State.RUNNING, "hand back", State.PENDING),
    Arrow(State.RUNNING, "hand back", State.CANCELED),
    Arrow(State.RUNNING, "rescue", State.PENDING),
    Arrow(State.RUNNING, "rescue", State.DEAD),
    Arrow(State.RUNNING, "rescue", State.CANCELED),
    Arrow(State.DEAD, "revive", State.PENDING),
    Arrow(State.CANCELED, "revive", State.PENDING),
)


@dataclass(frozen=True, slots=True)
class Error:
    """What is kept of an exception: text only, capped and cleaned, so that it can always be stored."""

    class_path: str
    message: str
    traceback: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The function returned. `result` is JSON text; `warning` says what had to be changed to store it, if anything."""

    result: str
    warning: str | None = None
    verb = "complete"


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised. It runs again after `delay` seconds while its budget lasts."""

    error: Error
    delay: float
    verb = "fail"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The run outlived its timeout: a failure, with the same retry."""

    error: Error
    delay: float
    verb = "time out"


@dataclass(frozen=True, slots=True)
class Discarded:
    """The function raised `Discard`, or its backoff answered None: DEAD, whatever is left of the budget."""

    error: Error
    verb = "discard"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The function raised `Snooze`: PENDING again after `delay` seconds, no attempt spent."""

    delay: float
    verb = "snooze"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker stopped before the function ended: PENDING at once, counted against `MAX_INTERRUPTED` only."""

    error: Error
    verb = "interrupt"


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The function was never started here (drain, an unknown path): PENDING after `delay` seconds, for free."""

    delay: float = 0.0
    verb = "hand back"


Outcome = Completed | Failed | TimedOut | Discarded | Snoozed | Interrupted | HandedBack
