"""The port of a worker: `/metrics`, and `/livez` for probes that speak HTTP. On threads of its own; the control loop is
only looked at.

It is open to whoever reaches the port, so it listens on this machine only unless it is told otherwise.
"""

from __future__ import annotations

import json
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from django_dhara.metrics.families import ProcessFamilies, WorkerFamilies
from django_dhara.worker import Worker

#: A control loop that has not turned for so long hangs: no statement of its own may take as long.
HUNG_SECONDS = 30.0
#: For a client to say what it wants.
REQUEST_SECONDS = 10.0


def registry_of(worker: Worker) -> CollectorRegistry:
    """All that there is to tell of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ProcessFamilies())
    registry.register(WorkerFamilies(worker))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class Server(ThreadingHTTPServer):
    """Answers on a thread for each request, beside the worker.

    Args:
        port: 0: any that is free.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, worker: Worker, host: str, port: int) -> None:
        self.worker, self.registry = worker, registry_of(worker)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, name="dhara-metrics", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of ours to tell."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = REQUEST_SECONDS
    server_version, sys_version = "django_dhara", ""

    def do_GET(self) -> None:
        where = self.path.partition("?")[0]
        if where == "/metrics":
            encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encoder(self.server.registry))
        elif where == "/livez":
            self._answer_livez(self.server.worker.glance().silent_seconds)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There are /metrics and /livez.\n")

    def _answer_livez(self, silent: float) -> None:
        lives = silent < HUNG_SECONDS
        status = HTTPStatus.OK if lives else HTTPStatus.SERVICE_UNAVAILABLE
        told = {"status": "ok" if lives else "failed", "silent_seconds": round(silent, 3)}
        self._answer(status, "application/json", json.dumps(told).encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
        """A scrape is no news."""
