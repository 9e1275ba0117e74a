"""What the page of one task is made of, read in a handful of bounded queries. No code of a function is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.db.models import Func, IntegerField, TextField
from django.db.models.functions import Cast, Left, Length, Now, Right
from django.utils.translation import gettext_lazy

from django_dhara import fleet, redaction
from django_dhara.admin import audit, databases, trees
from django_dhara.admin.backlog import key
from django_dhara.admin.text import grouped, pretty
from django_dhara.models import Attempt, Queue, Task, TaskQuerySet, Worker
from django_dhara.states import State

#: Columns that can be large. A list never reads them, and a page reads their beginning as text.
HEAVY = ("payload", "payload_hash", "result", "progress", "checkpoint", "metadata")
_TITLES = {
    "payload": gettext_lazy("Payload"),
    "result": gettext_lazy("Result"),
    "progress": gettext_lazy("Progress"),
    "checkpoint": gettext_lazy("Checkpoint"),
    "metadata": gettext_lazy("Metadata"),
}
DOCUMENTS = tuple(_TITLES)
#: Characters of such a column that a page shows as text, and up to which it is read in whole, for a tree.
SHOWN, WHOLE = 20_000, 2_000_000
#: Characters of a traceback on a page: its end, where the error is.
TRACEBACK = 16_000
ATTEMPTS, CHILDREN, ENTRIES = 20, 50, 30


class Document(NamedTuple):
    """A JSON column, ready to be shown."""

    name: str
    #: Its beginning as text, and all of it as a tree; empty where it is too large or too deep for one.
    body: str
    tree: str
    #: Characters in the column, and whether `body` is only the beginning.
    size: int
    cut: bool
    #: The project's hook was asked what may be shown; and it does not work, or is not asked about so much.
    is_redacted: bool = False
    is_hidden: bool = False

    @property
    def title(self) -> str:
        return str(_TITLES[self.name])

    @property
    def size_shown(self) -> str:
        return grouped(self.size)


@dataclass(slots=True, kw_only=True)
class Scene:
    """A task and what surrounds it."""

    #: A row with its database.
    task: Any
    #: The name of the admin site that shows it; links stay there.
    site: str
    #: The database's time, to which all others are compared.
    now: datetime
    #: Newest last; `more_attempts` older ones are left out.
    attempts: Sequence[Attempt]
    more_attempts: int
    workers: Mapping[UUID, Worker]
    #: None: they could not be read in time.
    entries: Sequence[LogEntry] | None
    children: Sequence[tuple[UUID, str, str]]
    parent: Task | None
    paused_at: datetime | None
    #: Who paused its queue, if that was done in the admin.
    paused_by: str = ""
    #: Whether a living worker takes tasks of this queue.
    served: bool
    documents: Sequence[Document]
    #: Its backend is in TASKS of this project.
    backend_known: bool


def with_documents(queryset: TaskQuerySet) -> Any:
    """The tasks with the beginning of each large column as text, and its length."""
    texts = {name: Cast(name, TextField()) for name in DOCUMENTS}
    beginnings = {f"{name}_text": Left(text, WHOLE) for name, text in texts.items()}
    return queryset.defer(*HEAVY).annotate(
        **beginnings, **{f"{name}_size": Length(text) for name, text in texts.items()}, now=Now()
    )


def read(alias: str, task: Any, site: str) -> Scene:
    """Everything about `task`, a row of `with_documents()`."""
    attempts = list(_attempts(alias, task.id))
    return Scene(
        task=task,
        site=site,
        now=task.now,
        attempts=attempts[:ATTEMPTS][::-1],
        more_attempts=attempts[0].number_of_all - ATTEMPTS if len(attempts) > ATTEMPTS else 0,
        workers=_workers(alias, task, attempts),
        entries=_entries(task.id),
        children=_children(alias, task),
        parent=Task.objects.using(alias).filter(id=task.parent_id).only("id", "function", "state").first()
        if task.parent_id
        else None,
        **_obstacles(alias, task),
        documents=[*documents(task)],
        backend_known=_is_backend_known(task),
    )


def glance(alias: str, task: Any, site: str) -> Scene:
    """What is said of a task that has not ended again and again, by a few small queries."""
    return Scene(
        task=task,
        site=site,
        now=task.now,
        attempts=(),
        more_attempts=0,
        workers=_workers(alias, task, ()),
        entries=(),
        children=(),
        parent=None,
        **_obstacles(alias, task),
        documents=(),
        backend_known=_is_backend_known(task),
    )


def _obstacles(alias: str, task: Any) -> dict[str, Any]:
    """What keeps a pending task waiting."""
    if task.state != State.PENDING:
        return {"paused_at": None, "served": True}
    paused_at = _paused_at(alias, task)
    return {
        "paused_at": paused_at,
        "paused_by": _paused_by(task, paused_at) if paused_at else "",
        "served": fleet.is_served(alias, task.queue, task.backend),
    }


def _is_backend_known(task: Any) -> bool:
    return task.backend in getattr(settings, "TASKS", {})


def documents(task: Any) -> Iterable[Document]:
    """The JSON columns of a row of `with_documents()` that are not empty, as people may see them."""
    for name in DOCUMENTS:
        text, size = getattr(task, f"{name}_text"), getattr(task, f"{name}_size")
        if text is None:
            continue
        if name == "payload" and redaction.is_redacting():
            yield _redacted(task.function, text, size)
        else:
            yield _document(name, text, size)


def _document(name: str, text: str, size: int, *, is_redacted: bool = False) -> Document:
    body = pretty(text[:SHOWN], SHOWN)
    return Document(name, body, _tree(text, size), size, size > SHOWN or body.endswith("…"), is_redacted)


def _tree(text: str, size: int) -> str:
    if size > WHOLE:
        return ""
    try:
        return trees.tree(trees.parse(text))
    except ValueError:
        return ""


def _redacted(function: str, text: str, size: int) -> Document:
    """The hook is asked about whole arguments only."""
    told = redaction.shown(function, text) if size <= WHOLE else redaction.Shown("", is_hidden=True)
    if told.is_hidden:
        return Document("payload", "", "", size, cut=False, is_redacted=True, is_hidden=True)
    return _document("payload", told.text, len(told.text), is_redacted=True)


def document(alias: str, task: Any, name: str) -> str | None:
    """The whole of one JSON column as text, as people may see it; None: it is empty, or may not be shown."""
    found = Task.objects.using(alias).filter(pk=task.pk).values_list(Cast(name, TextField()), "function").first()
    if found is None or found[0] is None:
        return None
    if name != "payload":
        return str(found[0])
    told = redaction.shown(found[1], found[0])
    return None if told.is_hidden else told.text


def _attempts(alias: str, id_: UUID) -> Any:
    total = Func(function="count", template="count(*) OVER ()", output_field=IntegerField())
    return (
        Attempt.objects.using(alias)
        .filter(task_id=id_)
        .defer("traceback", "message")
        .annotate(
            number_of_all=total,
            told=Left("message", 2000),
            trace=Right("traceback", TRACEBACK),
            trace_size=Length("traceback"),
        )
        .order_by("-id")[: ATTEMPTS + 1]
    )


def _workers(alias: str, task: Task, attempts: Iterable[Attempt]) -> Mapping[UUID, Worker]:
    ids = {attempt.worker_id for attempt in attempts} | ({task.worker_id} if task.worker_id else set())
    return Worker.objects.using(alias).in_bulk(ids)


def _entries(id_: UUID) -> Sequence[LogEntry] | None:
    """What people did to it, newest last; None if that could not be read in time."""
    try:
        return audit.entries(Task, str(id_), ENTRIES)[::-1]
    except databases.TooSlow:
        return None


def _children(alias: str, task: Task) -> Sequence[tuple[UUID, str, str]]:
    children = Task.objects.using(alias).filter(parent_id=task.id).order_by("id")
    return list(children.values_list("id", "function", "state")[: CHILDREN + 1])


def _paused_at(alias: str, task: Task) -> datetime | None:
    paused = Queue.objects.using(alias).filter(backend=task.backend, name=task.queue, paused_at__isnull=False)
    return paused.values_list("paused_at", flat=True).first()


def _paused_by(task: Task, since: datetime) -> str:
    queue = key(task.backend, task.queue)
    return audit.authors(Queue, [(queue, since)]).get(queue, "")
