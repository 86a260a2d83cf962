"""What is said of sockets and their folders."""

import os
import socket
from collections.abc import Callable
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


def test_system_folder_of_a_group():
    """Who is not in it sees no daemon there, and is told why."""
    check = judge_system_folder(replace(FOLDER, mode=0o750, owner=0, group="specmesh"))
    assert check.status == "warn"
    assert "--groups specmesh" in str(check.fix)


def test_length(monkeypatch: pytest.MonkeyPatch):
    """103 bytes fit everywhere; longer paths are told."""
    for size, told in ((103, []), (104, ["fail"])):
        monkeypatch.setattr(paths, "default_socket", lambda _, size=size: Path("/" + "x" * (size - 1)))
        assert [check.status for check in machine.sockets() if check.name == "path length"] == told


def test_this_machine(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A live socket, one left behind, a file in a socket's place, and a folder of ours."""
    live, stale, file = fake_daemon({}), tmp_path / "stale.sock", tmp_path / "file.sock"
    os.chmod(live, 0o600)  # noqa: PTH101
    with socket.socket(socket.AF_UNIX) as left:
        monkeypatch.chdir(tmp_path)
        left.bind("stale.sock")
    file.touch()
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(machine, "known_sockets", lambda: [live, stale, file, tmp_path / "none.sock"])
    monkeypatch.setattr(paths, "user_runtime_dir", lambda: folder)
    told = {check.name: check.status for check in machine.sockets()}
    assert (told[live.name], told["stale.sock"], told["file.sock"]) == ("ok", "warn", "fail")
    assert told["user's folder"] == "ok"
    assert "none.sock" not in told
    live.chmod(0o666)
    assert {check.name: check.status for check in machine.sockets()}[live.name] == "fail"
