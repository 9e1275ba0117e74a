"""The command: python -m example_project.localdb {run,start,stop,status,url,psql}."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from urllib.parse import quote, urlencode

from example_project.localdb import binaries, server
from example_project.localdb.errors import LocalDatabaseError

_DATABASE = "dhara"
_LOOK_S = 0.5
_NOT_RUNNING = 3  # As `systemctl status` and the LSB have it.


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0 well, 1 an error told in one line, 3 "not running"."""
    parser = _parser()
    choice, words = parser.parse_known_args(arguments)
    if words and choice.run is not psql:
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    try:
        local = server.for_profile(choice.profile)
        return psql(local, words) if choice.run is psql else choice.run(local)
    except LocalDatabaseError as error:
        print(f"localdb: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run(local: server.Server) -> int:
    """Keep the server up until Ctrl-C or SIGTERM."""
    enough = threading.Event()
    for word in (signal.SIGINT, signal.SIGTERM):
        signal.signal(word, lambda *_: enough.set())
    local.ensure(_DATABASE)
    print(f"{_url(local)}\nCtrl-C ends it (unless somebody else still uses it).", flush=True)
    while not enough.wait(_LOOK_S):
        if local.was_stopped():
            print("localdb: stopped by somebody else")
            return 0
        local.ensure(_DATABASE)
    return 0


def start(local: server.Server) -> int:
    """Start the server and leave it running until `stop`."""
    local.ensure(_DATABASE)
    local.keep()
    print(_url(local))
    return 0


def stop(local: server.Server) -> int:
    """Stop the server, whoever uses it."""
    print("stopped" if local.stop() else "not running")
    return 0


def status(local: server.Server) -> int:
    """Say in one line whether the server runs; exit code 0 or 3."""
    reply = local.cluster.reply()
    if reply == "absent":
        print(f"not running ({local.place.base})")
        return _NOT_RUNNING
    print(f"{'running' if reply == 'ready' else 'starting'}: process {local.cluster.pid()}, {_url(local)}")
    return 0


def url(local: server.Server) -> int:
    """Print the DATABASE_URL of the server; starts nothing."""
    print(_url(local))
    return 0


def psql(local: server.Server, words: list[str]) -> int:
    """Open psql on the server; what follows goes to psql."""
    local.ensure(_DATABASE)
    place = local.place
    program = shutil.which("psql") or binaries.find() / "psql"
    where = ["-h", place.sockets, "-p", str(place.port), "-U", place.user, "-d", _DATABASE]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for psql: it ends a query, not us.
    return subprocess.run([program, *where, *words], env=environment, check=False).returncode


def _url(local: server.Server) -> str:
    # The host as a parameter: django-environ does not decode %2F in the place of a host.
    place = local.place
    where = urlencode({"host": place.sockets, "port": place.port}, quote_via=quote, safe="/")
    return f"postgresql://{place.user}@/{_DATABASE}?{where}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m example_project.localdb", description="A private PostgreSQL.")
    parser.add_argument("--profile", help="which cluster (default: LOCALDB_PROFILE, then dev)")
    commands = parser.add_subparsers(required=True, metavar="{run,start,stop,status,url,psql}")
    for function in (run, start, stop, status, url, psql):
        command = commands.add_parser(function.__name__, help=function.__doc__.splitlines()[0])
        command.set_defaults(run=function)
    return parser


if __name__ == "__main__":
    sys.exit(main())
