"""The queues: what waits and for how long, for whom, what nobody can run, and what is left lying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django_dhara import registry
from django_dhara.doctor.case import LANES, BackendCase
from django_dhara.doctor.finding import Finding, Severity, Trouble, listed, span
from django_dhara.services import retention

UNKNOWN_FUNCTION = Trouble(
    "dhara.D080", Severity.WARNING,
    "Tasks wait whose function this code does not have",
    "A worker with this code puts them back each minute. They wait for ever unless workers of other code serve them, "
    "which cannot be seen from here.",
    "Deploy the code that has it, or keep the old name (docs/how-to/operate.md, Rename or remove a function), or "
    "cancel them in the admin: {functions}",
)  # fmt: skip
#: A sample: the first of each lane, the newest tasks, suspects.
_FUNCTIONS = f"""
WITH RECURSIVE {LANES}
SELECT function, count(*)::int AS n FROM (
    SELECT waiting.function FROM (SELECT queue, priority FROM lane LIMIT 200) AS lane CROSS JOIN LATERAL (
        SELECT function FROM dhara_task
        WHERE backend = %(backend)s AND state = 'PENDING' AND lost = 0
              AND queue = lane.queue AND priority = lane.priority
        ORDER BY run_at, id LIMIT 50) AS waiting
    UNION ALL
    SELECT function FROM (SELECT function, state, backend FROM dhara_task ORDER BY id DESC LIMIT 500) AS newest
    WHERE state = 'PENDING' AND backend = %(backend)s
    UNION ALL
    (SELECT function FROM dhara_task WHERE backend = %(backend)s AND state = 'PENDING' AND lost > 0 LIMIT 100)
) AS sample GROUP BY function ORDER BY function
"""


def unknown_functions(case: BackendCase) -> Iterator[Finding]:
    unknown = {}
    for row in case.rows(_FUNCTIONS):
        try:
            registry.resolve(row.function)
        except Exception as error:  # whatever the import of a module raises
            unknown[row.function] = " ".join(str(error).split())
    if unknown:
        what = listed([f"{path} ({reason})" for path, reason in unknown.items()])
        yield UNKNOWN_FUNCTION.seen(f"in a sample of what waits: {what}", functions=listed(list(unknown)))


NOT_SERVED = Trouble(
    "dhara.D081", Severity.ERROR,
    "Tasks wait in a queue that no living worker serves",
    "They wait for ever. Workers that drain finish what they have, and take nothing more.",
    "manage.py dhara_worker --backend {backend} --queues {queues}; or one without --queues, which serves all.",
)  # fmt: skip


def unserved_queues(case: BackendCase) -> Iterator[Finding]:
    if not case.alive:
        return
    long = case.limits.ready_seconds
    waits = {queue: seconds for queue, seconds in case.ready_queues.items() if seconds > long}
    unserved = [queue for queue in waits if not any(_serves(worker, queue) for worker in case.claiming)]
    unserved = sorted(set(unserved) - case.paused.keys())
    if unserved:
        what = listed([f"{queue} (its oldest ready task has waited for {span(waits[queue])})" for queue in unserved])
        yield NOT_SERVED.seen(what, backend=case.alias, queues=",".join(unserved))


def _serves(worker: Any, queue: str) -> bool:
    return queue in worker.queues if worker.queues else queue not in worker.exclude


PAUSED = Trouble(
    "dhara.D082", Severity.WARNING,
    "Tasks wait in a paused queue",
    "Nothing of it runs until somebody resumes it; a pause outlasts restarts and deploys.",
    "django_dhara.resume({queue!r}, backend={backend!r})",
)  # fmt: skip


def paused_queues(case: BackendCase) -> Iterator[Finding]:
    for queue in sorted(case.paused.keys() & case.ready_queues.keys()):
        paused, waits = span(case.paused[queue]), span(case.ready_queues[queue])
        what = f"{queue} has been paused for {paused}, and its oldest ready task has waited for {waits}"
        yield PAUSED.seen(what, queue=queue, backend=case.alias)


BACKLOG = Trouble(
    "dhara.D083", Severity.WARNING,
    "Ready tasks wait for long",
    "The workers of this queue do less than what comes in, or what they run takes too long.",
    "Start more workers of it, or give slow functions a queue of their own (docs/how-to/deploy/sizing.md).",
)  # fmt: skip


def backlog(case: BackendCase) -> Iterator[Finding]:
    served = {queue for queue in case.ready_queues if any(_serves(worker, queue) for worker in case.claiming)}
    for queue in sorted(served - case.paused.keys()):
        waits = case.ready_queues[queue]
        if waits > case.limits.ready_seconds:
            yield BACKLOG.seen(
                f"the oldest ready task of {queue} has waited for {span(waits)}", queue=queue, seconds=waits
            )


SUSPECTS = Trouble(
    "dhara.D084", Severity.WARNING,
    "Tasks were running when a worker died",
    "One of them may be what kills workers. They are tried again one at a time, after all others of their priority, "
    "until MAX_LOST.",
    "Look at their runs in the admin (lost > 0) and at the memory of the worker; run such functions with --processes, "
    "where only a child dies.",
)  # fmt: skip


def suspects(case: BackendCase) -> Iterator[Finding]:
    found = case.rows("""
        SELECT function, count(*)::int AS n FROM (
            SELECT function FROM dhara_task WHERE backend = %(backend)s AND state = 'PENDING' AND lost > 0 LIMIT 1000
        ) AS suspect GROUP BY function ORDER BY n DESC""")
    if found:
        yield SUSPECTS.seen(listed([f"{row.n} of {row.function}" for row in found]))


DEAD_GROWING = Trouble(
    "dhara.D085", Severity.WARNING,
    "Many more tasks die than usual",
    "Each death is a run that left its task DEAD: work that is not done and that nothing tries again. The statement "
    "shows the tasks that are DEAD now; some may have been revived since.",
    "SELECT function, error_class, count(*) FROM dhara_task WHERE state = 'DEAD' AND backend = '{backend}' AND "
    "finished_at > now() - interval '1 hour' GROUP BY 1, 2 ORDER BY 3 DESC; mend the cause, then revive "
    "them in the admin.",
)  # fmt: skip


def dead_letters(case: BackendCase) -> Iterator[Finding]:
    [row] = case.rows(f"""
        SELECT coalesce(sum(dead) FILTER (WHERE start > statement_timestamp() - interval '1 hour'), 0)::int AS now,
               coalesce(sum(dead) FILTER (WHERE start <= statement_timestamp() - interval '1 hour'), 0)::int AS before
        FROM {case.aggregates}
        WHERE backend = %(backend)s AND dead > 0 AND start > statement_timestamp() - interval '25 hours'""")
    usual = row.before / 24
    if row.now >= case.limits.dead_count and row.now > case.limits.dead_factor * usual:
        what = f"{row.now} deaths in the last hour, {usual:.3g} an hour in the day before"
        yield DEAD_GROWING.seen(what, backend=case.alias, now=row.now)


NOT_RESCUED = Trouble(
    "dhara.D086", Severity.ERROR,
    "Runs whose lease ran out are not rescued",
    "Their workers are gone, and nobody takes their tasks back: all workers have --no-reap, or none is alive.",
    "manage.py dhara_reaper --backend {backend} --once; and start a worker without --no-reap.",
)  # fmt: skip


def abandoned_runs(case: BackendCase) -> Iterator[Finding]:
    patience = case.options.lease_seconds + 2 * case.options.sweep_seconds
    [row] = case.rows(
        """
        SELECT count(*)::int AS n, extract(epoch FROM statement_timestamp() - min(lease_until))::float8 AS seconds
        FROM (SELECT lease_until, backend FROM dhara_task WHERE state = 'RUNNING' LIMIT 20000) AS running
        WHERE backend = %(backend)s AND lease_until < statement_timestamp() - make_interval(secs => %(patience)s)""",
        patience=patience,
    )
    if row.n:
        yield NOT_RESCUED.seen(f"{row.n} runs, the first for {span(row.seconds)}", backend=case.alias)


NOT_PRUNED = Trouble(
    "dhara.D087", Severity.WARNING,
    "Finished tasks stay longer than they should",
    "Nobody prunes, or less than what comes in: the table, its indexes and its backups grow.",
    "manage.py dhara_prune --backend {backend}; and start a worker without --no-prune.",
)  # fmt: skip


def old_tasks(case: BackendCase) -> Iterator[Finding]:
    """The oldest of each final state, a day after its time; keyed ones may stay longer, so the longer time counts."""
    for state, seconds in retention(case.options):
        longest = max(seconds, case.options.retain_keyed_seconds) + 86_400
        found = case.rows(
            """
            SELECT extract(epoch FROM statement_timestamp() - finished_at)::float8 AS age FROM (
                SELECT backend, finished_at FROM dhara_task WHERE state = %(state)s AND finished_at IS NOT NULL
                ORDER BY finished_at LIMIT 1000) AS oldest
            WHERE backend = %(backend)s AND finished_at < statement_timestamp() - make_interval(secs => %(longest)s)
            ORDER BY finished_at LIMIT 1""",
            state=state.value,
            longest=longest,
        )
        for row in found:
            what = f"a {state.value} task is {span(row.age)} old, and should have gone after {span(longest - 86_400)}"
            yield NOT_PRUNED.seen(what, backend=case.alias)
