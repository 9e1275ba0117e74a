from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_dhara import project, tracing


class OtelConfig(AppConfig):
    name = "django_dhara.contrib.otel"
    label = "dhara_otel"
    verbose_name = "Dhara: OpenTelemetry"

    def ready(self) -> None:
        if find_spec("opentelemetry") is None:
            raise ImproperlyConfigured(f"{self.name} needs opentelemetry-api: pip install 'django-dhara[otel]'.")
        from django_dhara.contrib.otel.tracer import OtelTracer

        tracing.use(OtelTracer(runs_are_children=project.usable().trace_runs_as_children))
