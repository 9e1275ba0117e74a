"""The few words of PostgreSQL's protocol needed to ask a server something without a client library.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

import re
import socket
import struct
from pathlib import Path

#: SQLSTATEs the runner tells apart.
STARTING = "57P03"
NO_DATABASE = "3D000"
DATABASE_EXISTS = "42P04"

_VERSION_3 = 196608
_PATIENCE_S = 5


def ask(path: Path, user: str, database: str, sql: str = "") -> str:
    """Log in through the socket at `path`, run `sql` if given, and return the SQLSTATE of the first error or "".

    Raises OSError when nobody answers within five seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_PATIENCE_S)
        line.connect(str(path))
        line.sendall(_login(user, database))
        error = _until_ready(line)
        if sql and not error:
            line.sendall(b"Q" + _sized(sql.encode() + b"\0"))
            error = _until_ready(line)
        if not error:
            line.sendall(b"X" + _sized(b""))
        return error


def _login(user: str, database: str) -> bytes:
    words = ["user", user, "database", database, "application_name", "localdb", ""]
    return _sized(struct.pack("!i", _VERSION_3) + b"".join(word.encode() + b"\0" for word in words))


def _sized(body: bytes) -> bytes:
    return struct.pack("!i", len(body) + 4) + body


def _until_ready(line: socket.socket) -> str:
    while True:
        kind, size = struct.unpack("!ci", _read(line, 5))
        body = _read(line, size - 4)
        if kind == b"E":
            return re.search(rb"\0C(\w+)\0", b"\0" + body)[1].decode()
        if kind == b"Z":
            return ""


def _read(line: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        parts += part
    return bytes(parts)
