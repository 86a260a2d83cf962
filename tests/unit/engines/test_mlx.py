"""MLX as drafter: vocabularies, compared with llama.cpp's, unusable models, errors."""

import shutil
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from structlog.testing import capture_logs

from specmesh.config import ModelSettings
from specmesh.core.kv_orders import KVCut
from specmesh.engines.base import Ask
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.errors import ConfigError, EngineError

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
pytest.importorskip("llama_cpp")

from safetensors.numpy import load_file, save_file

from specmesh.engines.mlx import model, sequence
from specmesh.engines.mlx.drafter import MlxDrafter

pytestmark = pytest.mark.models

MODELS = Path(str(files("specmesh") / "models"))


def settings(engine, path, **changes):
    return ModelSettings(engine=engine, model=str(path), ctx=256, max_sessions=1, **changes)


def opened(folder, gpu_layers=-1, **changes):
    return MlxDrafter(settings("mlx", folder, gpu_layers=gpu_layers, **changes))


@pytest.mark.fault("E7.82")
def test_the_cpu_instead_of_a_gpu(monkeypatch):
    """A GPU that was asked for is warned of; a required one is an error."""
    mx = import_module("mlx.core")
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu, 0))
    folder = MODELS / "drafter-hf"
    for gpu_layers, count in ((None, 0), (-1, 1)):
        with capture_logs() as told:
            opened(folder, gpu_layers).close()
        assert [one["event"] for one in told].count("no_gpu") == count
    with pytest.raises(ConfigError, match="--require-gpu"):
        opened(folder, None, require_gpu=True)


def test_reading_the_weights_is_reported():
    """As shares that grow up to the whole."""
    shares = []
    MlxDrafter(settings("mlx", MODELS / "drafter-hf"), shares.append).close()
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.fault("E7.78")
@pytest.mark.parametrize("kind", ["tiny", "bundled"])
def test_same_vocabulary(make_gguf, make_hf, kind):
    """One model as GGUF in llama.cpp and as Hugging Face directory in MLX."""
    path, folder = MODELS / "drafter.gguf", MODELS / "drafter-hf"
    if kind == "tiny":
        path = make_gguf("two-formats", seed=9)
        folder = make_hf("two-formats", gguf=path)
    target = LlamaVerifier(settings("llama", path, threads=1))
    with closing(target), closing(opened(folder)) as drafter:
        assert drafter.vocabulary == target.vocabulary


def refused(folder, says):
    with pytest.raises(ConfigError, match=says) as caught:
        opened(folder)
    assert folder.name in caught.value.what
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("model.safetensors", lambda raw: raw[: len(raw) // 2]),
        ("config.json", lambda raw: raw.replace(b'"llama"', b'"llama-of-tomorrow"')),
        ("tokenizer.json", lambda _: b"[]"),
    ],
)
def test_unusable_models(make_hf, name, damaged):
    """A damaged file, and then none."""
    folder = make_hf(f"bad-{name}", "llama")
    path = folder / name
    refused(path, "is a file")
    path.write_bytes(damaged(path.read_bytes()))
    refused(folder, "could not be loaded")
    path.unlink()
    refused(folder, "could not be loaded")


@pytest.mark.parametrize("part", ["embed_tokens", "q_proj", "input_layernorm"])
def test_weights_in_fp8(make_hf, part):
    folder = make_hf(f"fp8-{part}", "llama")
    store_as_fp8(folder / "model.safetensors", part)
    refused(folder, f"in FP8 .*{part}.weight")


def test_weights_of_two_models_in_one_folder(make_hf):
    folder = make_hf("twice", "llama")
    path = folder / "model.safetensors"
    shutil.copyfile(path, folder / "model-00001-of-00001.safetensors")
    refused(folder, "weights twice: .* in model-00001-of-00001.safetensors and in model.safeten")
    path.unlink()
    opened(folder).close()


def store_as_fp8(path, part):
    """Have the weights with this part of a name be ones in FP8 (E4M3)."""
    weights = load_file(path)
    for name in weights:
        if part in name:
            weights[name] = np.full_like(weights[name], 0x38, np.uint8)
    save_file(weights, path, {"format": "mlx"})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(b'"U8"', b'"F8_E4M3"')
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])


@pytest.mark.parametrize(
    "trouble", [RuntimeError("no memory\nleft"), KeyError("gate"), IndexError()], ids=repr
)
@pytest.mark.parametrize("step", ["feed", "trim"])
def test_whatever_mlx_raises(make_hf, monkeypatch, step, trouble):
    """It is an EngineError of one line; the sequence is empty then, and can be used again."""

    fail = Mock(side_effect=trouble)
    refusal = rf"^MLX cannot run this model: {type(trouble).__name__}.*$"
    with closing(opened(make_hf("breaks"))) as drafter:
        drafter.predict([Ask(0, (5, 6, 7), None)])
        if step == "trim":
            monkeypatch.setattr(sequence.Caches, "cut", fail)
            steps = partial(drafter.carry_out, KVCut(0, 1))
        else:
            monkeypatch.setattr(sequence, "mx", Mock(array=fail))
            steps = partial(drafter.predict, [Ask(0, (8,), None)])
        with pytest.raises(EngineError, match=refusal) as caught:
            steps()
        assert "\n" not in str(caught.value)
        monkeypatch.undo()
        drafter.predict([Ask(0, (5, 6), None)])
        assert drafter.carry_out(KVCut(0, 9)) == 2


def test_a_model_that_cannot_go_back(make_hf, monkeypatch):
    """As one with a cache that can neither be trimmed nor set back to a state."""
    monkeypatch.setattr(sequence.Caches, "cut", Mock(side_effect=AttributeError("no setter")))
    with pytest.raises(ConfigError, match=r"so it cannot draft: .* no setter"):
        opened(make_hf("breaks"))


def test_a_library_that_is_broken(make_hf, monkeypatch):
    """Whatever it raises as it is loaded."""
    folder = make_hf("fine")
    fail = Mock(side_effect=OSError("libmlx.so: no such file"))
    monkeypatch.setattr(model, "import_module", fail)
    with pytest.raises(ConfigError, match=r"libmlx.*pip install '\.\[mlx\]'"):
        opened(folder)
