"""Where sockets live, and what a verifier says of its model file."""

import os
from functools import partial
from pathlib import Path

import pytest

from specmesh import paths
from specmesh.config import ModelSettings
from specmesh.daemons.serve import model_hash
from specmesh.errors import Busy, ConfigError


def test_candidates_user_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths.sys, "platform", "linux")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/5")
    own, system = Path("/run/user/5/specmesh"), paths.SYSTEM_DIR
    sockets = [folder / f"{role}.sock" for folder in (own, system) for role in ("verifier", "drafter")]
    assert paths.candidate_sockets() == sockets
    assert paths.default_socket("drafter") == own / "drafter.sock"


def test_without_a_runtime_folder(monkeypatch: pytest.MonkeyPatch):
    """Without XDG_RUNTIME_DIR: pam_systemd's folder where it exists, else one in the home."""
    monkeypatch.setattr(paths.sys, "platform", "linux")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(paths.Path, "is_dir", lambda _: True)
    assert paths.user_runtime_dir() == Path(f"/run/user/{os.getuid()}/specmesh")
    monkeypatch.setattr(paths.Path, "is_dir", lambda _: False)
    assert paths.user_runtime_dir() == Path.home() / ".cache/specmesh/run"


def test_length_is_counted_in_bytes():
    """103 bytes are the most, and a letter may have several."""
    paths.check_socket_path(Path("/" + "x" * 102))
    for path in (Path("/" + "x" * 103), Path("/" + "ü" * 52)):
        with pytest.raises(ConfigError, match=f"{path} has 10[45] bytes, 103 at most"):
            paths.check_socket_path(path)


def test_folder_is_made_private(tmp_path: Path):
    """A missing folder is made for this user alone; an existing one is taken as it is; a file in the way is told."""
    path = tmp_path / "a" / "b" / "v.sock"
    paths.prepare_folder(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    paths.prepare_folder(path)
    path.touch()
    with pytest.raises(ConfigError, match="cannot make the folder"):
        paths.prepare_folder(path / "v.sock")


def test_one_instance_per_socket(tmp_path: Path):
    """A second one is told who runs; once the first has ended the next may begin."""
    lock = partial(paths.instance_lock, tmp_path / "s")
    for _ in range(2):
        with lock(), pytest.raises(Busy, match=f"pid {os.getpid()}"), lock():
            pass


@pytest.mark.parametrize("size", [0, 1, 2**16 + 1, 12 * 2**20])
def test_the_hash_of_a_model_file(tmp_path: Path, size: int):
    """Copies have the same, files of another size or with another beginning or end have not."""
    contents = [bytes(size), bytes(size), bytes(size + 1), b"x" + bytes(size)[1:], bytes(size)[:-1] + b"x"]
    hashes = []
    for number, content in enumerate(contents):
        (path := tmp_path / str(number)).write_bytes(content)
        hashes.append(model_hash(ModelSettings("llama", str(path))))
    assert hashes[0] == hashes[1]
    assert hashes[0] not in hashes[2:]
    assert model_hash(ModelSettings("llama", str(tmp_path))) == ""
