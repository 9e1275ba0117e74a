from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from django_dhara import health
from django_dhara.backend import DharaBackend
from django_dhara.health import Finding, Wanted
from django_dhara.management import flags
from django_dhara.sql import Execute
from django_dhara.worker.session import Session


class Command(flags.Command):
    help = (
        "Say in one line whether the queue is fit for work: the database answers and is migrated; with --worker also "
        "that a worker's control loop turns. Exit code: 0 if all is well, 1 otherwise."
    )
    requires_system_checks = ()  # a probe is to be cheap, and the checks are the deploy's

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add(
            parser, "--backend", "DHARA_BACKEND", "Alias in TASKS; all of ours without it.", default="", metavar="ALIAS"
        )  # fmt: skip
        parser.add_argument(
            "--worker", nargs="?", const="", type=flags.name, metavar="WHO",
            help="A worker must live: any, or the one with this name, id, or HOST:PID.",
        )  # fmt: skip
        parser.add_argument("--queue", type=flags.name, help="A worker that serves this queue must live.")
        parser.add_argument(
            "--max-age", type=flags.span("seconds", 86_400), metavar="SECONDS",
            help="Since the last sign of life. Default: the worker's lease; of a heartbeat file 30 s.",
        )  # fmt: skip
        parser.add_argument(
            "--heartbeat-file", metavar="PATH",
            help="Look at the file of a worker with --heartbeat-file, and at nothing else.",
        )  # fmt: skip
        parser.add_argument(
            "--timeout", type=flags.span("seconds", 600), default=5.0, metavar="SECONDS",
            help="For each statement, and to connect. Default: 5.",
        )  # fmt: skip
        parser.add_argument("--format", choices=("text", "json"), default="text", help="Of the answer. Default: text.")

    def handle(self, *args: Any, **given: Any) -> None:
        findings = self._look(given)
        is_good = all(finding.is_good for finding in findings)
        self.stdout.write(_as_json(findings) if given["format"] == "json" else _as_text(findings))
        self.stdout.flush()
        sys.exit(0 if is_good else 1)

    def _look(self, given: dict[str, Any]) -> list[Finding]:
        if given["heartbeat_file"]:
            return [_of_file(Path(given["heartbeat_file"]), 30.0 if given["max_age"] is None else given["max_age"])]
        chosen: list[DharaBackend] = [flags.backend(given["backend"])] if given["backend"] else health.backends()
        asks = given["worker"] is not None or given["queue"] or given["max_age"] is not None
        wanted = Wanted(given["worker"] or "", given["queue"] or "", given["max_age"]) if asks else None
        sessions: list[Session] = []

        def connect(alias: str) -> Execute:
            session = Session(alias, f"dhara health {os.getpid()}", deadline_seconds=max(given["timeout"], 0.1))
            sessions.append(session)
            session.open()
            return session.execute

        try:
            return health.examine(connect, chosen, wanted)
        finally:
            for session in sessions:
                session.close()


def _of_file(path: Path, max_age: float) -> Finding:
    try:
        age = time.time() - path.stat().st_mtime
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Finding("heartbeat", False, f"there is no heartbeat file: {reason}: {flags.one_line(str(path))}")
    is_good = age <= max_age
    word = "the control loop turned" if is_good else "the control loop has not turned since"
    return Finding("heartbeat", is_good, f"{word} {max(age, 0):.0f} s ago (limit {max_age:g} s)")


def _as_text(findings: list[Finding]) -> str:
    bad = [finding.reason for finding in findings if not finding.is_good]
    if bad:
        return f"failed: {'; '.join(bad)}"
    return f"ok: {'; '.join(finding.reason for finding in findings)}"


def _as_json(findings: list[Finding]) -> str:
    status = "ok" if all(finding.is_good for finding in findings) else "failed"
    return json.dumps({"status": status, "checks": [finding.as_dict() for finding in findings]})
