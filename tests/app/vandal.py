"""An app that breaks one part of a worker as soon as a file says so: BREAK names the file, and that names the part."""

import os
from pathlib import Path

from django.apps import AppConfig

#: Where each part passes by all the time, or with the next task.
PLACES = {
    "control loop": ("django_dhara.worker.hand", "Hand", "check"),
    "settling": ("django_dhara.worker.settling", "Settler", "settle"),
    "ears": ("django_dhara.worker.ears", "Ears", "heard"),
    "herald": ("django_dhara.worker.executors", "Herald", "_call"),
    "run thread": ("django_dhara.worker.executors", "Threads", "_work"),
    "event loop": ("asyncio.base_events", "BaseEventLoop", "_run_once"),
    "child's thread": ("django_dhara.worker.children", "Children", "_serve_one"),
    "child's ear": ("django_dhara.worker.child", "Child", "_take_in"),
}


class Broken(Exception):
    pass


def broken(function, part):
    def maybe(*args, **kwargs):
        path = Path(os.environ["BREAK"])
        if path.exists() and path.read_text() == part:
            raise Broken(part)
        return function(*args, **kwargs)

    return maybe


class Vandal(AppConfig):
    name = "tests.app"
    label = "app"

    def ready(self):
        from importlib import import_module

        for part, (module, class_, name) in PLACES.items():
            owner = getattr(import_module(module), class_)
            setattr(owner, name, broken(getattr(owner, name), part))
