"""What the pages of workers are made of: what each runs, what it was asked and answered, what its threads do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, F, QuerySet, Window
from django.db.models.functions import RowNumber

from django_dhara import sql, stats
from django_dhara.admin import traces
from django_dhara.admin.text import visible, visible_lines
from django_dhara.models import Command, Task
from django_dhara.stats import RANGES, Point, Tally

#: Running tasks named for each worker in the list, and on its page.
NAMED, NAMED_ON_PAGE = 5, 50
#: Commands that are looked through, and shown.
LAST_COMMANDS, COMMANDS = 10_000, 10
#: Threads that are shown, and characters of the stack of each (its end, where it is now).
THREADS, STACK = 300, 6000


def running_tasks(alias: str, workers: Iterable[UUID], named: int = NAMED) -> dict[UUID, list[Task]]:
    """What these workers run now, oldest run first, at most `named` tasks of each; `number` says how many there are."""
    tasks: QuerySet[Any] = Task.objects.using(alias).running().filter(worker_id__in=list(workers))
    by_worker: Any = {"partition_by": F("worker_id")}
    place = Window(RowNumber(), order_by=F("attempted_at").asc(), **by_worker)
    found: dict[Any, list[Task]] = defaultdict(list)
    shown = tasks.only("id", "function", "worker_id", "attempted_at").alias(place=place)
    for task in shown.annotate(number=Window(Count("*"), **by_worker)).filter(place__lte=named):
        found[task.worker_id].append(task)
    return found


def lately(alias: str) -> Mapping[str, Tally]:
    """What each worker has settled in the last five minutes, by its id."""
    try:
        return stats.totals(alias, None, RANGES["5m"], "worker")
    except stats.TooSlow:
        return {}


def hour(alias: str, worker: UUID) -> Sequence[Point]:
    """What a worker has settled in each minute of the last hour."""
    try:
        return stats.series(alias, None, RANGES["1h"], worker=worker)[""]
    except stats.TooSlow:
        return []


def commands(alias: str, worker: UUID) -> Sequence[Command]:
    """What operators asked this worker as a whole, newest first."""
    all_ = Command.objects.using(alias)
    oldest = all_.order_by("-pk").values_list("pk", flat=True)[LAST_COMMANDS : LAST_COMMANDS + 1].first()
    whole = (Command.Verb.DRAIN, Command.Verb.STACKS)
    asked = all_.filter(worker_id=worker, verb__in=whole, argument__isnull=True, pk__gt=oldest or 0)
    return list(asked.defer("answer").order_by("-pk")[:COMMANDS])


class Stack(NamedTuple):
    """What threads do that all do the same."""

    threads: Sequence[str]
    text: str

    @property
    def names(self) -> str:
        """The names of the first threads."""
        return visible(", ".join(self.threads[:3]) + (" …" if len(self.threads) > 3 else ""))

    @property
    def where(self) -> str:
        """Where in the project's own code they are, else where in any."""
        return traces.own_frame(self.text, "")

    @property
    def shown(self) -> str:
        return visible_lines(self.text)


# The answer may have megabytes; only what is shown is read.
_STACKS = f"""/* dhara:stacks */
SELECT thread, right(text, {STACK}) FROM (
    SELECT answer FROM dhara_command WHERE id = %(id)s AND jsonb_typeof(answer) = 'object') AS command
CROSS JOIN LATERAL jsonb_each_text(answer) AS stack(thread, text) ORDER BY thread LIMIT {THREADS}
"""


def stacks(alias: str, command: Command) -> list[Stack]:
    """The answer to a command STACKS: first what is in the project's code, for that hangs; then the longest, for
    idle threads wait near the top of theirs; last the main thread, which is the control loop.
    """
    same: dict[str, list[str]] = defaultdict(list)
    for thread, text in sql.on(alias)(_STACKS, {"id": command.pk}):
        same[text or ""].append(thread)
    return sorted((Stack(threads, text) for text, threads in same.items()), key=_likelihood)


def _likelihood(stack: Stack) -> tuple[bool, bool, int]:
    is_loop = any(thread.startswith("MainThread") for thread in stack.threads)
    return is_loop, not traces.has_own_frame(stack.text), -stack.text.count("\n")
