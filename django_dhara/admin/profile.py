"""A worker in words: its status, its queues, its slots, its memory, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dhara.admin.text import age, grouped, moment, name, process, tag, visible
from django_dhara.fleet import Status
from django_dhara.stats import Tally


def badge(status: str) -> SafeString:
    """The status of a worker as a coloured word with its sign."""
    kind, sign = {
        Status.ALIVE: ("completed", "✓"),
        Status.DRAINING: ("pending", "▾"),
        Status.LATE: ("dead", "!"),
        Status.LOST: ("dead", "✕"),
        Status.STOPPED: ("canceled", "■"),
    }[Status(status)]
    labels = {
        Status.ALIVE: _("Alive"),
        Status.DRAINING: _("Draining"),
        Status.LATE: _("Late"),
        Status.LOST: _("Lost"),
        Status.STOPPED: _("Stopped"),
    }
    return tag(kind, sign, labels[Status(status)])


def standing(worker: Any) -> Iterator[SafeString | str]:
    """Where it stands, in sentences."""
    silence = age(worker.heartbeat_at, worker.now)
    match worker.status:
        case Status.ALIVE:
            yield format_html(_("It lives: it said so {} ago."), silence)
        case Status.DRAINING:
            yield _("It drains: it claims nothing more, lets its functions finish within its drain time, and exits.")
        case Status.LATE:
            yield format_html(
                _("It has been silent for {}, longer than its lease of {} s: it died, or cannot reach the database."),
                silence,
                f"{worker.lease_seconds:g}",
            )
            yield _("Other workers take its tasks back when their leases run out. Nothing needs to be done for that.")
        case Status.LOST:
            yield format_html(_("It is lost: silent for {}. It was killed, or its machine is gone."), silence)
            yield _("Its tasks were taken back. Its row goes a day after its last word.")
        case Status.STOPPED:
            yield format_html(_("It stopped {}, in good order."), moment(worker.stopped_at, worker.now))


def lifetime(worker: Any) -> SafeString:
    """Its version, and how long it is up, or was until its last sign of life."""
    if worker.status in (Status.ALIVE, Status.DRAINING):
        return format_html(_("{}, up {}"), visible(worker.version), age(worker.started_at, worker.now))
    last = worker.stopped_at or worker.heartbeat_at
    return format_html(_("{}, was up {}"), visible(worker.version), age(worker.started_at, last))


def facts(worker: Any) -> Iterator[tuple[str, Any]]:
    """What its row says, in the order in which one asks."""
    yield _("Name"), name(worker.name)
    yield _("Process"), process(worker)
    yield _("Queues"), queues(worker)
    yield _("Slots busy"), slots(worker)
    yield _("Settled in 5 min"), settled(worker.settled)
    yield _("Memory"), memory(worker)
    yield _("Started"), moment(worker.started_at, worker.now)
    yield _("Heartbeat"), moment(worker.heartbeat_at, worker.now)
    if worker.draining_at:
        yield _("Draining"), moment(worker.draining_at, worker.now)
    yield _("Lease"), _("%g s") % worker.lease_seconds
    yield _("Version"), visible(worker.version)
    yield _("Backend"), name(worker.backend)
    yield _("Id"), format_html("<code>{}</code>", worker.pk)


def queues(worker: Any) -> SafeString | str:
    chosen = _names(worker.queues) if worker.queues else _("all")
    if not worker.exclude_queues:
        return chosen
    return format_html(_("{} without {}"), chosen, _names(worker.exclude_queues))


def _names(names: Any) -> SafeString:
    """Names from a JSON column that anybody may have written."""
    return format_html_join(", ", "{}", ((name(one),) for one in (names if isinstance(names, list) else [names])))


def slots(worker: Any) -> SafeString | str:
    """Slots in use, of all; and what it has beyond them: coroutines, and tasks claimed ahead."""
    number = worker.running[0].number if worker.running else 0
    shown = f"{min(number, worker.concurrency)}/{worker.concurrency}"
    if number <= worker.concurrency:
        return shown
    title = _("beyond its slots: coroutines, and tasks claimed ahead")
    more = f"+{grouped(number - worker.concurrency)}"
    return format_html('{} <span class="dhara-quiet" title="{}">{}</span>', shown, title, more)


def settled(tally: Tally) -> SafeString | str:
    """Runs that ended, and how many of them failed."""
    shown = ngettext("%s run", "%s runs", tally.runs) % grouped(tally.runs)
    if not tally.failed:
        return shown
    failed = _("%s failed") % grouped(tally.failed)
    return format_html('{} <span class="dhara-quiet">{}</span>', shown, failed)


def memory(worker: Any) -> str:
    return filesizeformat(worker.memory_bytes) if worker.memory_bytes is not None else "–"
