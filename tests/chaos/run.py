"""One run of one profile, from its seed to its verdict."""

import gc
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path

from benchmarks import machine
from tests.chaos.checker import Verdict, check
from tests.chaos.plan import Plan
from tests.chaos.profiles import Profile
from tests.chaos.stage import Stage

#: The part of a run with poison that is without it, to compare with.
CALM = 0.4


class NotInstalled(Exception):
    """A program that a profile needs is not on this machine."""


@dataclass
class Result:
    """What a run was, and what it came to."""

    profile: Profile
    seed: int
    minutes: float
    verdict: Verdict
    folder: Path
    plant: str = ""
    #: The machine and the versions, in a line.
    on: str = ""

    def as_dict(self):
        verdict = self.verdict
        return {
            "profile": self.profile.name,
            "title": self.profile.title,
            "seed": self.seed,
            "minutes": self.minutes,
            "plant": self.plant,
            "on": self.on,
            "verdict": verdict.word,
            "violations": [[violation.rule, violation.text] for violation in verdict.violations],
            "hits": dict(verdict.hits),
            "missed": verdict.missed,
            **verdict.figures,
        }


def run(profile, *, seed, minutes, plant="", keep=None):
    """Play a profile and judge it.

    Raises:
        NotInstalled: with what is missing.

    Args:
        minutes: of load with faults; healing and draining come on top.
        plant: name of a bug of `app/plants.py`.
        keep: folder for the history and the logs; without it they are kept only where something is wrong.
    """
    missing = [name for name in profile.requires if shutil.which(name) is None]
    if profile.disk and os.geteuid() != 0:
        missing.append("root, to mount a disk")
    if missing:
        raise NotInstalled(f"profile {profile.name} needs {', '.join(missing)}")
    base = Path(keep) if keep else None
    if base:
        base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{profile.name}-{seed}-", dir=base))
    calm = minutes * 60 * CALM if profile.is_poisoned else 0.0
    stage = Stage(Plan(profile.name, seed, str(folder), plant, profile.lease, calm), profile, minutes)
    with stage.built():
        stage.play(minutes * 60)
        on = _described(stage.server.value("SHOW server_version"))
        with _without_gc():
            evidence = stage.evidence(stage.limits())
    with _without_gc():
        verdict = check(evidence, _floors(profile, minutes))
    if verdict.word == "pass" and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(profile, seed, minutes, verdict, folder, plant, on)


@contextmanager
def _without_gc():
    """Millions of events that stay: to look for cycles among them takes longer than to judge them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _described(postgresql):
    found, versions = machine.describe(""), machine.versions(postgresql)
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{datetime.now(UTC).date()}: {found['cores']} cores of {found['cpu']}, {found['memory']}; {software}"


def _floors(profile, minutes):
    """Half of what is expected, and at least one of each, however short the run is."""
    return {code: max(ceil(floor * minutes * 0.5), 1) for code, floor in profile.floors.items()}
