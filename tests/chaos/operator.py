"""A process that cancels and revives tasks, and writes down what it was told: `python -m tests.chaos.operator`."""

import random
import signal
from time import monotonic, sleep

import django
from django.db import connection

from tests.chaos.history import Ledger
from tests.chaos.plan import Plan
from tests.chaos.profiles import PROFILES


class Operator:
    def __init__(self, plan, ledger):
        self._draw = random.Random(f"{plan.seed} operator")
        self._pause = 1 / PROFILES[plan.profile].actions
        self._ledger = ledger
        self._stops = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_):
        self._stops = True

    def serve(self):
        while not self._stops:
            [action] = self._draw.choices([self._cancel_running, self._cancel_pending, self._revive], [4, 2, 1])
            try:
                action()
            except Exception as error:
                self._ledger.write("operator failed", error=type(error).__name__)
                self._close()
            sleep(self._pause)

    def _close(self):
        try:
            connection.close()
        except Exception:
            connection.connection = None

    def _some(self, **where):
        from django_dhara.models import Task

        return list(Task.objects.filter(**where).order_by("?").values_list("id", flat=True)[:1])

    def _cancel_running(self):
        for id_ in self._some(state="RUNNING"):
            self._ask("cancel", id_)

    def _cancel_pending(self):
        for id_ in self._some(state="PENDING"):
            self._ask("cancel", id_)

    def _revive(self):
        """Twice: a double click changes nothing more."""
        for id_ in self._some(state__in=["DEAD", "CANCELED"]):
            self._ask("revive", id_)
            self._ask("revive", id_)

    def _ask(self, verb, id_):
        from django_dhara import operations

        began = monotonic()
        try:
            answer = getattr(operations, verb)(id_)
        except Exception:
            self._ledger.write(verb, id=str(id_), began=began, answer="unknown")
            raise
        self._ledger.write(verb, id=str(id_), began=began, answer=answer)


def main():
    plan = Plan.here()
    django.setup()
    Operator(plan, Ledger(plan.folder, "operator")).serve()


if __name__ == "__main__":
    main()
