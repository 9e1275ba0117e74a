"""The Django app: label `dhara`, tables `dhara_*`."""

from django.apps import AppConfig


class DharaConfig(AppConfig):
    name = "django_dhara"
    label = "dhara"
    verbose_name = "Dhara task queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_dhara import checks, log

        checks.install()
        log.install()
