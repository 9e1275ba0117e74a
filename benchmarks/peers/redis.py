"""A private Redis with an append-only file, for queues that need one: by its defaults it is flushed every second."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.environments import NotInstalled

_START_LIMIT_S = 10


@contextmanager
def redis() -> Iterator[str]:
    """Start a server on a free port of 127.0.0.1 in a folder of its own; yield its URL.

    Raises:
        NotInstalled: there is no redis-server on this machine.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise NotInstalled("no redis-server: apt-get install -y --no-install-recommends redis-server")
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--appendonly", "yes", "--save", ""]
        server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            _wait(server, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait()


def count(url: str, *commands: tuple[str, ...]) -> int:
    """Return the sum of the numbers that a Redis answers to `commands` with."""
    host, port = url.removeprefix("redis://").split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(" ".join(words).encode() + b"\r\n" for words in commands))
        return sum(_number(answers.readline()) for _ in commands)


def _number(line: bytes) -> int:
    if not line.startswith(b":"):
        raise RuntimeError(f"Redis answers {line!r}")
    return int(line[1:])


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port: int = any_port.getsockname()[1]
        return port


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    limit = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise NotInstalled("redis-server did not start")
