"""`specmesh models list` and `inspect`, and names as --model: on tiny models of both kinds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_command import Models

from specmesh import models as store
from specmesh.errors import ConfigError
from specmesh.models import resolve
from specmesh.models.headers import read_header

MakeDirectory = Callable[..., Path]


@pytest.fixture
def filled(root: Path, tiny_gguf: Path, make_directory: MakeDirectory) -> Path:
    """A folder with two GGUF models, one in parts, a directory, and what is none of these."""
    (root / "me/tiny").mkdir(parents=True)
    (root / "me/tiny/tiny-F32.gguf").write_bytes(tiny_gguf.read_bytes())
    for part in (1, 2):
        (root / f"me/tiny/big-0000{part}-of-00002.gguf").write_bytes(tiny_gguf.read_bytes())
    make_directory(root / "you/dir")
    (root / ".partial").mkdir()
    (root / ".partial/x.gguf").write_bytes(b"GGUF")
    (root / "me/tiny/README.md").touch()
    return root


class TestList:
    def test_json(self, filled: Path, tiny_gguf: Path, models: Models) -> None:
        told = json.loads(models("list", "--json").out)
        size = tiny_gguf.stat().st_size
        rows = [(model["name"], model["kind"], model["quantisation"]) for model in told["models"]]
        assert (told["schema_version"], told["folder"]) == (1, str(filled))
        assert rows == [
            ("me/tiny/big-00001-of-00002.gguf", "gguf", "F32"),
            ("me/tiny/tiny-F32.gguf", "gguf", "F32"),
            ("you/dir", "hf", "float16"),
        ]
        assert [model["size_bytes"] for model in told["models"]][:2] == [2 * size, size]
        assert told["models"][1]["path"] == str(filled / "me/tiny/tiny-F32.gguf")


class TestResolve:
    def test_names(self, filled: Path) -> None:
        path = str(filled / "me/tiny/tiny-F32.gguf")
        for name in ("me/tiny/tiny-F32.gguf", "tiny/tiny-F32.gguf", "tiny-F32.gguf", "tiny-F32"):
            assert resolve(name, filled) == path
        assert resolve("you/dir", filled) == resolve("dir", filled) == str(filled / "you/dir")

    def test_order(self, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A whole name comes before a path, a path before the end of a name."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tiny-F32.gguf").touch()
        (tmp_path / "you/dir").mkdir(parents=True)
        assert resolve("tiny-F32.gguf", filled) == "tiny-F32.gguf"
        assert resolve("you/dir", filled) == str(filled / "you/dir")
        assert resolve(str(tmp_path / "tiny-F32.gguf"), filled) == str(tmp_path / "tiny-F32.gguf")

    def test_none_and_several(self, filled: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf"tried the 3 names in {filled} and the path /.*/nothing"):
            resolve("nothing", filled)
        with pytest.raises(ConfigError, match="tried the 3 names"):
            resolve(str(tmp_path / "nothing"), filled)
        (filled / "you/tiny-F32.gguf").touch()
        with pytest.raises(ConfigError, match=r"2 models.*me/tiny/tiny-F32.gguf, you/tiny-F32.gguf"):
            resolve("tiny-F32", filled)


class TestHeader:
    def test_agrees_with_gguf(self, tiny_gguf: Path) -> None:
        gguf = pytest.importorskip("gguf")
        reader = gguf.GGUFReader(tiny_gguf)
        header = read_header(tiny_gguf)
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        arrays = {key: len(field.data) for key, field in fields.items() if field.types[0] == gguf.GGUFValueType.ARRAY}
        assert header.lengths == arrays
        assert header.values == {key: field.contents() for key, field in fields.items() if key not in arrays}
        assert header.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)


class TestInspect:
    def test_gguf(self, tiny_gguf: Path) -> None:
        report = store.inspect(tiny_gguf)
        known = {"architecture": "llama", "quantisation": "F32", "context": 512, "vocabulary_size": 320}
        assert report | known | {"size_bytes": tiny_gguf.stat().st_size} == report
