"""The padded target: large layers that are read and multiplied, and add nothing."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from specmesh.core.events import Span
from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.paths import bundled

gguf = pytest.importorskip("gguf")

BENCH = Path(__file__).parents[3] / "bench"
PROMPT = "def __init__(self, name):\n    self."


@pytest.fixture(scope="module")
def padded():
    spec = importlib.util.spec_from_file_location("padded_model", BENCH / "padded_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.models
@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_same_function(padded, tmp_path, kind):
    """Logits after a prompt are the original's but for rounding, and so is what a greedy text continues with."""
    pytest.importorskip("llama_cpp")
    layer = padded.Layer(512, hidden=768, heads=8, heads_kv=2, count=3)
    path = padded.write(tmp_path / "padded.gguf", layer, kind, Path(bundled("target.gguf")))
    ids, expected = greedy(Path(bundled("target.gguf")))
    same_ids, logits = greedy(path)
    assert same_ids == ids
    assert np.abs(logits - expected).max() < 0.05


def greedy(path, tokens=12):
    """(ids, their logits) of a greedy text."""
    engine = LlamaVerifier(LlamaSettings(path, n_ctx=256, threads=1, gpu_layers=0))
    try:
        ids, rows = engine.encode(PROMPT), []
        start = len(ids)
        engine.decode([Span(0, 0, tuple(ids[:-1]), logits=False)])
        for position in range(start - 1, start - 1 + tokens):
            rows.append(engine.decode([Span(0, position, (ids[-1],), logits=True)])[0][0].copy())
            ids.append(int(rows[-1].argmax()))
        return ids[start:], np.stack(rows)
    finally:
        engine.close()
