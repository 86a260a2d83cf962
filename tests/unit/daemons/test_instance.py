"""The lock of a socket's path."""

import fcntl
from pathlib import Path

import pytest

from specmesh.client import starting
from specmesh.daemons.runtime import instance
from specmesh.daemons.runtime.instance import Instance
from specmesh.errors import Busy
from specmesh.paths import lock_of


def test_one_instance_per_socket(tmp_path: Path):
    """The second is told the pid of the first."""
    first = Instance(tmp_path / "s")
    with pytest.raises(Busy, match=r"pid \d+"):
        Instance(tmp_path / "s")
    first.close()
    assert not list(tmp_path.iterdir())
    Instance(tmp_path / "s").close()


def test_a_lock_whose_file_was_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who waited for the lock of an instance that has just ended locks the new file, not the one nobody sees."""
    first = Instance(tmp_path / "s")
    real, tries = instance._locked, []

    def slow(lock: Path, path: Path) -> object:
        file = real(lock, path) if tries else None
        if file is None:
            held = lock.open("r+")  # opened before the first one ends, locked after it
            first.close()
            tries.append(held)
            return held
        return file

    monkeypatch.setattr(instance, "_locked", slow)
    second = Instance(tmp_path / "s")
    assert tries[0].closed
    monkeypatch.undo()
    with pytest.raises(Busy):
        Instance(tmp_path / "s")
    second.close()


def test_a_client_that_looks_is_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A client may hold the lock for a moment, which does not keep a daemon from starting."""
    path = tmp_path / "s"
    lock_of(path).touch()
    with lock_of(path).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(instance.time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with Instance(path):
            assert starting(path)
            assert starting(path), "looking lets go of it"
    assert not starting(path)
