"""The workers: who is silent, who is of another version, whose clock ran ahead, and what a deploy interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django_dhara import registry
from django_dhara.doctor.case import BackendCase
from django_dhara.doctor.finding import Finding, Severity, Trouble, listed, span

NOBODY = Trouble(
    "dhara.D070", Severity.ERROR,
    "Tasks wait, and no worker is alive",
    "Nothing of this backend runs.",
    "manage.py dhara_worker --backend {backend}",
)  # fmt: skip


def somebody_works(case: BackendCase) -> Iterator[Finding]:
    oldest = max(case.ready_queues.values(), default=0.0)
    if oldest > case.limits.ready_seconds and not case.alive:
        yield NOBODY.seen(f"the oldest ready task has waited for {span(oldest)}", backend=case.alias)


LATE = Trouble(
    "dhara.D071", Severity.WARNING,
    "A worker is late or lost",
    "It has not said that it lives for longer than its lease, and has not taken its leave: it was killed, hangs, or is "
    "cut off. Its runs are given to others and count as lost.",
    "On {host}: journalctl -u 'dhara-worker@*' or kubectl logs --previous; killed by the kernel for its memory is the "
    "usual reason (dmesg | grep -i oom). Its row goes after a day.",
)  # fmt: skip


def late_workers(case: BackendCase) -> Iterator[Finding]:
    late = [worker for worker in case.workers if worker.silent > worker.lease_seconds]
    if late:
        last = min(late, key=lambda worker: worker.silent)
        names = listed([*dict.fromkeys(worker.name for worker in late)])
        what = f"{len(late)} in the last day ({names}), the last one {span(last.silent)} ago"
        yield LATE.seen(what, host=last.host, workers=[str(worker.id) for worker in late])


VERSIONS = Trouble(
    "dhara.D072", Severity.WARNING,
    "Workers of several versions work side by side",
    "Versions that follow each other may, for the length of a deploy. After it, somebody runs what nobody meant to.",
    "Replace those that are older: {old}",
)  # fmt: skip


def versions(case: BackendCase) -> Iterator[Finding]:
    found: dict[str, list[Any]] = {}
    for worker in case.alive:
        found.setdefault(worker.version, []).append(worker)
    # A deploy is over when the newest version has been there for a while.
    youngest = min((max(worker.age for worker in workers) for workers in found.values()), default=0.0)
    if len(found) > 1 and youngest > case.limits.deploy_seconds:
        counts = listed([f"{len(workers)} of {version}" for version, workers in sorted(found.items())])
        old = [worker.name for version in sorted(found)[:-1] for worker in found[version]]
        yield VERSIONS.seen(f"{counts}, for {span(youngest)}", old=listed(old))


AHEAD = Trouble(
    "dhara.D073", Severity.WARNING,
    "The server's clock was put back",
    "Workers last spoke in the future, by the server's own clock: it was corrected, or another server took over whose "
    "clock is behind. Leases and due times are late by as much.",
    "Let the servers follow NTP, and slew instead of stepping: `makestep 1 3` in chrony.conf steps at the start only.",
)  # fmt: skip


def heartbeats_ahead(case: BackendCase) -> Iterator[Finding]:
    ahead = min((worker.silent for worker in case.workers), default=0.0)
    if -ahead > case.limits.skew_seconds:
        yield AHEAD.seen(f"a worker last spoke {span(-ahead)} from now", seconds=-ahead)


LONGER_THAN_DRAIN = Trouble(
    "dhara.D074", Severity.INFO,
    "Functions may take longer than a worker's drain time",
    "A deploy interrupts a run that is not over by then, and it starts anew elsewhere; after MAX_INTERRUPTED of these "
    "its task is DEAD.",
    "Raise DRAIN_SECONDS, and the patience of the supervisor with it; or keep a checkpoint in the context; or let them "
    "look at context.stopping.",
)  # fmt: skip
INTERRUPTED = Trouble(
    "dhara.D075", Severity.INFO,
    "Stopping workers have interrupted runs",
    "Their functions did not end within the drain time, and began anew elsewhere.",
    "Raise DRAIN_SECONDS (now {drain:g}), and the patience of the supervisor with it; or keep a checkpoint in the "
    "context.",
)  # fmt: skip


def long_functions(case: BackendCase) -> Iterator[Finding]:
    drain = case.options.drain_seconds
    long = []
    for path in registry.paths():
        task: Any = registry.known(path)
        if task.backend == case.alias and (getattr(task, "timeout", None) or 0) > drain:
            long.append(f"{path} ({span(task.timeout)})")
    if long:
        yield LONGER_THAN_DRAIN.seen(f"{listed(long)}; DRAIN_SECONDS is {drain:g}", functions=long)


def interrupted_runs(case: BackendCase) -> Iterator[Finding]:
    found = case.rows(f"""
        SELECT function, sum(interrupted)::int AS n FROM {case.aggregates}
        WHERE start > statement_timestamp() - interval '1 day' AND backend = %(backend)s AND interrupted > 0
        GROUP BY function ORDER BY n DESC LIMIT 20""")
    if found:
        what = listed([f"{row.function} {row.n} times" for row in found])
        yield INTERRUPTED.seen(f"in the last day {what}", drain=case.options.drain_seconds)
