"""The real SDKs of OpenTelemetry and Sentry, with ends that a test can read: lists here, files of other processes."""

import json
from pathlib import Path

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.transport import Transport


class Spans(SpanExporter):
    """Spans as JSON, a line each."""

    def __init__(self, path):
        self._path = Path(path)

    def export(self, spans):
        with self._path.open("a") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def trace_to(path):
    """The global provider of this process writes to a file."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Spans(path)))
    trace.set_tracer_provider(provider)


class Events(Transport):
    """Events, not sent anywhere: to a function, or as JSON to a file."""

    def __init__(self, options=None, *, tell=None):
        super().__init__(options)
        self._tell = tell

    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.type == "event":
                self._tell(item.payload.json)


def report_to(path=None, *, tell=None, **options):
    """Set up Sentry's client, with its own integrations, Django's and logging's too."""

    def write(event):
        with Path(path).open("a") as file:
            file.write(json.dumps(event, default=str) + "\n")

    options = {"dsn": "http://key@127.0.0.1/1", "transport": Events(tell=tell or write), **options}
    sentry_sdk.init(**options)


def lines(path):
    """What was written so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
