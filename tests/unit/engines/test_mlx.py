"""MLX as drafter: the vocabulary of a model is llama.cpp's of the same, and models that cannot be used are refused."""

from collections.abc import Callable
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from specmesh.config import ModelSettings
from specmesh.engines.llama import LlamaVerifier
from specmesh.errors import ConfigError

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
pytest.importorskip("llama_cpp")

from specmesh.engines.mlx import MlxDrafter

pytestmark = pytest.mark.models

MODELS = Path(str(files("specmesh") / "models"))


def opened(folder: Path) -> MlxDrafter:
    return MlxDrafter(ModelSettings("mlx", str(folder), 256, 1, gpu_layers=-1))


@pytest.mark.fault("E7.78")
@pytest.mark.parametrize("kind", ["tiny", "bundled"])
def test_same_vocabulary(make_gguf: Callable[..., Path], make_hf: Callable[..., Path], kind: str):
    """One model as GGUF in llama.cpp and as Hugging Face directory in MLX."""
    path, folder = MODELS / "drafter.gguf", MODELS / "drafter-hf"
    if kind == "tiny":
        path = make_gguf("two-formats", seed=9)
        folder = make_hf("two-formats", gguf=path)
    target = LlamaVerifier(ModelSettings("llama", str(path), ctx=256, max_sessions=1, threads=1))
    with closing(target), closing(opened(folder)) as drafter:
        assert drafter.vocabulary == target.vocabulary


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("file", "is a file"),
        ("no weights", "could not be loaded"),
        ("half the weights", "could not be loaded"),
        ("architecture", "could not be loaded"),
        ("tokenizer", "could not be loaded"),
    ],
)
def test_unusable_models(make_hf: Callable[..., Path], damage: str, says: str):
    folder = make_hf(f"bad-{damage.replace(' ', '-')}", "llama")
    weights, config = folder / "model.safetensors", folder / "config.json"
    match damage:
        case "file":
            folder = weights
        case "no weights":
            weights.unlink()
        case "half the weights":
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        case "architecture":
            config.write_text(config.read_text().replace('"llama"', '"llama-of-tomorrow"'))
        case "tokenizer":
            (folder / "tokenizer.json").write_text("[]")
    with pytest.raises(ConfigError, match=says) as caught:
        opened(folder)
    assert folder.name in str(caught.value)
    assert "\n" not in str(caught.value)
