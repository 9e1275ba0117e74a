"""What threads and coroutines do right now: as text for people, and as the traceback of a run that is overdue.

Source files are read for it, so it is done beside the control loop, on a thread for each question. Frames are walked
while they run: a line may be one behind. No value of a variable is read.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from django_dhara.payload import clean_text

#: Frames of one stack, the innermost, and bytes of its text.
FRAMES, MOST_BYTES = 60, 20_000
#: The module that calls functions.
_CALLER = "django_dhara.execution"

#: Takes an answer: what stands in `Command.answer`.
Tell = Callable[[Any], None]

#: Why there is no stack to show.
ELSEWHERE, WAITS, ENDED, SILENT = (
    {"problem": problem} for problem in ("not running here", "not started", "ended", "silent")
)


def ask(tell: Tell, look: Callable[[], Any]) -> None:
    """Call `look` on a thread of its own, and `tell` what it has seen."""
    beside(lambda: tell(look()))


def beside(call: Callable[[], Any]) -> None:
    """Call it on a thread of its own; here, if there is none to be had."""
    try:
        threading.Thread(target=call, name="dhara-stack", daemon=True).start()
    except RuntimeError:
        call()


#: A frame and its line.
Frames = list[tuple[FrameType, int]]


def of_all() -> dict[str, str]:
    """What every thread of this process does, by the thread's name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        clean_text(f"{names.get(ident, 'thread')} {ident}", max_bytes=200): text(_inwards(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001
    }


def of_thread(ident: int | None) -> Frames:
    """What the run on a thread of this process does, from where its function is called; empty if there is no such
    thread."""
    frame = sys._current_frames().get(ident or 0)  # noqa: SLF001
    return _from_call(_inwards(frame)) if frame else []


def of_coroutine(coroutine: Any) -> Frames:
    """Where a coroutine that is suspended waits: its `await`, and those inside that."""
    return _from_call([*_awaiting(coroutine)][-FRAMES:])


def as_traceback(frames: Frames) -> TracebackType | None:
    """As if an exception had been raised there."""
    found = None
    for frame, line in reversed(frames):
        found = TracebackType(found, frame, frame.f_lasti, line)
    return found


def _from_call(frames: Frames) -> Frames:
    """Without what is outside of the call of a function: threads and loops, which are the same for every run."""
    modules = [frame.f_globals.get("__name__") for frame, _ in frames]
    return frames[modules.index(_CALLER) :] if _CALLER in modules else frames


def _inwards(frame: FrameType) -> Frames:
    """The frames of a stack, outermost first."""
    found: Frames = []
    each: FrameType | None = frame
    while each is not None and len(found) < FRAMES:
        found.append((each, each.f_lineno or each.f_code.co_firstlineno))
        each = each.f_back
    return found[::-1]


def _awaiting(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of what it awaits, outermost first, as far as Python shows them."""
    inner = coroutine
    while inner is not None:
        for prefix, awaited in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(inner, f"{prefix}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno or frame.f_code.co_firstlineno
                inner = getattr(inner, awaited)
                break
        else:
            return


def text(frames: Frames) -> str:
    """A stack for people, without the values of variables."""
    try:
        lines = traceback.StackSummary.extract(iter(frames)).format()
    except Exception as problem:  # noqa: BLE001 - a file that is no text, a frame that is just going
        lines = [f"  the stack could not be written down: {type(problem).__name__}\n"]
    return clean_text("".join(lines)[-MOST_BYTES // 2 :], max_bytes=MOST_BYTES)
