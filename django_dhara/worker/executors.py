"""Where user code runs: threads for plain functions, one event loop for `async def`, and one thread for signals.

An executor takes prepared or unprepared runs and hands each back, ended, to `done`, which the control loop gave it. It
knows no database of the queue. Every run has a fresh context, so that no language, time zone or context variable of
one run is seen by the next.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_dhara import events, execution, hygiene
from django_dhara.execution import Run
from django_dhara.states import HandedBack, Outcome
from django_dhara.worker import stacks

#: After so many idle seconds a thread closes its connections, even persistent ones.
IDLE_SECONDS = 60.0
#: An event loop that has not turned for so many seconds is blocked by a function that does not await.
BLOCKED_SECONDS = 1.0
#: So many threads run brief functions; another one joins when none was taken up for so many seconds.
BRIEF_THREADS, PATIENCE_SECONDS = 2, 0.002

Done = Callable[[Run], None]
#: Stops the worker with exit code 1, for the reason given.
Fail = Callable[[str], None]


def start_thread(name: str, serve: Callable[[], None], fail: Fail) -> threading.Thread:
    """A thread that the worker needs: when it dies the worker stops, which would be deaf in one ear without it."""

    def run() -> None:
        try:
            serve()
        except BaseException:  # noqa: BLE001  # whatever it was, the worker must not live on without it
            events.THREAD_DIED.tell(thread=name, exc_info=True)
            fail(f"its thread {name} has died")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Waiting:
    """Runs that wait here until there is room for them."""

    #: What functions run on, for people.
    ground = "thread"

    def __init__(self) -> None:
        self._waiting: deque[Run] = deque()

    def take_back(self) -> list[Run]:
        """The runs that nobody has started yet; they are the caller's again."""
        taken = []
        while (run := self._next()) is not None:
            taken.append(run)
        return taken

    def oldest(self) -> Run | None:
        """The run that has waited longest."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def show_stack(self, run: Run, tell: stacks.Tell) -> None:
        """Tell what the function of this run does now, from another thread and maybe later."""
        stacks.ask(tell, lambda: self._told(run))

    def place(self, run: Run) -> TracebackType | None:
        """Where the function of this run is now, if it runs."""
        found = stacks.as_traceback(self._stack(run))
        return None if _is_over(run) else found

    def _told(self, run: Run) -> dict[str, str]:
        stack = stacks.text(self._stack(run))
        return stacks.ENDED if _is_over(run) or not stack else {"where": self.ground, "stack": stack}

    def _stack(self, run: Run) -> stacks.Frames:
        return stacks.of_thread(run.thread)

    def _next(self) -> Run | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None


def _is_over(run: Run) -> bool:
    """Asked after its thread was looked at, which may be another run's by then."""
    return run.outcome is not None


class Crew(Waiting):
    """What runs plain functions, a fixed number at once: tasks wait here until somebody of the crew takes one.

    Args:
        size: how many run at once.
        done: called with each ended run, from the thread that had it.
        pass_on: called with a run whose function turned out to be `async def`.
        fail: called when one of its threads has died.
    """

    def __init__(self, size: int, done: Done, pass_on: Done, fail: Fail) -> None:
        super().__init__()
        self.size = size
        self._done, self._pass_on, self._fail = done, pass_on, fail
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        #: The functions of late took less than a millisecond; the control loop says so.
        self.are_brief = False

    @property
    def is_ready(self) -> bool:
        """Can anything run yet?"""
        return True

    @property
    def children(self) -> list[int]:
        """The ids of its processes, if it has any."""
        return []

    def submit(self, run: Run) -> None:
        self._waiting.append(run)
        self._tickets.put(True)  # it may be taken back before its ticket is drawn

    def replace(self, run: Run) -> bool:
        """Somebody else takes the place of the one that `run`, which is overdue, keeps busy. Is the function ended?"""
        raise NotImplementedError

    def stop(self, run: Run) -> None:
        """This run is given up because the worker stops; end the function if that is possible."""

    def close(self) -> None:
        """Let the idle ones end; busy ones end after their run."""
        for _ in range(self.size):
            self._tickets.put(False)

    def _take(self, run: Run, call: Callable[[Run], Outcome | None]) -> None:
        """One run from its first look to its end; `call` calls the function."""
        run.picked, run.thread = monotonic(), threading.get_ident()
        run.outcome = None if _is_wanted(run) else HandedBack()
        run.outcome = run.outcome or execution.prepare(run)
        if run.outcome is None and run.is_async:
            return self._pass_on(run)
        if run.outcome is None:
            run.outcome = call(run) if _may_start(run) else HandedBack()
        return self._done(run)


