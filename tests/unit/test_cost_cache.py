"""Step times on disk: for the same model and setting, or not at all."""

from pathlib import Path

import pytest

from specmesh.caches import CostCache

TABLE = {1: 0.034, 5: 0.036, 33: 0.1}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(5000))
    return path


def test_other_models_and_settings(tmp_path: Path, model: Path):
    """Another setting, another file of the same length, no file: nothing is known."""
    CostCache(model, "CPU, 2 threads", tmp_path / "c").store(TABLE)
    assert CostCache(model, "CPU, 1 threads", tmp_path / "c").load() is None
    model.write_bytes(b"GGUF" + bytes(4999) + b"x")
    assert CostCache(model, "CPU, 2 threads", tmp_path / "c").load() is None
    nothing = CostCache(tmp_path / "none", "CPU", tmp_path / "c")
    nothing.store(TABLE)
    assert nothing.load() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"1": -1}', '{"0": 1}', '{"1": NaN}', '{"x": 1}', '{"1": [1]}', '{"9999": 1}']
)
def test_damaged(tmp_path: Path, model: Path, text: str):
    cache = CostCache(model, "CPU", tmp_path / "c")
    cache.store(TABLE)
    [file] = (tmp_path / "c").iterdir()
    file.write_text(text)
    assert cache.load() is None
    cache.store(TABLE)
    assert cache.load() == TABLE


def test_a_link_in_the_place_of_what_it_writes_is_not_followed(tmp_path: Path, model: Path):
    """The cache may lie where others can write."""
    CostCache(model, "cpu", tmp_path).store(TABLE)
    [kept] = tmp_path.glob("*.json")
    (tmp_path / "victim").write_text("precious")
    kept.with_suffix(".part").symlink_to(tmp_path / "victim")
    CostCache(model, "cpu", tmp_path).store(TABLE)
    assert (tmp_path / "victim").read_text() == "precious"
    assert CostCache(model, "cpu", tmp_path).load() == TABLE
