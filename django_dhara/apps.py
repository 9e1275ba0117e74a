"""The Django app: label `dhara`, tables `dhara_*`."""

import os
from importlib.util import find_spec

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DharaConfig(AppConfig):
    name = "django_dhara"
    label = "dhara"
    verbose_name = _("Dhara task queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_dhara import checks, log, meter, project

        checks.install()
        log.install()
        meter.limit_series(project.usable().metrics_max_series)
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR") and find_spec("prometheus_client"):
            from django_dhara.metrics import shared

            shared.install()
