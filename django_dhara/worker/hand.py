"""What a worker holds: its runs, from the claim until the database has accepted how they ended.

Only the control loop calls this; functions' threads put ended runs into the outbox and ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django_dhara import events, execution, registry
from django_dhara.conf import Options
from django_dhara.execution import Reporter, Run
from django_dhara.lifecycle import Claim, Ending
from django_dhara.states import HandedBack, Outcome
from django_dhara.tasks import Task
from django_dhara.worker import stacks
from django_dhara.worker.executors import Crew, EventLoop, Herald, Threads, Waiting
from django_dhara.worker.pace import Mix, Pace

if TYPE_CHECKING:
    from django_dhara.backend import DharaBackend

#: Tasks that no thread has started after so many seconds go back: another worker may be idle.
STALE_SECONDS = 0.25
#: A path that does not exist here is not claimed again for so long.
UNKNOWN_SECONDS = 60.0
#: With so many ended runs that the database has not accepted yet, nothing more is claimed.
MOST_ENDINGS = 2000


class Demand(NamedTuple):
    """What to claim."""

    limit: int
    #: How many of them may be suspects.
    suspects: int
    #: Paths of functions that this process does not have, or has no room for.
    left_out: list[str]
    #: What may come: plain functions, coroutines, suspects.
    kinds: frozenset[str]


class Load(NamedTuple):
    """How much a worker holds: functions that run, tasks that wait for a thread, runs that are not settled yet, overdue
    functions that do not end, and signals whose receivers were not called yet."""

    running: int
    waiting: int
    ended: int
    abandoned: int
    receivers: int


class Hand:
    """The runs of one worker and the executors that run them.

    Args:
        reporter: takes what running functions say.
        ring: wakes the control loop.
        fail: called with a reason when functions cannot run here at all, or something that is needed has died.
    """

    def __init__(
        self,
        worker: UUID,
        backend: DharaBackend,
        options: Options,
        reporter: Reporter,
        *,
        ring: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self._worker, self._backend, self._options = worker, backend, options
        self._reporter, self._ring = reporter, ring
        #: How ended runs ended, until the database has accepted it.
        self.endings: dict[Run, Ending] = {}
        #: When the oldest of them ended.
        self.oldest_ending = 0.0

        self._runs: dict[Run, None] = {}  # in the order of their claims; hashing a UUID would cost more than all this
        self._open: set[Run] = set()
        self._open_async: set[Run] = set()
        self._suspects: set[Run] = set()
        self._abandoned: set[Run] = set()
        self._parked: list[Run] = []
        self._unknown: dict[str, float] = {}
        self._told_blocked: set[Run] = set()
        self._told_full = False
        #: A function that has been given up blocks the event loop: no other `async def` function runs here any more.
        self.is_stuck = False
        self._outbox: deque[tuple[Run, Outcome | None, bool]] = deque()

        self._pace = Pace(options.slots, options.max_prefetch)
        self._async_pace = Pace(options.async_concurrency, options.max_prefetch)
        self._mix = Mix()
        self._herald = Herald(fail)
        self._loop = EventLoop(max(options.async_concurrency, 1), self._on_ended, fail)
        self._plain = self._crew(fail)

    def _crew(self, fail: Callable[[str], None]) -> Crew:
        options, done, pass_on = self._options, self._on_ended, self._loop.submit
        if not options.processes:
            return Threads(options.concurrency, done, pass_on, fail)
        from django_dhara.worker.children import Children

        most = options.max_tasks_per_child
        return Children(options.processes, done, pass_on, ring=self._ring, fail=fail, max_tasks=most)

    # ------------------------------------------------------------------------------------------------ what it has

    @property
    def is_ready(self) -> bool:
        """Can plain functions run yet? Child processes need a moment to start."""
        return self._plain.is_ready

    @property
    def children(self) -> list[int]:
        """The ids of its child processes."""
        return self._plain.children

    @property
    def runs(self) -> list[Run]:
        """All whose lease is to be kept: those that run, and those that ended and are not settled yet."""
        return list(self._runs)

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    @property
    def has_news(self) -> bool:
        return bool(self._outbox)

    @property
    def is_urgent(self) -> bool:
        """Has a run ended that the control loop should see before the next flush: because none is due, or because there
        is room for a claim? To wake the loop for each would make it and the functions' threads wait for one another,
        task by task."""
        ended = len(self._outbox)
        enough = self._pace.enough + (self._async_pace.enough if self._open_async else 0)
        return ended > 0 and (not self.endings or len(self._open) - ended <= enough)

    @property
    def running(self) -> int:
        return len(self._open)

    @property
    def abandoned(self) -> int:
        """Overdue functions that do not end, each on a thread that is lost until they do."""
        return len(self._abandoned)

    def load(self) -> Load:
        """What it holds, for the metrics; from any thread."""
        held = list(self._open)
        return Load(
            running=sum(run.started is not None for run in held),
            waiting=sum(run.started is None for run in held),
            ended=len(self.endings),
            abandoned=len(self._abandoned),
            receivers=self._herald.waiting,
        )

    def find(self, task: UUID, lease: int) -> Run | None:
        return next((run for run in self._runs if run.key == (task, lease)), None)

    def to_renew(self, before: float) -> list[Run]:
        """Runs whose lease ends before this monotonic time."""
        return [run for run in self._runs if run.lease_ends < before and not run.is_hopeless]

    # ------------------------------------------------------------------------------------------------ claiming

    def demand(self, at_most: int | None) -> Demand:
        """What fits now. Where only one kind of function has room, the other kind is left out."""
        plain = self._pace.room(len(self._open) - len(self._open_async)) if self._plain.is_ready else 0
        coroutines = self._async_pace.room(len(self._open_async))
        left_out, kinds = self._unknown_paths(), {"plain", "async", "suspect"}
        if not registry.async_paths:
            limit = plain
            kinds.remove("async")
        elif not registry.plain_paths or not plain:
            limit, left_out = coroutines, [*left_out, *registry.plain_paths]
            kinds.remove("plain")
        elif not coroutines:
            limit, left_out = plain, [*left_out, *registry.async_paths]
            kinds.remove("async")
        else:
            limit = self._mix.fitting(plain, coroutines)
        if self._herald.is_full or len(self.endings) >= MOST_ENDINGS:
            limit = 0
        if self._suspects:
            kinds.remove("suspect")
        suspects = int("suspect" in kinds)
        return Demand(limit if at_most is None else min(limit, at_most), suspects, left_out, frozenset(kinds))

    def take(self, claims: Iterable[Claim], lease_ends: float) -> None:
        """These tasks are ours; start them as soon as there is a thread."""
        claims = list(claims)
        self._mix.brought(sum(claim.function in registry.async_paths for claim in claims), len(claims))
        for claim in claims:
            run = Run(
                claim=claim,
                worker=self._worker,
                backend=type(self._backend),
                alias=self._backend.alias,
                options=self._options,
                reporter=self._reporter,
                lease_ends=lease_ends,
                taken=monotonic(),
            )
            self._runs[run] = None
            self._open.add(run)
            if claim.is_suspect:
                self._suspects.add(run)
            if claim.function in registry.async_paths:
                self._open_async.add(run)
            self._submit(run)

    def _submit(self, run: Run) -> None:
        (self._loop if run in self._open_async else self._plain).submit(run)

    def _take_back(self) -> list[Run]:
        return [*self._plain.take_back(), *self._loop.take_back()]

    def _unknown_paths(self) -> list[str]:
        if not self._unknown:
            return []
        now = monotonic()
        self._unknown = {path: until for path, until in self._unknown.items() if until > now}
        return list(self._unknown)

    # ------------------------------------------------------------------------------------------------ ending

    def _on_ended(self, run: Run) -> None:
        self._outbox.append((run, run.outcome, False))
        if self.is_urgent:
            self._ring()

    def gather(self) -> None:
        """Take in what ended since the last call."""
        while self._outbox:
            run, outcome, is_verdict = self._outbox.popleft()
            if not is_verdict:
                self._abandoned.discard(run)
            if run.lost:
                self._close_run(run)
            elif outcome is not None and (is_verdict or not run.abandoned):
                self._conclude(run, outcome)
        self._plain.are_brief = self._pace.is_brief

    def _conclude(self, run: Run, outcome: Outcome) -> None:
        if run not in self._open:
            return
        if run.seconds is not None:
            (self._async_pace if run in self._open_async else self._pace).ended(run.seconds)
        self._close_run(run)
        if run.unknown:
            self._remember_unknown(run)
        if not self.endings:
            self.oldest_ending = monotonic()
        seconds = None if isinstance(outcome, HandedBack) else run.seconds
        self.endings[run] = Ending(run.claim.id, run.claim.lease, outcome, seconds, monotonic())

    def _close_run(self, run: Run) -> None:
        self._open.discard(run)
        self._open_async.discard(run)
        self._told_blocked.discard(run)

    def _remember_unknown(self, run: Run) -> None:
        path = run.claim.function
        if path not in self._unknown:
            events.FUNCTION_UNKNOWN.tell(function=path, reason=run.exception, seconds=UNKNOWN_SECONDS)
        self._unknown[path] = monotonic() + UNKNOWN_SECONDS

    def forget(self, run: Run) -> Ending:
        """The database has answered to how this run ended."""
        ending = self.endings.pop(run)
        self._runs.pop(run, None)
        self._suspects.discard(run)
        self.oldest_ending = monotonic()
        return ending

    def lose(self, run: Run) -> None:
        """The task is somebody else's: the function is asked to stop, and how it ends is not written."""
        run.lost = run.canceled = True
        self._runs.pop(run, None)
        self._suspects.discard(run)
        self.endings.pop(run, None)
        if run in self._parked:
            self._parked.remove(run)
            self._close_run(run)
        self._stop_function(run)

    def cancel(self, run: Run) -> None:
        """Somebody canceled the task."""
        run.canceled = True
        self._stop_function(run)

    def _stop_function(self, run: Run) -> None:
        if run in self._open_async or run.is_async:
            self._loop.stop(run)

    # ------------------------------------------------------------------------------------------------ looking after

    def show_stack(self, run: Run, tell: stacks.Tell) -> None:
        """Tell what the function of this run does now; without waiting for it here."""
        if run in self.endings or run.outcome is not None:
            tell(stacks.ENDED)
        elif run.picked is None:
            tell(stacks.WAITS)
        else:
            (self._loop if run in self._open_async or run.is_async else self._plain).show_stack(run, tell)

    def check(self, now: float) -> None:
        """Overdue functions, tasks that wait here for too long, functions that block the event loop."""
        for run in list(self._open):
            begun = run.picked if run.started is None else run.started
            if begun is not None and not run.abandoned and now - begun > run.timeout:
                self._time_out(run)
        self._check_waiting(self._plain, self._pace, now)
        self._check_waiting(self._loop, self._async_pace, now)
        self._check_herald()
        self._check_loop()

    def _check_waiting(self, waiting: Waiting, pace: Pace, now: float) -> None:
        oldest = waiting.oldest()
        if oldest is not None and now - oldest.taken > STALE_SECONDS:
            pace.stalled()
            self._hand_back(waiting.take_back())

    def _time_out(self, run: Run) -> None:
        run.abandoned = True
        place = (self._loop if run.is_async else self._plain).place(run)
        if run.is_async:
            self._loop.stop(run)
            self._abandoned.add(run)
        elif not self._plain.replace(run):
            self._abandoned.add(run)
        if run.lost:
            self._close_run(run)
        elif isinstance(run.task, Task) and run.task.backoff is not None:
            self._herald.submit(partial(self._judge_overdue, run, place))  # the function's own backoff is user code
        else:
            stacks.beside(partial(self._judge_overdue, run, place))

    def _judge_overdue(self, run: Run, place: TracebackType | None) -> None:
        self._outbox.append((run, execution.time_out(run, place), True))
        self._ring()

    def _check_herald(self) -> None:
        if self._herald.is_full and not self._told_full:
            events.RECEIVERS_SLOW.murmur("", count=self._herald.FULL)
        self._told_full = self._herald.is_full

    def _check_loop(self) -> None:
        blocked = self._loop.blocked_by()
        if blocked is None:
            return
        run, seconds = blocked
        self.is_stuck = run.abandoned
        if run not in self._told_blocked:
            self._told_blocked.add(run)
            named = {"function": run.claim.function, "task_id": run.claim.id, "queue": run.claim.queue}
            events.LOOP_BLOCKED.murmur(run.claim.function, duration=seconds, **named)

    def _hand_back(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._conclude(run, HandedBack())

    # ------------------------------------------------------------------------------------------------ stopping

    def suspend(self) -> None:
        """The database is away: start nothing more, and tell running functions that their leases are at risk."""
        self._parked += self._take_back()
        for run in self._runs:
            run.at_risk = True

    def resume(self) -> None:
        """The database is back, and leases were renewed."""
        parked, self._parked = self._parked, []
        for run in parked:
            run.taken = monotonic()
            self._submit(run)

    def drain(self) -> None:
        """Hand back what has not started, and tell running functions that the worker stops."""
        parked, self._parked = self._parked, []
        self._hand_back([*parked, *self._take_back()])
        for run in self._open:
            run.stopping = True

    def release(self) -> None:
        """Hand back everything; functions that still run are interrupted, and their late outcomes are not wanted."""
        self.drain()
        for run in list(self._open):
            run.abandoned = True  # said before `started` is looked at; see `executors._may_start`
            if run.lost:
                self._close_run(run)
            else:
                self._conclude(run, HandedBack() if run.started is None else execution.interrupt(run))
            self._stop_function(run)
            self._plain.stop(run)

    def tell(self, *calls: Callable[[], Any]) -> None:
        """Announce something; see `news.py`."""
        for call in calls:
            self._herald.submit(call)

    def is_heard(self) -> bool:
        """Does anybody carry out what is told?"""
        return self._herald.lives

    def close(self) -> None:
        """Let the executors' threads end, those that can."""
        self._plain.close()
        self._loop.close()
        self._herald.close(timeout=2.0)
