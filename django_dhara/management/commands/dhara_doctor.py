from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.color import no_style

from django_dhara import doctor
from django_dhara.backend import DharaBackend
from django_dhara.compat import task_backends
from django_dhara.doctor import Finding, Severity
from django_dhara.management import flags


class Command(flags.Command):
    help = (
        "Look at the server and the tables of the queue as somebody who knows them would, and say what to do. It only "
        "reads, and bounds each question to two seconds. Exit code: 2 with errors, 1 with warnings under --fail-on "
        "warning, 0 otherwise."
    )
    # What they say of the server is examined here, and must not end the command.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        flags.one_line_errors(parser)
        flags.add(
            parser, "--backend", "DHARA_BACKEND", "Only this alias in TASKS; all without it.",
            default="", metavar="ALIAS",
        )  # fmt: skip
        flags.add(
            parser, "--database", "DHARA_DOCTOR_DATABASE", "Only backends in this alias in DATABASES; all without it.",
            default="", metavar="ALIAS",
        )  # fmt: skip
        flags.add(
            parser, "--format", "DHARA_DOCTOR_FORMAT", "How to print: text, or json for programs.",
            read=flags.choice("text", "json"), default="text", metavar="text|json",
        )  # fmt: skip
        flags.add(
            parser, "--fail-on", "DHARA_DOCTOR_FAIL_ON", "Which findings the exit code tells of. Default: error.",
            read=flags.choice("warning", "error"), default="error", metavar="warning|error",
        )  # fmt: skip

    def handle(self, *args: Any, **given: Any) -> None:
        if os.environ.get("NO_COLOR"):
            self.style = no_style()
        backends = _backends(given["backend"], given["database"])
        findings = doctor.examine(backends)
        if given["format"] == "json":
            self.stdout.write(json.dumps(_document(backends, findings), indent=2, default=str))
        else:
            self._print(backends, findings)
        if code := _exit_code(findings, given["fail_on"]):
            sys.exit(code)

    def _print(self, backends: list[DharaBackend], findings: list[Finding]) -> None:
        width = min(shutil.get_terminal_size((100, 20)).columns, 120)
        for finding in findings:
            self.stdout.write(self._heading(finding))
            for label, text in (
                ("", f"{finding.title}: {finding.what}"),
                ("Why: ", finding.why),
                ("Do:  ", finding.do),
            ):
                lines = textwrap.wrap(
                    label + text, width, initial_indent="  ", subsequent_indent="  " + " " * len(label),
                    break_long_words=False, break_on_hyphens=False,
                )  # fmt: skip
                self.stdout.write("\n".join(lines))
            self.stdout.write("")
        self.stdout.write(_summary(backends, findings))

    def _heading(self, finding: Finding) -> str:
        styles = {
            Severity.ERROR: self.style.ERROR, Severity.WARNING: self.style.WARNING, Severity.INFO: self.style.NOTICE,
        }  # fmt: skip
        where = f"database {finding.database!r}" + (f", backend {finding.backend!r}" if finding.backend else "")
        return f"{styles[finding.severity](finding.severity.name)} {finding.id} in {where}"


def _backends(alias: str, database: str) -> list[DharaBackend]:
    """Those that are asked for.

    Raises:
        CommandError: there are none.
    """
    if alias:
        found = [flags.backend(alias)]
    else:
        ours = [name for name in task_backends if isinstance(task_backends[name], DharaBackend)]
        found = [flags.backend(name) for name in ours]
    found = [backend for backend in found if database in ("", backend.settings.database)]
    if not found:
        where = f" in DATABASES[{database!r}]" if database else ""
        raise CommandError(f"TASKS has no DharaBackend{where} to examine.")
    return found


def _exit_code(findings: list[Finding], fail_on: str) -> int:
    worst = max((finding.severity for finding in findings), default=Severity.INFO)
    return 0 if worst == Severity.INFO or (worst == Severity.WARNING and fail_on == "error") else int(worst)


def _counts(findings: list[Finding]) -> dict[str, int]:
    counts = Counter(finding.severity for finding in findings)
    return {severity.name.lower(): counts[severity] for severity in sorted(Severity, reverse=True)}


def _document(backends: list[DharaBackend], findings: list[Finding]) -> dict[str, Any]:
    return {
        "backends": {backend.alias: backend.settings.database for backend in backends},
        "counts": _counts(findings),
        "findings": [finding.as_json() for finding in findings],
    }


def _summary(backends: list[DharaBackend], findings: list[Finding]) -> str:
    counts = _counts(findings)
    words = [f"{counts[one]} {one}{'' if counts[one] == 1 or one == 'info' else 's'}" for one in counts]
    aliases = ", ".join(backend.alias for backend in backends)
    return f"Examined {aliases}: {', '.join(words)}." if findings else f"Examined {aliases}: all is well."
