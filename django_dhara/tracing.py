"""Where a tracer hooks in: around an enqueue, and around a run. Unless an app such as `contrib.otel` sets one there is
none, and one look at a variable is all that it costs.

What has to reach the run travels in the task's metadata, under a key that callers cannot use. It is no part of the
payload, so it plays no part in what an idempotency key stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from django_dhara.payload import TRACE_KEY
from django_dhara.states import Outcome

if TYPE_CHECKING:
    from django_dhara.execution import Run

#: What travels: headers such as `traceparent`.
Carrier = Mapping[str, str]


class Enqueuing(Protocol):
    """The tasks that an enqueue is about to insert, as far as a tracer needs to know them."""

    id: str
    function: str
    metadata: str | None

    @property
    def queue(self) -> str: ...


class Tracer(Protocol):
    """What follows tasks through the system."""

    def enqueuing(self, backend: str, rows: Sequence[Enqueuing]) -> AbstractContextManager[Carrier]:
        """Lasts as long as the enqueue; gives what is to travel with each of the tasks."""

    def running(self, run: Run) -> AbstractContextManager[Callable[[Outcome], None]]:
        """Lasts as long as the run, on the thread or in the asyncio task that calls the function; it is told the
        outcome."""


#: At most one, set while apps load.
tracer: Tracer | None = None


def use(new: Tracer | None) -> None:
    """Let this one follow all tasks from now on; None: nobody does."""
    global tracer
    tracer = new


def with_carrier(metadata: str | None, carrier: Carrier) -> str | None:
    """The JSON text of a task's metadata with what is to travel in it."""
    if not carrier:
        return metadata
    trace = f"{json.dumps(TRACE_KEY)}: {json.dumps(dict(carrier))}"
    rest = (metadata or "{}").removeprefix("{").removesuffix("}")
    return f"{{{trace}{', ' if rest.strip() else ''}{rest}}}"


def carried(metadata: str | None) -> dict[str, str]:
    """What has travelled with a task; nothing if it was enqueued without a tracer, or somebody wrote something else."""
    found: Any = json.loads(metadata).get(TRACE_KEY) if metadata else None
    if not isinstance(found, dict):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, str)}


def without_carrier(metadata: Any) -> Any:
    """A task's metadata as its caller gave them."""
    if not isinstance(metadata, dict) or TRACE_KEY not in metadata:
        return metadata
    return {name: value for name, value in metadata.items() if name != TRACE_KEY} or None