class Threads(Crew):
    """Plain functions, each on a thread of its own out of a fixed number.

    Threads that wait for the interpreter's lock hold up one another, and the control loop most of all: twenty of them
    run short functions at half the speed of three. So they are called one by one, each by the one before it; and while
    functions are brief, more than a few take part only when nothing has been taken up for a moment.
    """

    def __init__(self, size: int, done: Done, pass_on: Done, fail: Fail) -> None:
        super().__init__(size, done, pass_on, fail)
        self._context = contextvars.copy_context()
        #: Somebody was called and has not come yet.
        self._called = False
        self._active: set[int] = set()
        self._taken = 0
        for _ in range(size):
            self._start_thread()

    def submit(self, run: Run) -> None:
        self._waiting.append(run)
        self._call_one()

    def replace(self, run: Run) -> bool:
        """Another thread takes the place; the function itself cannot be stopped."""
        self._start_thread()
        return False

    def _start_thread(self) -> None:
        start_thread("dhara-run", self._serve, self._fail)

    def _call_one(self) -> None:
        if not self._called:
            self._called = True
            self._tickets.put(True)

    def _serve(self) -> None:
        goes_on = True
        while goes_on and self._next_ticket():
            self._called = False  # before it looks for a run: what is submitted from now on calls again
            self._wait_while_others_suffice()
            self._active.add(threading.get_ident())
            goes_on = self._work()
            self._active.discard(threading.get_ident())
        hygiene.close_all()

    def _work(self) -> bool:
        """Run what waits, one after the other; False when this thread's place was given to another one."""
        while (run := self._next()) is not None:
            self._taken += 1
            if self._waiting:
                self._call_one()
            self._context.copy().run(self._take, run, _call_here)
            if run.abandoned:
                return False
            if self.are_brief and len(self._active) > BRIEF_THREADS:
                self._call_one()
                break
        return True

    def _wait_while_others_suffice(self) -> None:
        seen = -1
        while self._waiting and self.are_brief and len(self._active) >= BRIEF_THREADS and seen != self._taken:
            seen = self._taken
            sleep(PATIENCE_SECONDS)

    def _next_ticket(self) -> bool:
        try:
            return self._tickets.get(timeout=IDLE_SECONDS)
        except Empty:
            hygiene.close_all()
            return self._tickets.get()


def _call_here(run: Run) -> Outcome:
    hygiene.fresh_numbers()
    hygiene.before_run()
    outcome = execution.execute(run)
    run.ended = monotonic()
    hygiene.after_run(run.claim.function)
    return outcome


def _is_wanted(run: Run) -> bool:
    """False for a task that waited so long that it may be another's by now, or that nobody wants any more."""
    return monotonic() <= run.lease_ends and not run.canceled and not run.abandoned


def _may_start(run: Run) -> bool:
    """Is it still wanted, after the import of its function? If so, it has started.

    The start is said before the question is asked; the control loop, which gives runs up while functions are imported,
    says that before it looks for the start. So one of them sees the other, and no function starts after its task was
    handed back.
    """
    run.started = monotonic()
    if not _is_wanted(run):
        run.started = None
    return run.started is not None


