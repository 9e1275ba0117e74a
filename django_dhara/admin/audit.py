"""Who did what: entries of Django's admin log about queues and workers, and who is behind a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.db.models import Model
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dhara.admin.databases import time_limit
from django_dhara.admin.text import age, name, visible

#: Entries shown of one queue or worker, and seconds in which those of one task are to be found.
ENTRIES, PATIENCE = 20, 0.5


def write(user: Any, model: type[Model], key: str, shown: str, message: str, when: datetime) -> None:
    """Keep that `user` changed something.

    Args:
        key: what its page has in its address.
        when: by the database's clock, so that an entry can be told by its time to belong to a change.
    """
    LogEntry.objects.create(
        user_id=user.pk,
        content_type=ContentType.objects.get_for_model(model),
        object_id=key,
        object_repr=visible(shown)[:200],
        action_flag=CHANGE,
        change_message=message,
        action_time=when,
    )


def entries(model: type[Model], key: str, most: int = ENTRIES) -> Sequence[LogEntry]:
    """What people did to it, newest first.

    Raises:
        TooSlow: Django's log has an index of models and none of keys, and bulk changes write an entry for each task.
    """
    content_type = ContentType.objects.get_for_model(model)
    found = LogEntry.objects.filter(content_type=content_type, object_id=key).select_related("user")
    with _patience(found.db):
        return list(found.order_by("-action_time", "-pk")[:most])


def _patience(alias: str) -> AbstractContextManager[None]:
    """The log may be in a database of another kind than the queue."""
    return time_limit(alias, PATIENCE) if connections[alias].vendor == "postgresql" else nullcontext()


def pause(since: datetime, now: datetime, author: str) -> SafeString:
    """How long a queue has been paused, and by whom, as far as that is known."""
    return format_html(_("{} by {}"), age(since, now), name(author)) if author else age(since, now)


def authors(model: type[Model], changes: Iterable[tuple[str, datetime]]) -> dict[str, str]:
    """Whose changes these are, by key; what was not done in the admin has no author."""
    times = dict(changes)
    content_type = ContentType.objects.get_for_model(model)
    found = LogEntry.objects.filter(
        content_type=content_type, object_id__in=list(times), action_time__in=list(times.values())
    ).select_related("user")
    return {e.object_id: e.user.get_username() for e in found if e.object_id and times[e.object_id] == e.action_time}
