"""The lock of a socket's path."""

from pathlib import Path

import pytest

from specmesh.errors import Busy
from specmesh.paths import InstanceLock


def test_one_instance_per_socket(tmp_path: Path):
    """A second one is told who runs; once the first has ended the next may begin."""
    with InstanceLock(tmp_path / "s"), pytest.raises(Busy, match=r"pid \d+"):
        InstanceLock(tmp_path / "s")
    InstanceLock(tmp_path / "s").close()
