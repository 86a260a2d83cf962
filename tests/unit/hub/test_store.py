"""`specmesh models list` and `inspect`, and names as --model: on tiny models of both kinds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_command import Models

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.llama import LlamaDrafter, LlamaSettings
from specmesh.errors import ConfigError
from specmesh.models import store
from specmesh.models.directory import read_directory
from specmesh.models.gguf_header import read_header
from specmesh.models.store import resolve

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
            ("you/dir", "hf", "F16"),
        ]
        assert [model["size_bytes"] for model in told["models"]][:2] == [2 * size, size]
        assert told["models"][1]["path"] == str(filled / "me/tiny/tiny-F32.gguf")

    def test_damaged(self, root: Path, models: Models) -> None:
        root.mkdir()
        (root / "bad.gguf").write_bytes(b"GG")
        assert "unknown" in models("list").out


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
        with pytest.raises(ConfigError, match="check the path"):
            resolve(str(tmp_path / "nothing"), filled)
        (filled / "you/tiny-F32.gguf").touch()
        with pytest.raises(ConfigError, match=r"2 models.*me/tiny/tiny-F32.gguf, you/tiny-F32.gguf"):
            resolve("tiny-F32", filled)

    def test_out_of_sight(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A path that cannot be looked at, as a home is for the system's service, is told as settings are."""
        with pytest.raises(ConfigError, match="too long"):
            resolve("/" + "a" * 300, tmp_path)

        def refused(path: Path) -> bool:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "exists", refused)
        for value in ("/home/ada/model.gguf", "model.gguf"):
            with pytest.raises(ConfigError, match="sees no home: keep models in /srv"):
                resolve(value, tmp_path)

    def test_daemons_take_names(self, filled: Path, models: Models) -> None:
        for role in ("verifier", "drafter"):
            done = models.process("--model", "nothing", command=role)
            assert (done.code, len(done.err.splitlines())) == (78, 1)
            assert f"tried the 3 names in {filled}" in done.err


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

    @pytest.mark.parametrize(
        ("config", "trims"),
        [
            ({}, True),
            ({"model_type": "mamba"}, False),
            ({"model_type": "qwen3_next"}, False),
            ({"model_type": "new"}, None),
            ({"sliding_window": 4096}, None),
            ({"sliding_window": 4096, "use_sliding_window": False}, True),
            ({"model_type": "outer", "text_config": {"model_type": "llama"}}, True),
        ],
    )
    def test_trimming_of_directories(
        self, make_directory: MakeDirectory, tmp_path: Path, config: dict[str, object], trims: bool | None
    ) -> None:
        assert read_directory(make_directory(tmp_path / "dir", **config)).can_trim is trims


@pytest.mark.models
class TestInspect:
    def test_gguf(self, tiny_gguf: Path) -> None:
        pytest.importorskip("llama_cpp")
        engine = LlamaDrafter(LlamaSettings(tiny_gguf, n_ctx=16, gpu_layers=0))
        vocabulary: Vocabulary = engine.vocabulary
        engine.close()
        report = store.inspect(tiny_gguf)
        assert (report.architecture, report.quantisation, report.context) == ("llama", "F32", 512)
        assert (report.vocabulary_size, report.vocabulary_fingerprint) == (320, vocabulary.fingerprint())
        assert (report.can_trim, report.notes, report.size_bytes) == (True, (), tiny_gguf.stat().st_size)

    def test_recurrent(self, tiny_recurrent_gguf: Path) -> None:
        pytest.importorskip("llama_cpp")
        report = store.inspect(tiny_recurrent_gguf)
        assert (report.architecture, report.can_trim) == ("mamba", True)

    def test_weights_missing(self, tiny_gguf: Path, tmp_path: Path) -> None:
        pytest.importorskip("llama_cpp")
        path = tmp_path / "half.gguf"
        raw = tiny_gguf.read_bytes()
        path.write_bytes(raw[: len(raw) // 2])
        report = store.inspect(path)
        assert (report.architecture, report.can_trim) == ("llama", None)
        (note,) = report.notes
        assert "half.gguf" in note

    def test_directory(self, make_directory: MakeDirectory, tmp_path: Path) -> None:
        report = store.inspect(make_directory(tmp_path / "dir"))
        assert report.vocabulary_fingerprint is None
        assert "fingerprint is unknown" in report.notes[1]
        assert (report.kind, report.architecture, report.parameters, report.context) == ("hf", "llama", 256, 64)
        assert (report.vocabulary_size, report.quantisation, report.can_trim) == (32, "F16", True)
        assert any("unknown" not in line for line in report.lines())
