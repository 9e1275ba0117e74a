"""The environment that a contender's driver runs in: made once, kept in the cache folder, named by what is in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.contender import Contender

ROOT = Path(__file__).resolve().parent.parent
_INSTALL_SECONDS = 900
#: Foreign settings that would change what a driver does.
_FOREIGN = ("PG", "DHARA_", "LOCALDB_", "DJANGO_", "PYTHON", "VIRTUAL_ENV", "NODE_", "BENCH_")


class NotInstalled(Exception):
    """A contender cannot be installed here; the message is one line that says why."""


def prepare(contender: Contender) -> tuple[list[str], dict[str, str]]:
    """Install what is missing; return the driver's command and its environment variables.

    Raises:
        NotInstalled
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    if contender.ecosystem == "ours":
        variables["PYTHONPATH"] = str(ROOT)
        return _command(contender, sys.executable), variables
    folder = _folder(contender)
    if not (folder / "complete").exists():
        _make(contender, folder)
    if contender.ecosystem == "node":
        variables["NODE_PATH"] = str(folder / "node_modules")
        variables["PATH"] = f"{folder / 'node_modules' / '.bin'}{os.pathsep}{variables.get('PATH', '')}"
        return list(contender.driver), variables
    return _command(contender, str(folder / "bin" / "python")), variables


def _command(contender: Contender, python: str) -> list[str]:
    return [python if word == "{python}" else word for word in contender.driver]


def _folder(contender: Contender) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = "\n".join([*contender.requirements, *([sys.version] if contender.ecosystem == "python" else [])])
    return cache / "django_dhara-benchmarks" / f"{contender.name}-{hashlib.sha256(named.encode()).hexdigest()[:10]}"


def _make(contender: Contender, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for command in _npm(contender) if contender.ecosystem == "node" else _pip(contender, folder):
        _run(command, folder)
    (folder / "complete").touch()


def _npm(contender: Contender) -> list[list[str]]:
    return [["npm", "install", "--prefix", ".", "--no-audit", "--no-fund", "--no-save", *contender.requirements]]


def _pip(contender: Contender, folder: Path) -> list[list[str]]:
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    if uv:
        make = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)]
        return [make, [uv, "pip", "install", "--quiet", "--python", python, *contender.requirements]]
    make = [sys.executable, "-m", "venv", str(folder)]
    return [make, [python, "-m", "pip", "install", "--quiet", *contender.requirements]]


def _run(command: list[str], folder: Path) -> None:
    try:
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise NotInstalled(f"cannot be installed: no {command[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"cannot be installed: {command[0]} took longer than {_INSTALL_SECONDS} s") from None
    if run.returncode:
        said = [line.strip() for line in (run.stderr or run.stdout).splitlines() if line.strip()]
        raise NotInstalled(f"cannot be installed: {' '.join(said[-3:])[:300]}")
