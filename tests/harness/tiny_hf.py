"""Writes small Hugging Face directories with random weights, for MLX to load."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, quantize_model
from numpy.typing import NDArray

from harness.tables import rows
from harness.tiny_gguf import MERGES, byte_alphabet

Config = dict[str, Any]
Array = NDArray[np.float32]
Weights = dict[str, Array]

N_VOCAB = 320
WINDOW = 16
BASE, LLAMA, GROUPED, HYBRID, SLIDING = rows(
    """
{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
 "vocab_size": 320, "max_position_embeddings": 512, "eos_token_id": 260}
{"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": false,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
{"num_key_value_heads": 2, "head_dim": 16}
{"model_type": "qwen3_next", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "num_experts": 0, "num_experts_per_tok": 0, "shared_expert_intermediate_size": 0,
 "moe_intermediate_size": 0, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
 "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "partial_rotary_factor": 0.5,
 "full_attention_interval": 2}
{"model_type": "gemma3_text", "query_pre_attn_scalar": 16, "sliding_window": $WINDOW,
 "sliding_window_pattern": 2}
""",
    WINDOW=WINDOW,
)
KINDS = {
    "llama": BASE | LLAMA,
    "hybrid": BASE | GROUPED | HYBRID,
    "sliding": BASE | GROUPED | SLIDING,
}


def write(folder: Path, kind: str, *, quantised: bool = False, **changes: object) -> Path:
    """Write a model of a kind named in KINDS, float32, with the vocabulary of tiny_gguf.py.

    Returns `folder`. changes: of config.json; of more ids than N_VOCAB, the rest mean nothing.
    """
    config, weights = _random(KINDS[kind] | changes, quantised)
    return _save(folder, config, weights)


def _random(config: Config, quantised: bool) -> tuple[Config, Weights]:
    model_class, arguments = _get_classes(config)
    mx.random.seed(0)  # some parameters begin at random
    model = model_class(arguments.from_dict(config))
    rng = np.random.default_rng(0)
    shapes: Any = tree_flatten(model.parameters())
    weights = [(name, mx.array(_values(values, rng))) for name, values in shapes]
    model.load_weights(weights)
    if quantised:
        model, config = quantize_model(model, config, group_size=64, bits=8)
    parameters: Any = tree_flatten(model.parameters())
    return config, {name: np.array(values) for name, values in parameters}


def _values(like: Any, rng: np.random.Generator) -> Array:
    if like.ndim < 2:
        same: Array = np.array(like.astype(mx.float32))
        return same
    inputs = np.prod(like.shape[1:])
    values: Array = rng.standard_normal(like.shape, np.float32)
    return values * np.float32(2.0 / np.sqrt(inputs))


[TOKENIZER] = rows("""
{"version": "1.0",
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                   "use_regex": true},
 "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
             "use_regex": true},
 "added_tokens": [
    {"id": 260, "content": "<|end|>", "special": true, "single_word": false, "lstrip": false,
     "rstrip": false, "normalized": false},
    {"id": 261, "content": "<tool>", "special": false, "single_word": false, "lstrip": false,
     "rstrip": false, "normalized": false}]}
""")
"""tokenizer.json of tiny_gguf.py, without its vocabulary; ids from 262 on mean nothing."""


def _save(folder: Path, config: Config, weights: Weights) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    from safetensors.numpy import save_file  # noqa: PLC0415 - comes with mlx-lm

    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    pieces = [*byte_alphabet(), *map("".join, MERGES)]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": MERGES}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    files = {
        "config": config,
        "tokenizer": TOKENIZER | {"model": model},
        "tokenizer_config": settings,
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
