"""Spans, by the real SDK: an enqueue, and each run linked to it."""

import json

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_dhara import enqueue_many, tracing
from django_dhara.compat import task_backends
from django_dhara.contrib.otel.apps import OtelConfig
from django_dhara.contrib.otel.tracer import OtelTracer
from django_dhara.errors import PayloadError
from django_dhara.models import Task
from django_dhara.payload import TRACE_KEY
from django_dhara.tasks import task
from django_dhara.testing import run_all, run_one
from tests.app import tasks

pytestmark = pytest.mark.fast

SEEN = []


@task(takes_context=True)
def look_at_metadata(context):
    SEEN.append(context.metadata)


@task
def raise_what_cannot_be_told():
    class Awkward(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    raise Awkward


@pytest.fixture(params=[False], ids=["linked"])
def spans(request):
    """What has ended so far, as a function."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(OtelTracer(runs_are_children=request.param, provider=provider))
    SEEN.clear()
    exporter.tracer = provider.get_tracer("test")
    yield exporter
    tracing.use(None)


def ended(spans, kind):
    return [span for span in spans.get_finished_spans() if span.kind is kind]


def produced(spans):
    return ended(spans, SpanKind.PRODUCER)


def consumed(spans):
    return ended(spans, SpanKind.CONSUMER)


def test_an_enqueue_is_a_producer_and_the_run_a_consumer_linked_to_it(db, spans):
    result = tasks.add.using(queue_name="email").enqueue(1)
    run_all()
    [enqueue], [run] = produced(spans), consumed(spans)
    assert (enqueue.name, run.name) == ("enqueue email", "run email")
    assert dict(enqueue.attributes) == {
        "messaging.system": "django_dhara",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "email",
        "messaging.message.id": result.id,
        "messaging.django_dhara.backend": "default",
        "messaging.django_dhara.function": "tests.app.tasks.add",
    }
    assert run.attributes["messaging.operation.type"] == "process"
    assert run.attributes["messaging.message.id"] == result.id
    assert run.attributes["messaging.django_dhara.attempt"] == 1
    assert run.attributes["messaging.django_dhara.outcome"] == "complete"
    assert run.status.status_code is StatusCode.UNSET
    [link] = run.links
    assert link.context.span_id == enqueue.context.span_id
    assert link.context.trace_id == enqueue.context.trace_id != run.context.trace_id
    assert run.parent is None


@pytest.mark.parametrize("spans", [True], ids=["children"], indirect=True)
def test_runs_may_be_children_of_their_enqueue(db, spans):
    tasks.add.enqueue(1)
    run_all()
    [enqueue], [run] = produced(spans), consumed(spans)
    assert run.parent.span_id == run.links[0].context.span_id == enqueue.context.span_id
    assert run.context.trace_id == enqueue.context.trace_id


def test_an_enqueue_belongs_to_the_trace_of_the_request(db, spans):
    with spans.tracer.start_as_current_span("GET /") as request:
        tasks.add.enqueue(1)
    assert produced(spans)[0].parent.span_id == request.context.span_id


@pytest.mark.parametrize("function", [tasks.enqueue_another, tasks.aenqueue_another], ids=["def", "async def"])
def test_what_a_function_does_is_a_child_of_its_run(transactional_db, spans, function):
    function.enqueue("name")
    run_all()
    outer = next(span for span in consumed(spans) if span.attributes["messaging.django_dhara.function"] != COUNT)
    inner = next(span for span in produced(spans) if span.attributes["messaging.django_dhara.function"] == COUNT)
    last = next(span for span in consumed(spans) if span.attributes["messaging.django_dhara.function"] == COUNT)
    assert inner.parent.span_id == outer.context.span_id
    assert last.links[0].context.span_id == inner.context.span_id


COUNT = "tests.app.tasks.count"


def test_every_attempt_is_a_run_with_its_error(db, spans):
    tasks.fail.using(max_attempts=2).enqueue()
    run_all(include_scheduled=True)
    first, second = consumed(spans)
    assert [span.attributes["messaging.django_dhara.attempt"] for span in (first, second)] == [1, 2]
    assert first.links[0].context.span_id == second.links[0].context.span_id == produced(spans)[0].context.span_id
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "builtins.ValueError"
        assert len(span.attributes["messaging.django_dhara.error.fingerprint"]) == 16
        [event] = span.events
        assert event.attributes["exception.message"] == "the reason"
        assert "tests/app/tasks.py" in event.attributes["exception.stacktrace"]


def test_an_exception_that_cannot_be_told_is_recorded_by_its_type(db, spans):
    raise_what_cannot_be_told.using(max_attempts=1).enqueue()
    run_all()
    [run] = consumed(spans)
    assert run.attributes["error.type"].endswith("Awkward")
    assert len(run.events) == 1


def test_a_bulk_is_one_span_and_every_task_is_linked_to_it(db, spans):
    enqueue_many([tasks.add.using(queue_name=name).bind(1) for name in ("a", "b", "a")])
    run_all()
    [enqueue] = produced(spans)
    assert enqueue.name == "enqueue"
    assert enqueue.attributes["messaging.batch.message_count"] == 3
    assert "messaging.destination.name" not in enqueue.attributes
    assert "messaging.message.id" not in enqueue.attributes
    assert {run.links[0].context.span_id for run in consumed(spans)} == {enqueue.context.span_id}


def test_an_enqueue_that_fails_is_an_error(db, spans):
    tasks.add.using(idempotency_key="k").enqueue(1)
    with pytest.raises(Exception, match="belongs to task"):
        tasks.add.using(idempotency_key="k").enqueue(2)
    failed = produced(spans)[1]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "django_dhara.errors.IdempotencyConflict"
    assert len(failed.events) == 1


# ------------------------------------------------------------------------------------------------- what travels with it


def test_the_context_travels_beside_the_callers_own_metadata(db, spans):
    result = look_at_metadata.using(metadata={"tenant": "a", "n": [1]}).enqueue()
    plain = look_at_metadata.enqueue()
    stored = Task.objects.get(id=result.id).metadata
    assert stored.keys() == {"tenant", "n", TRACE_KEY}
    assert stored[TRACE_KEY]["traceparent"].split("-")[1] == f"{produced(spans)[0].context.trace_id:032x}"
    backend = task_backends["default"]
    assert backend.get_result(result.id).task.metadata == {"tenant": "a", "n": [1]}
    assert backend.get_result(plain.id).task.metadata is None
    run_all()
    assert SEEN == [{"tenant": "a", "n": [1]}, {}]


def test_callers_cannot_use_its_name(db):
    with pytest.raises(PayloadError, match=r"dhara\.trace"):
        tasks.add.using(metadata={TRACE_KEY: {}}).enqueue(1)


def test_it_plays_no_part_in_what_a_key_stands_for(db, spans):
    first = tasks.add.using(idempotency_key="k").enqueue(1)
    second = tasks.add.using(idempotency_key="k").enqueue(1)
    assert second.id == first.id
    assert second.duplicate


@pytest.mark.parametrize("metadata", [None, "{}", '{"a": "}"}', '{"a": {"b": "{"}}'])
def test_metadata_stay_json(metadata):
    told = json.loads(tracing.with_carrier(metadata, {"traceparent": '00-"x'}))
    assert told.pop(TRACE_KEY) == {"traceparent": '00-"x'}
    assert told == json.loads(metadata or "{}")


@pytest.mark.parametrize("carried", ["x", {"traceparent": 7}, {"traceparent": "junk"}], ids=str)
def test_what_somebody_else_wrote_there_does_no_harm(db, spans, carried):
    result = tasks.add.enqueue(1)
    Task.objects.filter(id=result.id).update(metadata={TRACE_KEY: carried})
    run_one()
    [run] = consumed(spans)
    assert not run.links
    assert Task.objects.get(id=result.id).state == "COMPLETED"


# ----------------------------------------------------------------------------------------------------------- not there


def test_without_a_tracer_nothing_is_stored(db):
    result = tasks.add.enqueue(1)
    assert Task.objects.get(id=result.id).metadata is None


def test_an_atomic_enqueue_that_rolls_back_leaves_a_span_and_no_task(transactional_db, spans):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.add.enqueue(1)
        raise ZeroDivisionError
    assert len(produced(spans)) == 1
    assert not Task.objects.exists()


def test_without_opentelemetry_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("django_dhara.contrib.otel.apps.find_spec", lambda name: None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-dhara\[otel\]'"):
        OtelConfig.ready(type("App", (), {"name": OtelConfig.name})())
