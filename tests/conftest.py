"""Fixtures shared by all tests."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    """A helper module beside this file; test folders are no packages, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tiny random GGUF: make_gguf("name", seed=1, ...), options as tiny_gguf.TinyModel has."""
    pytest.importorskip("gguf")
    writer = _load("tiny_gguf")
    folder = tmp_path_factory.mktemp("gguf")

    def make(name: str, **options: object) -> Path:
        return Path(writer.write(folder / f"{name}.gguf", writer.TinyModel(**options)))

    return make


@pytest.fixture(scope="session")
def tiny_gguf(make_gguf: Callable[..., Path]) -> Path:
    """A Llama of two layers and 320 ids with random weights."""
    return make_gguf("tiny")


@pytest.fixture(scope="session")
def tiny_recurrent_gguf(make_gguf: Callable[..., Path]) -> Path:
    """A Mamba of two layers and 320 ids with random weights: it cannot be cut."""
    return make_gguf("tiny-recurrent", arch="mamba")
