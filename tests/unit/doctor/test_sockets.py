"""What is said of sockets and their folders."""

from dataclasses import replace
from pathlib import Path

import pytest

from specmesh import paths
from specmesh.doctor import machine
from specmesh.doctor.machine import FolderFacts, judge_system_folder, judge_user_folder

FOLDER = FolderFacts(Path("/run/user/7/specmesh"), there=True, owner=7, me=7)


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({}, "ok", "private"),
        ({"there": False}, "ok", "not there yet"),
        ({"error": "Permission denied"}, "fail", "Permission denied"),
        ({"is_folder": False}, "fail", "no folder"),
        ({"owner": 0}, "fail", "belongs to user 0, not to 7"),
        ({"mode": 0o770}, "fail", "written by others (mode 770)"),
        ({"mode": 0o707}, "fail", "written by others"),
        ({"mode": 0o755}, "warn", "open to others (mode 755)"),
        ({"mode": 0o710}, "warn", "open to others"),
    ],
)
def test_user_folder(changes: dict[str, object], status: str, found: str):
    """Each state of this user's folder."""
    check = judge_user_folder(replace(FOLDER, **changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found


@pytest.mark.parametrize(("mode", "status"), [(0o750, "ok"), (0o755, "ok"), (0o777, "fail")])
def test_system_folder(mode: int, status: str):
    """Others may look into the system's, and not write."""
    assert judge_system_folder(replace(FOLDER, mode=mode, owner=0)).status == status


def test_length(monkeypatch: pytest.MonkeyPatch):
    """103 bytes fit everywhere; longer paths are told."""
    for size, told in ((103, []), (104, ["fail"])):
        monkeypatch.setattr(paths, "default_socket", lambda _, size=size: Path("/" + "x" * (size - 1)))
        assert [check.status for check in machine.sockets() if check.name == "path length"] == told
