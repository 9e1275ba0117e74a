from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import sys
from typing import Any, NoReturn

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_dhara import events, registry
from django_dhara.conf import Options
from django_dhara.events import Event
from django_dhara.formatters import FORMATTERS
from django_dhara.lifecycle import Wanted
from django_dhara.management import console, flags
from django_dhara.management.reload import Reloader
from django_dhara.services import Pruner, Reaper
from django_dhara.worker import Worker
from django_dhara.worker.pulse import Pulse


class Command(flags.Command):
    help = (
        "Run tasks until SIGTERM or SIGINT. Then running functions get the drain time to finish; a second signal hands "
        "them back at once. Exit code: 0 after a clean end, 1 otherwise."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add(
            parser, "--queues", "DHARA_QUEUES", "Serve these queues, comma-separated; all without it.",
            read=flags.names, default=(), metavar="NAMES",
        )  # fmt: skip
        flags.add(
            parser, "--exclude-queues", "DHARA_EXCLUDE_QUEUES", "Serve all queues but these.",
            read=flags.names, default=(), metavar="NAMES",
        )  # fmt: skip
        flags.add_backend(parser)
        flags.add_option(parser, "--concurrency", "concurrency", "Threads for plain functions.")
        flags.add_option(parser, "--processes", "processes", "Child processes for plain functions, instead of threads.")
        flags.add_option(
            parser, "--max-tasks-per-child", "max_tasks_per_child", "Replace a child process after so many; 0: never."
        )
        flags.add_option(parser, "--async-concurrency", "async_concurrency", "`async def` functions at once.")
        flags.add_option(parser, "--poll-interval", "poll_seconds", "Pause between polls of an empty queue.")
        flags.add_option(parser, "--drain-timeout", "drain_seconds", "For running functions after the first signal.")
        flags.add_switch(parser, "--burst", "DHARA_BURST", "Stop when nothing is ready.")
        flags.add(
            parser, "--max-tasks", "DHARA_MAX_TASKS", "Stop after so many tasks.", read=flags.count, metavar="N"
        )  # fmt: skip
        flags.add(
            parser, "--name", "DHARA_NAME", "A name for people; default: host and pid.", read=flags.name, default=""
        )
        flags.add(
            parser, "--heartbeat-file", "DHARA_HEARTBEAT_FILE", "Touch this file while the control loop turns.",
            default="", metavar="PATH",
        )  # fmt: skip
        flags.add(
            parser, "--metrics-port", "DHARA_METRICS_PORT", "Serve /metrics and /livez on this port; 0: any free one.",
            read=flags.port, default=None, metavar="PORT",
        )  # fmt: skip
        flags.add(
            parser, "--metrics-host", "DHARA_METRICS_HOST", "... of this address. Default: 127.0.0.1.",
            read=flags.name, default="127.0.0.1", metavar="ADDRESS",
        )  # fmt: skip
        flags.add(
            parser, "--log-format", console.VARIABLE, "Format of what is logged to the terminal: text or json.",
            read=flags.one_of(*FORMATTERS), default=None, metavar="FORMAT",
        )  # fmt: skip
        flags.add_switch(parser, "--reap", "DHARA_REAP", "Rescue tasks of lost workers, too.", default=True)
        flags.add_switch(parser, "--prune", "DHARA_PRUNE", "Delete finished tasks after their time, too.", default=True)
        flags.add_switch(
            parser, "--reload", "DHARA_RELOAD", "Restart when code changes. Default: as DEBUG, but not with --burst.",
            default=None,
        )  # fmt: skip

    def execute(self, *args: Any, **given: Any) -> str | None:
        console.log_here(given.get("log_format"))
        return super().execute(*args, **given)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Django prints what its checks warn of; where the log is JSON it is told there, line by line."""
        found = [message for message in checks.run_checks() if not message.is_silenced()] if console.is_json() else []
        if not found or any(message.is_serious() for message in found):
            super().check(*args, **kwargs)
            return
        for message in found:
            events.CHECK_WARNS.tell(check=message.id or "", reason=str(message.msg), hint=str(message.hint or ""))

    def handle(self, *args: Any, **given: Any) -> None:
        worker = self._worker(given)
        if self._called_from_command_line:  # type: ignore[attr-defined]
            # From here to the very end, so that no signal is missed early, or kills us late with another exit code.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: worker.on_signal())
        registry.discover()
        reloader = Reloader(worker.stop) if _reloads(given) else None
        self._say(events.WORKER_STARTED, introduction=_introduction(worker), worker=worker.presence.name)
        if given["metrics_port"] is not None:
            self._serve_metrics(worker, given["metrics_host"], given["metrics_port"])
        code = self._run(worker)
        if reloader is not None and reloader.changed:
            reloader.restart()
        self._say(events.WORKER_STOPPED, worker=worker.presence.name, exit_code=code)
        if self._called_from_command_line:  # type: ignore[attr-defined]
            _end_process(code)
        sys.exit(code)

    def _say(self, event: Event, **fields: Any) -> None:
        """To whom started it, and to the log, unless that is the same terminal."""
        if console.is_json() or not console.is_here():
            event.tell(**fields)
        if not console.is_json():
            self.stdout.write(self.style.SUCCESS(event.text % fields))
            self.stdout.flush()

    def _serve_metrics(self, worker: Worker, host: str, port: int) -> None:
        try:
            from django_dhara.metrics.server import Server

            server = Server(worker, host, port)
        except ImproperlyConfigured as error:
            raise CommandError(f"--metrics-port: {error}") from None
        except OSError as error:
            raise CommandError(f"--metrics-port: cannot listen on {host} port {port}: {error.strerror}.") from None
        server.start()
        self._say(events.METRICS_SERVED, worker=worker.presence.name, host=host, port=server.server_port)

    def _run(self, worker: Worker) -> int:
        """Serve; if the control loop dies its error is told, and the process ends as after any other end."""
        try:
            return worker.run()
        except Exception:
            if not self._called_from_command_line:  # type: ignore[attr-defined]
                raise
            events.WORKER_DIED.tell(worker=worker.presence.name, exc_info=True)
            return 1

    def _worker(self, given: dict[str, Any]) -> Worker:
        backend = flags.backend(given["backend"])
        named = {name: given[name] for name in _OPTIONS if given[name] is not None}
        options: Options = dataclasses.replace(backend.settings, **named)
        if connections[options.database].in_atomic_block:
            raise CommandError(_IN_TRANSACTION)
        wanted = _wanted(backend.alias, set(backend.queues), given)
        try:
            worker = Worker(
                backend, options, wanted, name=given["name"], burst=given["burst"], max_tasks=given["max_tasks"]
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        worker.pulse = self._pulse(given["heartbeat_file"])
        if given["reap"]:
            worker.services.append(Reaper(options.database, backend.alias, options, worker.rescued))
        if given["prune"]:
            worker.services.append(Pruner(options.database, backend.alias, options))
        return worker

    def _pulse(self, path: str) -> Pulse:
        pulse = Pulse(path)
        try:
            pulse.begin()
        except (OSError, ValueError) as error:
            raise CommandError(f"--heartbeat-file {path}: {error}") from None
        return pulse


_IN_TRANSACTION = (
    "A worker cannot run inside a transaction, such as a TestCase's: its own connections do not see what that has "
    "written. In a TestCase call django_dhara.testing.run_all(); or use a TransactionTestCase."
)
_OPTIONS = (
    "concurrency", "processes", "max_tasks_per_child", "async_concurrency", "poll_seconds", "drain_seconds",
)  # fmt: skip


def _wanted(alias: str, known: set[str], given: dict[str, Any]) -> Wanted:
    queues, exclude = given["queues"], given["exclude_queues"]
    if queues and exclude:
        raise CommandError("--queues and --exclude-queues contradict each other: give one of them.")
    strangers = sorted(set(queues) | set(exclude) - known) if known else []
    strangers = [queue for queue in strangers if queue not in known]
    if strangers:
        raise CommandError(
            f"no queue {', '.join(map(repr, strangers))} in QUEUES of TASKS[{alias!r}], which has: "
            f"{', '.join(sorted(known))}."
        )
    return Wanted(alias, tuple(queues), tuple(exclude))


def _end_process(code: int) -> NoReturn:
    """Leave without waiting for threads: functions that were given up may still run on theirs, or on threads that they
    started, for longer than the supervisor's patience. What was registered for the exit is done as ever.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reloads(given: dict[str, Any]) -> bool:
    return bool(settings.DEBUG and not given["burst"]) if given["reload"] is None else bool(given["reload"])


def _introduction(worker: Worker) -> str:
    wanted, options = worker.wanted, worker.options
    if wanted.queues:
        queues = "queues " + ", ".join(wanted.queues)
    else:
        queues = "all queues" + (f" but {', '.join(wanted.exclude)}" if wanted.exclude else "")
    return (
        f"Worker {worker.presence.name} serves {queues} of {wanted.backend!r}: "
        f"{options.slots} {'processes' if options.processes else 'threads'}, "
        f"{options.async_concurrency} coroutines, lease {options.lease_seconds:g} s. Ctrl-C stops it."
    )
