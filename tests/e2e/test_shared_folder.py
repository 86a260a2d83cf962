"""Files of a daemon in a folder that others can write to: what somebody else has put there is refused, and not written.

The mesh's folder is such a folder; each test plants something in the place of a file that the daemon is told to use.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Mesh, command

from specmesh.paths import lock_of

PRECIOUS = "do not touch\n"


def fifo(place: Path, _: Path) -> None:
    os.mkfifo(place)


def foreign(place: Path, _: Path) -> None:
    place.touch()
    try:
        os.chown(place, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can give a file away")


@pytest.fixture
def socket(mesh: Mesh) -> Path:
    """Where `Mesh.cannot_start` has its socket."""
    mesh.folder.chmod(0o1777)
    return mesh.folder / "x.sock"


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to, fifo, foreign])
@pytest.mark.parametrize("what", ["lock", "socket"])
@pytest.mark.fault("E8.89")
def test_what_others_put_there_is_refused(mesh: Mesh, socket: Path, what: str, plant: Callable[[Path, Path], None]):
    """One line that names the file, exit 78; the file that was led to is as it was."""
    victim, place = mesh.folder / "victim", lock_of(socket) if what == "lock" else socket
    victim.write_text(PRECIOUS)
    plant(place, victim)
    mesh.cannot_start("verifier").refused(78, place)
    assert victim.read_text() == PRECIOUS
    assert os.path.lexists(place)


def test_no_file_is_made_where_a_link_leads(mesh: Mesh, socket: Path):
    """Nor does a link to nothing have a daemon make that file, or one that looks for a daemon wait."""
    victim = mesh.folder / "new-lock"
    lock_of(socket).symlink_to(victim)
    mesh.cannot_start("verifier").refused(78)
    assert not victim.exists()
    lock_of(socket).unlink()
    os.mkfifo(lock_of(socket))
    assert command("generate", "x", "--socket", socket).code == 69
