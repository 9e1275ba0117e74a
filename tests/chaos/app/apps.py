from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos.app"
    label = "chaos"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self):
        from tests.chaos.app import plants, recording

        plants.plant()
        recording.start()
