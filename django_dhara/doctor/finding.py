"""What the doctor can find: each trouble with its id, why it hurts and what to do; and a trouble that was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How bad it is; a larger one is worse."""

    #: Worth knowing; nothing needs to be done.
    INFO = 0
    #: Slower or riskier than it should be, or about to break.
    WARNING = 1
    #: Tasks stand still, fail or may be lost.
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that may be found; docs/reference/doctor.md has a section for each.

    Args:
        title: what is wrong, in general.
        why: how it hurts.
        remedy: what to do, with the exact command or setting; a name in braces stands for what was seen.
    """

    id: str
    severity: Severity
    title: str
    why: str
    remedy: str

    def seen(self, what: str, **details: Any) -> Finding:
        """It was found.

        Args:
            what: what was seen, with its value; people read it after the title, with a colon between them.
            details: what the remedy names, and more for programs.
        """
        return Finding(self.id, self.severity, self.title, what, self.why, self.remedy.format(**details), details)


@dataclass(frozen=True, slots=True)
class Finding:
    """A trouble that was seen in a database, or with one backend in it."""

    id: str
    severity: Severity
    title: str
    what: str
    why: str
    do: str
    details: dict[str, Any] = field(default_factory=dict)
    database: str = ""
    backend: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs; the names are kept from version to version."""
        return {
            "id": self.id,
            "severity": self.severity.name.lower(),
            "database": self.database,
            "backend": self.backend,
            "title": self.title,
            "what": self.what,
            "why": self.why,
            "do": self.do,
            "details": self.details,
        }


def span(seconds: float) -> str:
    """A time for people: "45 s", "12 min", "3.5 h", "9 days"."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count = seconds / length
        if count >= 2 or unit == "s":
            break
    return f"{count:.2g} {unit}" if count < 10 else f"{count:.0f} {unit}"


def size(count: float) -> str:
    """A number of bytes for people."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def listed(names: list[str], most: int = 5) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
