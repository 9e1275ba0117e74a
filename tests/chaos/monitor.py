"""A sample each second: sessions, memory of the workers, dead rows, what the notification queue holds."""

import threading
from contextlib import suppress
from time import time

import psycopg

_SAMPLE = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'dhara_task'),
       pg_notification_queue_usage(),
       (SELECT count(*) FROM dhara_task WHERE state = 'PENDING'),
       (SELECT count(*) FROM dhara_task WHERE state = 'RUNNING')
"""


class Monitor:
    def __init__(self, arena):
        self._arena = arena
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self):
        self._thread.start()

    def _serve(self):
        while not self._ends.wait(1.0):
            with suppress(psycopg.Error, AssertionError):
                [[sessions, dead, queue, pending, running]] = self._arena.server.ask(_SAMPLE)
                self._arena.ledger.write(
                    "sample", sessions=sessions, dead=dead, queue=queue, pending=pending, running=running,
                    megabytes=self._megabytes(), wall=time(),
                )  # fmt: skip

    def _megabytes(self):
        found = {}
        for slot in self._arena.fleet.workers:
            with suppress(OSError, IndexError):
                found[slot.pid] = round(slot.process.megabytes, 1)
        return found

    def end(self):
        self._ends.set()
        self._thread.join()
