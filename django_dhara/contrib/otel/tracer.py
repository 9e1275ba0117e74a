"""Spans by OpenTelemetry's semantic conventions for messaging, as of version 1.44 (where they are in development): an
enqueue is `enqueue {queue}`, kind PRODUCER, operation type `send`; a run is `run {queue}`, kind CONSUMER, type
`process`, linked to the enqueue.

A run is the root of a trace of its own, since it may begin days later, and again and again. With
`DHARA["TRACE_RUNS_AS_CHILDREN"]` it is also a child of the enqueue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from django_dhara import __version__, tracing
from django_dhara.execution import Run
from django_dhara.states import Completed, Discarded, Failed, Outcome, TimedOut
from django_dhara.tracing import Carrier, Enqueuing

SYSTEM = "django_dhara"
_OWN = f"messaging.{SYSTEM}"


class OtelTracer:
    """The tracer of `tracing.use`.

    Args:
        runs_are_children: of their enqueue's span, beside the link to it.
        provider: of tracers; None: the global one, whenever it is set.
    """

    def __init__(self, *, runs_are_children: bool = False, provider: trace.TracerProvider | None = None) -> None:
        self._runs_are_children = runs_are_children
        self._tracer = trace.get_tracer("django_dhara", __version__, provider)

    @contextmanager
    def enqueuing(self, backend: str, rows: Sequence[Enqueuing]) -> Iterator[Carrier]:
        """One span, for a bulk too: its context is what each task of it was created in."""
        queues, functions = {row.queue for row in rows}, {row.function for row in rows}
        attributes = _attributes("enqueue", "send", backend)
        if len(queues) == 1:
            attributes["messaging.destination.name"] = rows[0].queue
        if len(functions) == 1:
            attributes[f"{_OWN}.function"] = rows[0].function
        if len(rows) == 1:
            attributes["messaging.message.id"] = rows[0].id
        else:
            attributes["messaging.batch.message_count"] = len(rows)
        name = f"enqueue {rows[0].queue}" if len(queues) == 1 else "enqueue"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            try:
                yield _injected()
            except Exception as error:
                span.set_attribute("error.type", _type_of(error))
                raise  # the span's own exit records it

    @contextmanager
    def running(self, run: Run) -> Iterator[Callable[[Outcome], None]]:
        """A span of one run, current while the function runs."""
        claim = run.claim
        created = propagate.extract(tracing.carried(claim.metadata), context=Context())
        source = trace.get_current_span(created).get_span_context()
        attributes = _attributes("run", "process", run.alias) | {
            "messaging.destination.name": claim.queue,
            "messaging.message.id": str(claim.id),
            "messaging.client.id": str(run.worker),
            f"{_OWN}.function": claim.function,
            f"{_OWN}.attempt": claim.attempt,
        }
        with self._tracer.start_as_current_span(
            f"run {claim.queue}",
            context=created if self._runs_are_children else Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(source)] if source.is_valid else [],
        ) as span:
            yield lambda outcome: _tell(span, run, outcome)


def _attributes(operation: str, kind: str, backend: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        f"{_OWN}.backend": backend,
    }


def _injected() -> Carrier:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def _tell(span: Span, run: Run, outcome: Outcome) -> None:
    span.set_attribute(f"{_OWN}.outcome", outcome.verb)
    if isinstance(outcome, Completed):
        return
    match outcome:
        case Failed() | TimedOut() | Discarded():
            _tell_error(span, run, outcome.error.class_path, outcome.error.fingerprint)
        case _:
            return


def _tell_error(span: Span, run: Run, class_path: str, fingerprint: str) -> None:
    span.set_attribute("error.type", class_path)
    span.set_attribute(f"{_OWN}.error.fingerprint", fingerprint)
    span.set_status(Status(StatusCode.ERROR, class_path))
    if run.exception is not None:
        _record(span, run.exception)


def _record(span: Span, error: BaseException) -> None:
    """An exception of the user's, whose text may itself raise."""
    try:
        span.record_exception(error)
    except Exception:  # noqa: BLE001
        span.add_event("exception", {"exception.type": _type_of(error)})


def _type_of(error: Any) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"
