"""W9: tasks are posted to the HTTP API, at an even rate, over connections that stay open."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from benchmarks.peers.shared import harness
from django_dhara import tokens

_PATH = "/dhara/api/v1/tasks"
#: Clients that post at once, and threads of the site that answer them.
CLIENTS, PROCESSES, THREADS = 16, 2, 8
_START_SECONDS = 20


def serve(port: str) -> None:
    """Become gunicorn, as many deployments have it: a few processes with a few threads each."""
    flags = ["--workers", str(PROCESSES), "--threads", str(THREADS), "--log-level", "warning"]
    words = [
        sys.executable,
        "-m",
        "gunicorn",
        "benchmarks.ours.site:application",
        "--bind",
        f"127.0.0.1:{port}",
        *flags,
    ]
    os.execv(sys.executable, words)


def post(count: str, rate: str, port: str) -> None:
    """Post COUNT calls of `sleep`, RATE a second; the seconds of each call go into bench_call.

    Raises:
        RuntimeError: a call was not answered with 201.
    """
    _, secret = tokens.create("benchmark", ["enqueue"])
    _await_site(int(port))
    calls = _Calls(int(count), float(rate))
    clients = [threading.Thread(target=_client, args=[calls, int(port), secret]) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if calls.wrong:
        raise RuntimeError(f"{len(calls.wrong)} calls failed, the first with {calls.wrong[0]}")
    harness.save("bench_call (seconds)", calls.seconds)


def _await_site(port: int) -> None:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends:
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", _PATH)
            connection.getresponse().read()
            return
        time.sleep(0.05)
    raise RuntimeError("the site does not answer; is gunicorn installed? (`uv pip install --group bench`)")


class _Calls:
    """The calls that are left, each at its time."""

    def __init__(self, count: int, rate: float) -> None:
        self._numbers = iter(range(count))
        self._began, self._rate = time.monotonic(), rate
        self._lock = threading.Lock()
        self.seconds: list[tuple[float]] = []
        self.wrong: list[object] = []

    def __iter__(self) -> Iterator[int]:
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, self._began + number / self._rate - time.monotonic()))
            yield number


def _client(calls: _Calls, port: int, secret: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    for number in calls:
        body = json.dumps({"type": "benchmarks.ours.tasks.sleep", "payload": {"i": number}})
        began = time.perf_counter()
        try:
            connection.request("POST", _PATH, body, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            calls.wrong.append(error)
            connection.close()
            continue
        calls.seconds.append((time.perf_counter() - began,))
        if answer.status != 201:
            calls.wrong.append(answer.status)
