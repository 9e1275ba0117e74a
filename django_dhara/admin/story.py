"""What a task waits for, and what happened to it, in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin.utils import quote
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin import audit, links
from django_dhara.admin.backlog import key
from django_dhara.admin.scene import Scene
from django_dhara.admin.text import age, first_line, moment, name, span, visible, worker_name
from django_dhara.models import Attempt
from django_dhara.states import State


class Event(NamedTuple):
    """One line of the timeline; `kind` names its colour."""

    when: datetime
    shown: SafeString | str
    kind: str
    title: SafeString | str
    detail: SafeString | str = ""


def standing(scene: Scene) -> Iterator[SafeString | str]:
    """Where the task stands and what it waits for: one sentence, and others that may explain it."""
    match scene.task.state:
        case State.PENDING:
            yield _pending(scene)
            yield from _obstacles(scene)
        case State.RUNNING:
            yield from _running(scene)
        case State.DEAD:
            yield from _dead(scene)
        case State.COMPLETED | State.CANCELED:
            yield _ended(scene)
    if not scene.backend_known:
        text = _("There is no backend {} in TASKS of this project: its workers are elsewhere, or it was removed.")
        yield format_html(text, name(scene.task.backend))


def _pending(scene: Scene) -> SafeString:
    task, used = scene.task, scene.task.failures + scene.task.lost
    due = task.run_at <= scene.now
    if due and not used:
        return format_html(_("Ready: waits for a worker of queue {}."), name(task.queue))
    if due:
        text = _("Ready for attempt {} of {}: waits for a worker of queue {}.")
        return format_html(text, used + 1, task.max_attempts, name(task.queue))
    when = moment(task.run_at, scene.now)
    if used:
        return format_html(_("Waits for its retry: attempt {} of {} {}."), used + 1, task.max_attempts, when)
    if task.snoozed:
        return format_html(_("Snoozed: runs again {}."), when)
    return format_html(_("Scheduled: runs {}."), when)


def _obstacles(scene: Scene) -> Iterator[SafeString | str]:
    if scene.paused_at:
        yield _paused(scene, scene.paused_at)
    elif not scene.served:
        told = _("No worker that is alive now takes this queue.")
        due = scene.task.run_at <= scene.now
        yield format_html('<strong class="dhara-alert dhara-dead">{}</strong>', told) if due else told
    if scene.task.lost:
        yield _("It was running when a worker died: a worker holds at most one such task at a time.")


def _paused(scene: Scene, since: datetime) -> SafeString:
    address = links.to(scene.site, "queue_change", quote(key(scene.task.backend, scene.task.queue)))
    link = links.linked(address, format_html("{}", _("its page")))
    pause = audit.pause(since, scene.now, scene.paused_by)
    told = format_html(_("Its queue has been paused for {}: it waits until somebody resumes it, on {}."), pause, link)
    return format_html('<strong class="dhara-alert dhara-pending">{}</strong>', told)


def _running(scene: Scene) -> Iterator[SafeString]:
    task = scene.task
    text = _("Running on {} for {}, attempt {} of {}.")
    since = age(task.attempted_at or scene.now, scene.now)
    yield format_html(text, worker(scene, task.worker_id), since, task.failures + task.lost + 1, task.max_attempts)
    if task.lease_until and task.lease_until <= scene.now:
        text = _("Its lease ran out {}: its worker died or is out of reach, and the task will be taken back.")
    else:
        text = _("Its lease ends {}, and is renewed while its worker lives.")
    yield format_html(text, moment(task.lease_until, scene.now))
    if task.cancel_requested_at:
        yield format_html(_("Asked to stop {}."), moment(task.cancel_requested_at, scene.now))


def _dead(scene: Scene) -> Iterator[SafeString]:
    task, used = scene.task, scene.task.failures + scene.task.lost
    when = age(task.finished_at or scene.now, scene.now)
    yield format_html(_("Dead for {}: {} of {} attempts were used."), when, used, task.max_attempts)
    if task.error_class:
        yield format_html(_("Its last error was {}."), name(task.error_class))


def _ended(scene: Scene) -> SafeString:
    task = scene.task
    when = moment(task.finished_at, scene.now)
    if task.state == State.CANCELED:
        return format_html(_("Canceled {}."), when)
    if task.attempted_at is None or task.finished_at is None:
        return format_html(_("Completed {}."), when)
    return format_html(_("Completed {}, after {}."), when, span((task.finished_at - task.attempted_at).total_seconds()))


def worker(scene: Scene, id_: UUID | None) -> SafeString | str:
    """The name of a worker, with a link while its row exists."""
    known = scene.workers.get(id_) if id_ else None
    if known is None:
        return format_html(_("worker {}"), str(id_)[:8]) if id_ else "–"
    return worker_name(known, links.to(scene.site, "worker_change", known.pk))


def timeline(scene: Scene) -> list[Event]:
    """What happened, oldest first, and what comes next."""
    events = [*_enqueued(scene), *_attempted(scene), *_present_run(scene), *_operated(scene), *_last(scene)]
    return sorted(events, key=lambda event: event.when)


def _event(scene: Scene, when: datetime, kind: str, title: Any, detail: Any = "") -> Event:
    return Event(when, moment(when, scene.now), kind, title, detail)


def _enqueued(scene: Scene) -> Iterator[Event]:
    task = scene.task
    detail: SafeString | str = ""
    if not scene.attempts and task.started_at is None and task.run_at > task.enqueued_at:
        detail = _("to run %s later") % span((task.run_at - task.enqueued_at).total_seconds())
    yield _event(scene, task.enqueued_at, "pending", _("Enqueued"), detail)


def anew(scene: Scene) -> set[int]:
    """The attempts that follow a retry: they are counted from 1 again."""
    pairs = pairwise(scene.attempts)
    return {later.pk for earlier, later in pairs if later.number <= earlier.number}


def _attempted(scene: Scene) -> Iterator[Event]:
    for attempt in scene.attempts:
        seconds = (attempt.ended_at - attempt.started_at).total_seconds()
        is_anew = attempt.pk in anew(scene)
        text = _("Attempt {}, counted anew after a retry: {} after {}") if is_anew else _("Attempt {}: {} after {}")
        title = format_html(text, attempt.number, ending(attempt).lower(), span(max(seconds, 0)))
        error = format_html("<code>{}</code> {}", name(attempt.error_class), first_line(_told(attempt)))
        detail = format_html(_("{} on {}"), error, worker(scene, attempt.worker_id))
        yield _event(scene, attempt.ended_at, "dead", title, detail)


def _told(attempt: Attempt) -> str:
    return str(attempt.told)  # type: ignore[attr-defined]


def ending(attempt: Attempt) -> str:
    """How a run ended, in words."""
    known = attempt.ended in Attempt.Ended.values
    return str(Attempt.Ended(attempt.ended).label) if known else visible(attempt.ended)


def _present_run(scene: Scene) -> Iterator[Event]:
    """The newest run, if it is not one of the failed ones."""
    task = scene.task
    if task.state in (State.RUNNING, State.COMPLETED) and task.attempted_at:
        title = format_html(_("Attempt {} started"), task.failures + task.lost + 1)
        yield _event(scene, task.attempted_at, "running", title, worker(scene, task.worker_id))


def _operated(scene: Scene) -> Iterator[Event]:
    """What people did. An admin's clock is not the database's: such a line may be a little out of place."""
    for entry in scene.entries or ():
        detail = format_html(_("by {}"), name(entry.user.get_username()))
        yield _event(scene, entry.action_time, "person", visible(entry.get_change_message()), detail)
    if scene.task.cancel_requested_at:
        yield _event(scene, scene.task.cancel_requested_at, "canceled", _("Cancel requested"))


def _last(scene: Scene) -> Iterator[Event]:
    task = scene.task
    if task.finished_at:
        yield _event(scene, task.finished_at, task.state.lower(), State(task.state).label)
    elif task.state == State.PENDING and task.run_at > scene.now:
        yield _event(scene, task.run_at, "next", _("Due"))
