"""`specmesh models list`, and names as --model: on tiny models."""

import json
from pathlib import Path

import pytest
from hub_server import Models

from specmesh.errors import ConfigError
from specmesh.models import resolve


@pytest.fixture
def filled(root: Path, tiny_gguf: Path) -> Path:
    """A folder with two GGUF models, one in parts, and what is no model."""
    (root / "me/tiny").mkdir(parents=True)
    (root / "me/tiny/tiny-F32.gguf").write_bytes(tiny_gguf.read_bytes())
    for part in (1, 2):
        (root / f"me/tiny/big-0000{part}-of-00002.gguf").write_bytes(tiny_gguf.read_bytes())
    (root / ".partial").mkdir()
    (root / ".partial/x.gguf").write_bytes(b"GGUF")
    (root / "me/tiny/README.md").touch()
    return root


def test_list(filled: Path, tiny_gguf: Path, models: Models) -> None:
    told = json.loads(models("list", "--json").out)
    size = tiny_gguf.stat().st_size
    assert (told["schema_version"], told["folder"]) == (1, str(filled))
    rows = [(model["name"], model["size_bytes"]) for model in told["models"]]
    assert rows == [("me/tiny/big-00001-of-00002.gguf", 2 * size), ("me/tiny/tiny-F32.gguf", size)]
    assert told["models"][1]["path"] == str(filled / "me/tiny/tiny-F32.gguf")


class TestResolve:
    def test_names(self, filled: Path) -> None:
        path = str(filled / "me/tiny/tiny-F32.gguf")
        for name in ("me/tiny/tiny-F32.gguf", "tiny/tiny-F32.gguf", "tiny-F32.gguf", "tiny-F32"):
            assert resolve(name, filled) == path

    def test_order(self, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A whole name comes before a path, a path before the end of a name."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tiny-F32.gguf").touch()
        assert resolve("tiny-F32.gguf", filled) == "tiny-F32.gguf"
        assert resolve("me/tiny/tiny-F32.gguf", filled) == str(filled / "me/tiny/tiny-F32.gguf")
        assert resolve(str(tmp_path / "tiny-F32.gguf"), filled) == str(tmp_path / "tiny-F32.gguf")

    def test_none_and_several(self, filled: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf"tried the 2 names in {filled} and the path /.*/nothing"):
            resolve("nothing", filled)
        with pytest.raises(ConfigError, match="tried the 2 names"):
            resolve(str(tmp_path / "nothing"), filled)
        (filled / "you").mkdir()
        (filled / "you/tiny-F32.gguf").touch()
        with pytest.raises(ConfigError, match=r"2 models.*me/tiny/tiny-F32.gguf, you/tiny-F32.gguf"):
            resolve("tiny-F32", filled)
