"""Write the pair: two GGUF files for llama.cpp and a Hugging Face folder for MLX.

GGUF's `llama` architecture rotates neighbouring pairs of a head, Hugging Face's rotates its two
halves, so the rows of the query and key matrices are reordered on the way out (`interleave`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from pair.model import Llama, Shape
from pair.vocab import END_ID

_URL = "https://docs.python.org/3/library/"
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def interleave(weight: Tensor, heads: int) -> Tensor:
    """Reorder (H * E, D) rows from halves (2, E / 2) to neighbours (E / 2, 2) in each head."""
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def gguf_tensors(model: Llama) -> dict[str, NDArray[Any]]:
    """Return arrays by GGUF's names: matrices in half precision, gains in single."""
    state = model.state_dict()
    out = {
        "token_embd.weight": state["embed.weight"],
        "output_norm.weight": state["norm.weight"],
    }
    for index in range(model.shape.layers):
        for ours, theirs in _GGUF_LAYER.items():
            weight = state[f"layers.{index}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = interleave(weight, model.shape.heads)
            out[f"blk.{index}.{theirs}.weight"] = weight
    arrays: dict[str, NDArray[Any]] = {}
    for name, weight in out.items():
        kind = np.float16 if weight.ndim == 2 else np.float32
        arrays[name] = weight.numpy().astype(kind)
    return arrays


def _describe(writer: gguf.GGUFWriter, name: str, text: str) -> None:
    writer.add_name(name)
    writer.add_description(text)
    writer.add_license("MIT")
    writer.add_license_name("MIT; trained on source text under the PSF licence")
    writer.add_source_url(_URL)
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "python", "speculative-decoding"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.eps)


def _vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[END_ID] = gguf.TokenType.CONTROL
    merges: list[str] = []
    for merge in model["merges"]:
        merges.append(merge if isinstance(merge, str) else " ".join(merge))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(END_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def write_gguf(model: Llama, tokenizer: Tokenizer, path: Path, name: str, text: str) -> None:
    """Write one model; a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, "llama")
    _describe(writer, name, text)
    _sizes(writer, model.shape)
    _vocabulary(writer, tokenizer)
    for tensor, array in gguf_tensors(model).items():
        writer.add_tensor(tensor, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(path)


def hf_tensors(model: Llama) -> dict[str, Tensor]:
    """Return half-precision tensors by Hugging Face's names, without the tied output matrix."""
    out: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        theirs = re.sub(r"\.(gate|up|down)_proj", r".mlp.\1_proj", name)
        theirs = theirs.replace("embed.weight", "embed_tokens.weight")
        half = weight.to(torch.float16)
        out[f"model.{theirs}"] = half.contiguous()
    return out


def hf_config(shape: Shape) -> dict[str, object]:
    """Return `config.json` of a Llama of this shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "torch_dtype": "float16",
    }


def _put(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_hf(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder that `mlx_lm` and `transformers` load."""
    folder.mkdir(parents=True, exist_ok=True)
    end = tokenizer.id_to_token(END_ID)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.shape.context,
        "eos_token": end,
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
    }
    path = folder / "model.safetensors"
    temporary = path.with_suffix(".tmp")
    save_file(hf_tensors(model), temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    temporary.replace(path)
    texts = {
        "config.json": json.dumps(hf_config(model.shape), indent=2),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "tokenizer.json": tokenizer.to_str(pretty=False),
    }
    for name, text in texts.items():
        _put(folder / name, f"{text}\n")


def write_pair(target: Llama, drafter: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write everything that the package bundles."""
    folder.mkdir(parents=True, exist_ok=True)
    about = "Trained on the Python standard library's own source"
    path = folder / "target.gguf"
    write_gguf(target, tokenizer, path, "specmesh target 5M", f"{about}; verifier.")
    path = folder / "drafter.gguf"
    about = f"{about}; distilled from the specmesh target, whose drafts it makes."
    write_gguf(drafter, tokenizer, path, "specmesh drafter 0.8M", about)
    write_hf(drafter, tokenizer, folder / "drafter-hf")
