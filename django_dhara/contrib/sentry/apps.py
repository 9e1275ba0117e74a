from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class SentryConfig(AppConfig):
    name = "django_dhara.contrib.sentry"
    label = "dhara_sentry"
    verbose_name = "Dhara: Sentry"

    def ready(self) -> None:
        if find_spec("sentry_sdk") is None:
            raise ImproperlyConfigured(f"{self.name} needs sentry-sdk: pip install 'django-dhara[sentry]'.")
        from django_dhara.contrib.sentry import listener

        listener.install()
