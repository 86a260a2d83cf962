"""Files of a daemon in a folder that others can write to: what somebody else has put there is refused, and not written.

`shared` is such a folder; each test plants something in the place of a file that the daemon is told to use.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Mesh, command

PRECIOUS = "do not touch\n"
FILES = {"lock": "v.sock.lock", "socket": "v.sock"}


def fifo(place: Path, _: Path) -> None:
    os.mkfifo(place)


def foreign(place: Path, _: Path) -> None:
    place.touch()
    try:
        os.chown(place, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can give a file away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def options(folder: Path) -> list[object]:
    return ["verifier", "--engine", "sim", "--model", "step_ms=1", "--socket", folder / FILES["socket"]]


@pytest.mark.parametrize(
    ("what", "plant"),
    [
        *((what, Path.symlink_to) for what in FILES),
        *(("lock", plant) for plant in (Path.hardlink_to, fifo, foreign)),
    ],
)
def test_what_others_put_there_is_refused(
    mesh: Mesh, shared: Path, tmp_path: Path, what: str, plant: Callable[[Path, Path], None]
):
    """One line that names the file, exit 78; the file that was led to is as it was."""
    victim, place = tmp_path / "victim", shared / FILES[what]
    victim.write_text(PRECIOUS)
    plant(place, victim)
    done = command(*options(shared), "--bind", mesh.address)
    assert done.code == 78
    assert str(place) in done.err
    assert "Traceback" not in done.err
    assert victim.read_text() == PRECIOUS


def test_no_file_is_made_where_a_link_leads(mesh: Mesh, shared: Path, tmp_path: Path):
    """Nor does a link to nothing have a daemon make that file, or one that looks for a daemon wait."""
    victim, place = tmp_path / "new-lock", shared / FILES["lock"]
    place.symlink_to(victim)
    assert command(*options(shared), "--bind", mesh.address).code == 78
    assert not victim.exists()
    place.unlink()
    os.mkfifo(shared / FILES["lock"])
    assert command("generate", "x", "--socket", shared / FILES["socket"]).code == 69


def test_own_files_are_used(mesh: Mesh, shared: Path):
    """A lock that this user's last run has left there is in nobody's way."""
    (shared / FILES["lock"]).touch(0o600)
    daemon = mesh.start(*options(shared), "--bind", mesh.address)
    daemon.socket = shared / FILES["socket"]
    daemon.client = type(daemon.client)(daemon.socket)
    daemon.ready()
    assert daemon.stop() == 0
