"""OpenTelemetry: add `"django_dhara.contrib.otel"` to INSTALLED_APPS. Needs opentelemetry-api:
`pip install django-dhara[otel]`."""
