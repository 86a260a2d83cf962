"""Which engine `auto` means, and what `bundled` stands for."""

import platform
import sys
from pathlib import Path

import pytest

from specmesh.config import ModelSettings
from specmesh.engines import load
from specmesh.errors import ConfigError

APPLE, LINUX, INTEL = ("darwin", "arm64"), ("linux", "x86_64"), ("darwin", "x86_64")
BOTH, LLAMA, MLX, NEITHER = {"llama_cpp", "mlx"}, {"llama_cpp"}, {"mlx"}, set()


CHOICES = {
    "ngram": [(APPLE, BOTH, None), (LINUX, BOTH, None), (LINUX, NEITHER, None)],
    "mlx": [
        *[(APPLE, BOTH, model) for model in ("bundled", "folder", "org/name")],
        *[(APPLE, LLAMA, "folder"), (LINUX, BOTH, "folder"), (LINUX, BOTH, "org/name"), (LINUX, MLX, "bundled")],
    ],
    "llama": [
        *[(APPLE, BOTH, "m.gguf"), (APPLE, LLAMA, "bundled"), (INTEL, BOTH, "bundled"), (LINUX, NEITHER, "bundled")],
        *[(LINUX, BOTH, model) for model in ("bundled", "m.gguf", "file")],
    ],
}


@pytest.mark.parametrize(
    ("machine", "installed", "model", "engine"), [(*case, engine) for engine in CHOICES for case in CHOICES[engine]]
)
def test_auto(monkeypatch, tmp_path, machine, installed, model, engine):
    monkeypatch.setattr(sys, "platform", machine[0])
    monkeypatch.setattr(platform, "machine", lambda: machine[1])
    monkeypatch.setattr(load, "_installed", lambda *names: {name.removesuffix("_lm") for name in names} <= installed)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    chosen, why = load.choose_engine(model)
    assert chosen == engine
    assert why


@pytest.mark.fault("E7.82")
def test_a_gpu_required_but_forbidden():
    with pytest.raises(ConfigError, match="--gpu-layers"):
        load.load_drafter(ModelSettings("mlx", "x", gpu_layers=0, gpu_required=True), lambda _: True)
