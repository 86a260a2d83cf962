"""The lock of a socket's path."""

from pathlib import Path

import pytest

from specmesh import paths
from specmesh.errors import Busy
from specmesh.paths import InstanceLock


def test_one_instance_per_socket(tmp_path: Path):
    first = InstanceLock(tmp_path / "s")
    with pytest.raises(Busy, match=r"pid \d+"):
        InstanceLock(tmp_path / "s")
    first.close()
    assert not list(tmp_path.iterdir())
    InstanceLock(tmp_path / "s").close()


def test_a_lock_whose_file_was_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who waited for the lock of an instance that has just ended locks the new file, not the one nobody sees."""
    first = InstanceLock(tmp_path / "s")
    real, tries = paths._locked, []

    def slow(lock: Path, path: Path) -> object:
        file = real(lock, path) if tries else None
        if file is None:
            held = lock.open("r+")  # opened before the first one ends, locked after it
            first.close()
            tries.append(held)
            return held
        return file

    monkeypatch.setattr(paths, "_locked", slow)
    second = InstanceLock(tmp_path / "s")
    assert tries[0].closed
    monkeypatch.undo()
    with pytest.raises(Busy):
        InstanceLock(tmp_path / "s")
    second.close()
