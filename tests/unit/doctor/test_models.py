"""What is said of models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specmesh import paths
from specmesh.doctor import Check, machine
from specmesh.doctor.mesh import RoleSettings


def test_bundled(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The pair that comes along, whole and not."""
    assert look()["bundled pair"].status == "ok"
    monkeypatch.setenv("SPECMESH_MODELS_DIR", str(folder / "none"))
    assert (look()["folder"].status, "nothing was pulled" in look()["folder"].found) == ("ok", True)
    monkeypatch.setattr(paths, "bundled", lambda name: str(folder / name))
    broken = look()["bundled pair"]
    assert (broken.status, broken.found) == ("fail", "cannot be read: target.gguf, drafter.gguf, drafter-hf")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models."""
    monkeypatch.setenv("SPECMESH_MODELS_DIR", str(tmp_path))
    return tmp_path


def look(**values: object) -> dict[str, Check]:
    return {check.name: check for check in machine.models([RoleSettings("verifier", values)])}


def test_files(folder: Path, make_gguf: Callable[..., Path]):
    """Real files: a good one, a damaged one, one that is not there."""
    good = make_gguf("doctor-good")
    (folder / "good.gguf").symlink_to(good)
    told = look(model="good", engine="llama")
    assert (told["verifier's model"].status, told["folder"].status) == ("ok", "ok")
    assert told["verifier's model"].found.startswith("good: llama")
    (folder / "bad.gguf").write_bytes(b"GGUF\x03")
    told = look(model="bad", engine="llama")
    assert told["verifier's model"].status == "fail"
    assert (told["folder"].status, "bad.gguf" in told["folder"].found) == ("warn", True)
    assert look(model="none", engine="llama")["verifier's model"].status == "fail"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"model": "bundled", "engine": "auto"}, "comes along"),
        ({"model": "org/small-4bit", "engine": "mlx"}, "from the hub"),
        ({"model": None, "engine": "auto"}, None),
        ({"model": "draft_ms=1", "engine": "sim"}, None),
        ({"model": "x", "engine": "ngram"}, None),
    ],
)
def test_what_is_no_file(folder: Path, values: dict[str, object], found: str | None):
    """Names that mean something else than a file here, or nothing at all."""
    check = look(**values).get("verifier's model")
    assert (check is None) == (found is None)
    if check is not None and found is not None:
        assert (check.status, found in check.found) == ("ok", True)
