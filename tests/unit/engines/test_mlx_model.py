"""MLX models: how they are loaded, and which are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specmesh.errors import ConfigError

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

from specmesh.engines.mlx import MlxDrafter, MlxSettings  # noqa: E402

pytestmark = pytest.mark.models


def opened(folder: Path, **changes: Any) -> MlxDrafter:
    return MlxDrafter(MlxSettings(str(folder), **{"n_ctx": 256, "n_seq": 4} | changes))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("missing", "no model directory"),
        ("file", "is a file"),
        ("empty", "no config.json"),
        ("no weights", "could not be loaded"),
        ("half the weights", "could not be loaded"),
        ("config", "could not be loaded"),
        ("architecture", "could not be loaded"),
        ("tokenizer", "could not be loaded"),
        ("word pieces", "cannot draft"),
    ],
)
def test_unusable_models(make_hf: Callable[..., Path], tmp_path: Path, damage: str, says: str):
    folder = make_hf(f"bad-{damage.replace(' ', '-')}", "llama")
    weights, config = folder / "model.safetensors", folder / "config.json"
    match damage:
        case "missing":
            folder /= "elsewhere"
        case "file":
            folder = weights
        case "empty":
            folder = tmp_path
        case "no weights":
            weights.unlink()
        case "half the weights":
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        case "config":
            config.write_text("{")
        case "architecture":
            config.write_text(config.read_text().replace('"llama"', '"llama-of-tomorrow"'))
        case "tokenizer":
            (folder / "tokenizer.json").write_text("[]")
        case "word pieces":
            told = json.loads((folder / "tokenizer.json").read_text())
            told |= {"pre_tokenizer": None, "decoder": None}
            told["model"] = {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {"[UNK]": 0, "a": 1},
            }
            (folder / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=says) as caught:
        opened(folder)
    assert folder.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [{"n_seq": 0}, {"n_ctx": -1}, {"n_batch": 0}])
def test_unusable_settings(bad: dict[str, int]):
    with pytest.raises(ConfigError):
        MlxSettings("x", **bad)


@pytest.mark.fault("E7.82")
def test_a_gpu_that_is_not_there(make_hf: Callable[..., Path]):
    if mx.default_device().type == mx.gpu:
        pytest.skip("MLX has a GPU here")
    with pytest.raises(ConfigError, match="GPU"):
        opened(make_hf("own-llama", "llama", seed=5), device="gpu")
