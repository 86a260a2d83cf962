"""Model files that are missing, damaged or no files: an error of one line that names the file and what is wrong."""

import os
from pathlib import Path

import pytest

from specmesh.config import ModelSettings
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import ConfigError

pytestmark = pytest.mark.models


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        LlamaModel(ModelSettings("llama", str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.fault("E7.76")
def test_cut_off_anywhere(tiny_gguf: Path, tmp_path: Path):
    raw, path = tiny_gguf.read_bytes(), tmp_path / "model.gguf"
    for length in (*range(200), len(raw) // 2, len(raw) - 64):
        path.write_bytes(raw[:length])
        assert "could not be loaded" in refused(path)


@pytest.mark.fault("E7.75")
@pytest.mark.fault("E7.77")
def test_no_file(tiny_gguf: Path, tmp_path: Path):
    for part in (1, 3):
        (tmp_path / f"m-0000{part}-of-00003.gguf").write_bytes(tiny_gguf.read_bytes())
    assert "m-00002-of-00003.gguf is missing" in refused(tmp_path / "m-00001-of-00003.gguf")
    assert "name the first part, m-00001-of-00003.gguf" in refused(tmp_path / "m-00003-of-00003.gguf")
    os.mkfifo(tmp_path / "fifo.gguf")
    (tmp_path / "directory.gguf").mkdir()
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    for name in ("fifo.gguf", "none.gguf", "directory.gguf", "loop.gguf"):
        assert f"{name} is missing, or no file" in refused(tmp_path / name)
