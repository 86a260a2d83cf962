"""What is said of sockets and their folders."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specmesh.doctor import sockets
from specmesh.doctor.sockets import (
    FolderFacts,
    SocketFacts,
    judge_length,
    judge_socket,
    judge_system_folder,
    judge_user_folder,
)

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


@pytest.mark.parametrize(("size", "status"), [(103, "ok"), (104, "fail")])
def test_length(size: int, status: str):
    """103 bytes fit everywhere."""
    assert judge_length(FOLDER.path, size).status == status


@pytest.mark.parametrize(
    ("facts", "status", "found"),
    [
        (SocketFacts(Path("/s/v.sock"), is_socket=True, listens=True), "ok", "takes connections"),
        (SocketFacts(Path("/s/v.sock"), is_socket=True, listens=False), "warn", "left behind"),
        (SocketFacts(Path("/s/v.sock"), is_socket=False, listens=False), "fail", "no socket"),
        (SocketFacts(Path("/s/v.sock"), True, True, 0o666), "fail", "open to everybody"),
    ],
)
def test_socket(facts: SocketFacts, status: str, found: str):
    """Each state of a socket."""
    check = judge_socket(facts)
    assert check.status == status
    assert found in check.found


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
    monkeypatch.setattr(sockets, "known_sockets", lambda: [live, stale, file, tmp_path / "none.sock"])
    monkeypatch.setattr(sockets, "user_runtime_dir", lambda: folder)
    told = {check.name: check.status for check in sockets.checks()}
    assert (told[live.name], told["stale.sock"], told["file.sock"]) == ("ok", "warn", "fail")
    assert told["user's folder"] == "ok"
    assert "none.sock" not in told
