"""What is said of models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specmesh.doctor import models
from specmesh.doctor.check import Check
from specmesh.doctor.models import FolderFacts, ModelFacts, judge_bundled, judge_folder, judge_model
from specmesh.doctor.settings import RoleSettings


def test_bundled():
    """The pair that comes along, whole and not."""
    assert judge_bundled(()).status == "ok"
    broken = judge_bundled(("target.gguf", "drafter-hf"))
    assert (broken.status, broken.found) == ("fail", "cannot be read: target.gguf, drafter-hf")


@pytest.mark.parametrize(
    ("facts", "status", "found"),
    [
        (FolderFacts(Path("/m"), there=False), "ok", "nothing was pulled"),
        (FolderFacts(Path("/m"), there=True, models=3), "ok", "3 in /m"),
        (FolderFacts(Path("/m"), there=True, error="Permission denied"), "fail", "Permission denied"),
        (FolderFacts(Path("/m"), there=True, models=3, damaged=("a/b.gguf",)), "warn", "a/b.gguf"),
    ],
)
def test_folder(facts: FolderFacts, status: str, found: str):
    """Each state of the folder."""
    check = judge_folder(facts)
    assert check.status == status
    assert found in check.found


def test_model():
    """A model that settings name: what it is, or why it cannot be used."""
    assert judge_model(ModelFacts("drafter", "small", "llama, Q4_K_M")).found == "small: llama, Q4_K_M"
    broken = judge_model(ModelFacts("verifier", "big", error="no model 'big'"))
    assert (broken.status, broken.name, broken.found) == ("fail", "verifier's model", "no model 'big'")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models."""
    monkeypatch.setenv("SPECMESH_MODELS_DIR", str(tmp_path))
    return tmp_path


def look(**values: object) -> dict[str, Check]:
    return {check.name: check for check in models.checks([RoleSettings("verifier", values)])}


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
