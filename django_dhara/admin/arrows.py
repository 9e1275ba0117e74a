"""Where a task can go from here, and what takes it there, from the table of arrows in `states.py`."""

from __future__ import annotations

from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_dhara.admin.text import badge
from django_dhara.states import ARROWS, Arrow, State

_FAILS, _TIMES_OUT = _("the function raises an error"), _("it takes longer than its timeout")
_STOPS, _LOST = _("its worker stops before it has ended"), _("its worker is lost")

#: What takes a task along each arrow.
WORDS = {
    ("claim", State.RUNNING): _("a worker takes it"),
    ("cancel", State.CANCELED): _("somebody cancels it"),
    ("complete", State.COMPLETED): _("the function returns"),
    ("fail", State.PENDING): _FAILS,
    ("fail", State.DEAD): _("the function raises an error: no attempt is left"),
    ("fail", State.CANCELED): _FAILS,
    ("time out", State.PENDING): _TIMES_OUT,
    ("time out", State.DEAD): _("it takes longer than its timeout: no attempt is left"),
    ("time out", State.CANCELED): _TIMES_OUT,
    ("discard", State.DEAD): _("the function raises Discard"),
    ("discard", State.CANCELED): _("the function raises Discard"),
    ("snooze", State.PENDING): _("the function raises Snooze"),
    ("snooze", State.CANCELED): _("the function raises Snooze"),
    ("interrupt", State.PENDING): _STOPS,
    ("interrupt", State.DEAD): _("its worker stops before it has ended, once too often"),
    ("interrupt", State.CANCELED): _STOPS,
    ("hand back", State.PENDING): _("its worker hands it back unstarted"),
    ("hand back", State.CANCELED): _("its worker hands it back unstarted"),
    ("rescue", State.PENDING): _LOST,
    ("rescue", State.DEAD): _("its worker is lost, once too often"),
    ("rescue", State.CANCELED): _LOST,
    ("revive", State.PENDING): _("somebody retries it"),
}
_UNLESS_IT_SUCCEEDS = _("somebody cancels it, unless it succeeds all the same")
#: Ends of a run that a last attempt turns into DEAD.
_COUNTED = ("fail", "time out", "rescue")


def ways(task: Any) -> list[tuple[SafeString, list[Any]]]:
    """The states that the task can be in next, as badges, each with what leads there."""
    found: dict[State, list[Any]] = {}
    for arrow in ARROWS:
        if arrow.source == task.state and _is_possible(arrow, task):
            found.setdefault(arrow.target, []).append(WORDS[arrow.verb, arrow.target])
    if task.state == State.RUNNING and not task.cancel_requested_at:
        found[State.CANCELED] = [_UNLESS_IT_SUCCEEDS]
    return [(badge(state), reasons) for state, reasons in found.items()]


def _is_possible(arrow: Arrow, task: Any) -> bool:
    """As the row is now. Of a run that was asked to stop only a success counts."""
    if arrow.source != State.RUNNING or arrow.target == State.COMPLETED:
        return True
    if task.cancel_requested_at:
        return arrow.target == State.CANCELED
    is_last = task.failures + task.lost + 1 >= task.max_attempts
    if arrow.verb in _COUNTED and is_last:
        return arrow.target == State.DEAD
    # A rescue may be the last one allowed before the last attempt is.
    return arrow.target != State.CANCELED and not (arrow.verb in ("fail", "time out") and arrow.target == State.DEAD)