class EventLoop(Waiting):
    """`async def` functions, all on one event loop in a thread of its own, started with the first of them.

    Args:
        size: how many run at once.
        done: called with each ended run, from that thread.
        fail: called when the thread has died.
    """

    ground = "event loop"

    def __init__(self, size: int, done: Done, fail: Fail) -> None:
        super().__init__()
        self._size, self._done, self._fail = size, done, fail
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._turned = monotonic()
        self._starting = threading.Lock()
        self._closed = False

    def submit(self, run: Run) -> None:
        self._waiting.append(run)
        self._running_loop().call_soon_threadsafe(self._fill)

    def stop(self, run: Run) -> None:
        """Raise CancelledError in the function."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, run)

    def _stack(self, run: Run) -> stacks.Frames:
        """Where the coroutine waits, or what it does while it keeps the loop from turning."""
        task = self._tasks.get(run)
        if task is None or self._loop is None:
            return []
        if task is asyncio.current_task(self._loop):
            return stacks.of_thread(self._thread)
        return stacks.of_coroutine(task.get_coro())

    def blocked_by(self) -> tuple[Run, float] | None:
        """The run that keeps the loop from turning, and for how many seconds."""
        late = monotonic() - self._turned - BLOCKED_SECONDS / 2
        if self._loop is None or not self._tasks or late < BLOCKED_SECONDS:
            return None
        current = asyncio.current_task(self._loop)
        for run, task in list(self._tasks.items()):
            if task is current:
                return run, late
        return None

    def close(self) -> None:
        self._closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = start_thread("dhara-async", self._serve, self._fail).ident
            return self._loop

    def _serve(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._context = contextvars.copy_context()
        self._turn()
        while not self._closed:
            try:
                self._loop.run_forever()
            except Exception:
                raise  # not of a function's: its selector is gone, or it was closed, and will not turn again
            except BaseException:  # noqa: BLE001
                # A function's own asyncio task that ends by SystemExit or KeyboardInterrupt takes the loop with it.
                events.LOOP_STOPPED.murmur("", exc_info=True)
        self._loop.close()  # its selector and its sockets would outlive a worker that runs in a test

    def _turn(self) -> None:
        assert self._loop is not None
        self._turned = monotonic()
        self._loop.call_later(BLOCKED_SECONDS / 2, self._turn)

    def _fill(self) -> None:
        while len(self._tasks) < self._size and (run := self._next()) is not None:
            self._start(run)

    def _start(self, run: Run) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run(run), context=self._context.copy())
        self._tasks[run] = task
        task.add_done_callback(lambda task: self._ended(run, task))

    def _cancel(self, run: Run) -> None:
        if run in self._tasks:
            self._tasks[run].cancel()

    async def _run(self, run: Run) -> None:
        # A thread of its own for what the function does through sync_to_async, the ORM above all: in the one shared
        # thread, which asgiref would take, one slow query would hold up every other function.
        run.picked = monotonic()
        run.outcome = execution.prepare(run) if run.task is None else None
        if run.outcome is None and not _may_start(run):
            run.outcome = HandedBack()
        if run.outcome is not None:
            return
        hygiene.fresh_numbers()
        async with ThreadSensitiveContext() as context:
            run.outcome = await execution.aexecute(run)
            run.ended = monotonic()
            if context in SyncToAsync.context_to_thread_executor:
                await self._clean_up(run)

    def _ended(self, run: Run, task: asyncio.Task[None]) -> None:
        del self._tasks[run]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if run.outcome is None:  # it was canceled before its first step
            run.outcome = execution.judge(run, error or asyncio.CancelledError())
        self._done(run)
        self._fill()

    async def _clean_up(self, run: Run) -> None:
        """The thread ends with the run, and its connections with it."""
        try:
            await sync_to_async(hygiene.close_all, thread_sensitive=True)()
        except BaseException:  # noqa: BLE001  # a second cancel, or it does not close: the run has ended all the same
            function = run.claim.function
            events.CONNECTIONS_STUCK.murmur(function, function=function, exc_info=True)


class Herald:
    """One thread that calls the receivers of signals, and writes the control loop's log: handlers and receivers are the
    project's, and must not hold up the control loop."""

    #: With more waiting than this the worker claims nothing new: the receivers are slower than the functions.
    FULL = 10_000

    def __init__(self, fail: Fail) -> None:
        self._waiting: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._context = contextvars.copy_context()
        self._thread = start_thread("dhara-signals", self._serve, fail)

    def submit(self, call: Callable[[], Any]) -> None:
        self._waiting.put(call)

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    @property
    def is_full(self) -> bool:
        return self.waiting > self.FULL

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def close(self, timeout: float) -> None:
        """Wait until all is told, at most `timeout` seconds."""
        self._waiting.put(None)
        self._thread.join(timeout)

    def _serve(self) -> None:
        while (call := self._waiting.get()) is not None:
            self._context.copy().run(self._call, call)
            if self._waiting.empty():
                self._call(lambda: hygiene.after_run("a signal receiver"))
        hygiene.close_all()

    def _call(self, call: Callable[[], Any]) -> None:
        try:
            hygiene.before_run()
            call()
        except BaseException:  # noqa: BLE001
            with suppress(BaseException):  # it may be a handler of the log that is broken
                events.ANNOUNCEMENT_FAILED.murmur("", exc_info=True)
