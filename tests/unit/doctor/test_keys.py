"""What is said of the keys."""

from pathlib import Path

import pytest

from specmesh.doctor import mesh
from specmesh.security import keys as module
from specmesh.security.keys import KeyFolder, Listing


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """None, some, a list that is none, and a secret that others can read."""
    folder = KeyFolder(tmp_path / "keys")
    monkeypatch.setattr(module, "key_folders", lambda: [folder.path, tmp_path / "system"])
    told = []
    told += mesh.keys()
    folder.new()
    folder.allow(Listing.DRAFTERS, "ab" * 32, "mac")
    told += mesh.keys()
    (folder.path / "verifiers").write_text("bigbox\n")
    (folder.path / "verifiers").chmod(0o600)
    told += mesh.keys()
    (folder.path / "secret.key").chmod(0o644)
    told += mesh.keys()
    assert [check.status for check in told] == ["ok", "ok", "fail", "fail"]
    words = ["none", "1 drafter allowed, 0 verifiers known", "verifiers:1", "chmod 600"]
    assert [word in check.found for word, check in zip(words, told, strict=True)] == [True] * 4
