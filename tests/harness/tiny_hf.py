"""Writes small Hugging Face directories with random weights, for MLX to load."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, quantize_model

from harness.tiny_gguf import byte_alphabet

WIDTH, N_VOCAB = 64, 320
WINDOW = 16

BASE = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = BASE | {"num_key_value_heads": 2, "head_dim": 16}
NORMS = {"rms_norm_eps": 1e-5, "rope_theta": 10000.0}
LLAMA = (
    BASE | NORMS | {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": False}
)
EXPERTS = (
    "num_experts",
    "num_experts_per_tok",
    "shared_expert_intermediate_size",
    "moe_intermediate_size",
)
HYBRID = GROUPED | NORMS | dict.fromkeys(EXPERTS, 0)
HYBRID |= {"model_type": "qwen3_next", "linear_num_value_heads": 4, "linear_num_key_heads": 2}
HYBRID |= {"linear_conv_kernel_dim": 4} | dict.fromkeys(
    ("linear_key_head_dim", "linear_value_head_dim"), 32
)
HYBRID |= {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "partial_rotary_factor": 0.5,
    "full_attention_interval": 2,
}
SLIDING = GROUPED | {"model_type": "gemma3_text", "query_pre_attn_scalar": 16}
SLIDING |= {"sliding_window": WINDOW, "sliding_window_pattern": 2}
KINDS = {"llama": LLAMA, "hybrid": HYBRID, "sliding": SLIDING}


def write(folder: Path, kind: str, *, seed: int = 0, quantised: bool = False) -> Path:
    """Write a model of a kind named in KINDS, float32, with the vocabulary of tiny_gguf.py; returns `folder`."""
    config = KINDS[kind] | {
        "vocab_size": N_VOCAB,
        "max_position_embeddings": 512,
        "eos_token_id": 260,
    }
    config, weights = _random(config, seed, quantised)
    return _save(folder, config, weights, _tiny_tokenizer())


def _random(
    config: dict[str, Any], seed: int, quantised: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    rng = np.random.default_rng(seed)
    model.load_weights(
        [
            (name, mx.array(_values(values, rng)))
            for name, values in tree_flatten(model.parameters())
        ]
    )
    if quantised:
        model, config = quantize_model(model, config, group_size=64, bits=8)
    return config, {name: np.array(values) for name, values in tree_flatten(model.parameters())}


def _values(like: Any, rng: np.random.Generator) -> Any:
    if like.ndim < 2:
        return np.array(like.astype(mx.float32))
    return rng.standard_normal(like.shape, np.float32) * np.float32(
        2.0 / np.sqrt(np.prod(like.shape[1:]))
    )


def _save(
    folder: Path, config: dict[str, Any], weights: dict[str, Any], tokenizer: dict[str, Any]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    from safetensors.numpy import save_file  # noqa: PLC0415 - comes with mlx-lm

    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    for name, content in (
        ("config", config),
        ("tokenizer", tokenizer),
        ("tokenizer_config", settings),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def _tiny_tokenizer() -> dict[str, Any]:
    """tokenizer.json of tests/harness/tiny_gguf.py's vocabulary; rows from 262 on stand for nothing."""
    normal = [*byte_alphabet(), "he", "ll", "th", "the"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = (
        {"id": 260, "content": "<|end|>", "special": True},
        {"id": 261, "content": "<tool>", "special": False},
    )
    merges = [["h", "e"], ["l", "l"], ["t", "h"], ["th", "e"]]
    return {
        "version": "1.0",
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "added_tokens": [one | flags for one in added],
        "model": {
            "type": "BPE",
            "vocab": {text: token for token, text in enumerate(normal)},
            "merges": merges,
        },
    }
