"""Which engine `auto` means, and what `bundled` stands for."""

import platform
import sys
from pathlib import Path

import pytest

from specmesh.engines import load

APPLE, LINUX, INTEL = ("darwin", "arm64"), ("linux", "x86_64"), ("darwin", "x86_64")
BOTH = {"llama_cpp", "mlx_lm"}


@pytest.mark.parametrize(
    ("machine", "installed", "model", "engine"),
    [
        (APPLE, BOTH, None, "ngram"),
        (APPLE, BOTH, "bundled", "mlx"),
        (APPLE, {"llama_cpp"}, "bundled", "llama"),
        (INTEL, BOTH, "bundled", "llama"),
        (LINUX, BOTH, "bundled", "llama"),
        (LINUX, {"mlx_lm"}, "bundled", "mlx"),
        (LINUX, (), "bundled", "llama"),
        *[(machine, BOTH, model, "mlx") for machine in (APPLE, LINUX) for model in ("folder", "org/name")],
        *[(machine, BOTH, model, "llama") for machine in (APPLE, LINUX) for model in ("m.gguf", "file")],
    ],
)
def test_auto(monkeypatch, tmp_path, machine, installed, model, engine):
    monkeypatch.setattr(sys, "platform", machine[0])
    monkeypatch.setattr(platform, "machine", lambda: machine[1])
    monkeypatch.setattr(load, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    assert load.choose_engine(model) == engine
