"""The page of one task as a template wants it: labels and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin import arrows, databases, links, live, story, traces
from django_dhara.admin.scene import ATTEMPTS, CHILDREN, SHOWN, Scene
from django_dhara.admin.text import badge, counted, first_line, grouped, moment, name, span, visible, visible_lines
from django_dhara.states import State


class Told(NamedTuple):
    """One failed run, ready to be shown."""

    number: int
    #: The first one since the task was put back to run again.
    is_anew: bool
    ended: str
    error_class: SafeString
    #: The first line of the message, and all of it if there is more.
    message: str
    rest: str
    when: SafeString | str
    seconds: str
    worker: SafeString | str
    traceback: str
    pieces: list[traces.Piece]
    left_out: int


def glance(scene: Scene) -> dict[str, Any]:
    """What changes while one looks."""
    task: Any = scene.task
    runs = task.state == State.RUNNING
    return {
        "badge": badge(task.state),
        "standing": [*story.standing(scene)],
        "gauge": live.gauge(task.progress_text) if runs else None,
    }


def context(scene: Scene) -> dict[str, Any]:
    """What the template shows of a task."""
    return {
        "scene": scene,
        "heading": name(scene.task.function),
        **glance(scene),
        "timeline": story.timeline(scene),
        "ways": arrows.ways(scene.task),
        "facts": [*_facts(scene)],
        "documents": scene.documents,
        "shown": grouped(SHOWN),
        "attempts": [_told(scene, attempt) for attempt in reversed(scene.attempts)],
        "attempts_shown": ATTEMPTS,
        "children": [(_link(scene, id_, path), badge(state)) for id_, path, state in scene.children[:CHILDREN]],
        "more_children": len(scene.children) > CHILDREN,
    }


def _told(scene: Scene, attempt: Any) -> Told:
    message = first_line(attempt.told)
    trace = visible_lines(attempt.trace)
    return Told(
        number=attempt.number,
        is_anew=attempt.pk in story.anew(scene),
        ended=story.ending(attempt),
        error_class=name(attempt.error_class),
        message=message,
        rest=visible_lines(attempt.told) if message != attempt.told.strip() else "",
        when=moment(attempt.ended_at, scene.now),
        seconds=span(max((attempt.ended_at - attempt.started_at).total_seconds(), 0)),
        worker=story.worker(scene, attempt.worker_id),
        traceback=trace,
        pieces=traces.pieces(attempt.trace, scene.task.function),
        left_out=max(attempt.trace_size - len(attempt.trace), 0),
    )


def _link(scene: Scene, id_: Any, path: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', links.to(scene.site, "task_change", id_), name(path))


def _facts(scene: Scene) -> Iterator[tuple[str, Any]]:
    """What the row says, in the order in which one asks; what is empty is left out."""
    task, now = scene.task, scene.now
    yield _("Id"), format_html("<code>{}</code>", task.id)
    yield _("Queue"), _filtered(scene, queue=task.queue)
    yield _("Function"), _filtered(scene, function=task.function)
    yield _("Priority"), task.priority
    yield _("Attempts"), f"{counted(task)}/{task.max_attempts}"
    for label, number in (
        (_("Lost runs"), task.lost),
        (_("Interrupted"), task.interrupted),
        (_("Snoozed"), task.snoozed),
    ):
        if number:
            yield label, number
    yield _("Run at"), moment(task.run_at, now)
    for label, when in (
        (_("Enqueued"), task.enqueued_at),
        (_("First started"), task.started_at),
        (_("Last started"), task.attempted_at),
        (_("Finished"), task.finished_at),
    ):
        if when:
            yield label, moment(when, now)
    yield from _rare_facts(scene)


def _rare_facts(scene: Scene) -> Iterator[tuple[str, Any]]:
    task = scene.task
    if task.worker_id:
        yield _("Worker"), story.worker(scene, task.worker_id)
    if task.timeout is not None:
        yield _("Timeout"), span(task.timeout)
    if task.idempotency_key is not None:
        yield _("Idempotency key"), format_html("<code>{}</code>", visible(task.idempotency_key))
    if task.error_class:
        yield _("Last error"), format_html("<code>{}</code>", name(task.error_class))
    yield _("Backend"), name(task.backend)
    if scene.parent:
        yield _("Enqueued by"), _link(scene, scene.parent.pk, scene.parent.function)
    elif task.parent_id:
        yield _("Enqueued by"), format_html(_("{} (deleted)"), task.parent_id)


def _filtered(scene: Scene, **parameters: str) -> SafeString:
    """A value that leads to the list of all tasks with it."""
    [value] = parameters.values()
    query = urlencode({**parameters, **databases.named(scene.task.database)})
    address = f"{links.to(scene.site, 'task_changelist')}?{query}"
    return format_html('<a href="{}">{}</a>', address, name(value))
