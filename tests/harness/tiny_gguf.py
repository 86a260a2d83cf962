"""Writes small GGUF models with random weights, so that tests run models nobody has seen before."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

EOS = b"<|end|>"
USER_DEFINED = b"<tool>"
HEAD, STATE, RANK, KERNEL = 16, 16, 4, 4
_MERGES = (("h", "e"), ("l", "l"), ("t", "h"), ("th", "e"))


@dataclass(frozen=True)
class TinyModel:
    """What to write.

    arch:   "llama"; or one with layers whose state cannot be cut: "mamba" has nothing else, "lfm2" an attention
            layer between two short convolutions.
    words:    that many of the unused ids are tokens with text instead, and
    foreign:  that many of those, the last ones, are other texts than usual.
    permute:  seed of a permutation of all ids, with their weights: the same function of the text; 0: none.
    chat:     the chat template; empty: none.
    pre:      how text is split before it is tokenized, by llama.cpp's name.
    """

    seed: int = 0
    n_vocab: int = 320
    layers: int = 2
    width: int = 64
    n_ctx: int = 512
    arch: str = "llama"
    words: int = 0
    foreign: int = 0
    permute: int = 0
    chat: str = ""
    pre: str = "gpt-2"

    def order(self) -> list[int]:
        """For each id the one it has without `permute`."""
        ids = np.arange(self.n_vocab)
        return [int(i) for i in (np.random.default_rng(self.permute).permutation(ids) if self.permute else ids)]


def write(path: Path, model: TinyModel) -> Path:
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_file_type(0)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(model.n_vocab)
    _add_vocabulary(writer, model)
    weights = _Weights(writer, np.random.default_rng(model.seed))
    weights.by_id("token_embd", model)
    weights.ones("token_embd_norm" if model.arch == "lfm2" else "output_norm", model.width)
    weights.by_id("output", model)
    _LAYERS[model.arch](writer, weights, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_alphabet() -> list[str]:
    """The printable character that a GPT-2 style vocabulary writes for each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in visible else next(spare)) for byte in range(256)]


def _add_vocabulary(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    normal = [*byte_alphabet(), *("".join(merge) for merge in _MERGES)]
    special = [EOS.decode(), USER_DEFINED.decode()]
    words = [f"{'w' if index < model.words - model.foreign else 'x'}{index:02}" for index in range(model.words)]
    unused = [f"<unused{index}>" for index in range(model.n_vocab - len(normal) - len(special) - len(words))]
    types = [gguf.TokenType.NORMAL] * len(normal) + [gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED]
    types += [gguf.TokenType.NORMAL] * len(words) + [gguf.TokenType.UNUSED] * len(unused)
    tokens, order = [*normal, *special, *words, *unused], model.order()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(model.pre)
    writer.add_token_list([tokens[i] for i in order])
    writer.add_token_types([types[i] for i in order])
    writer.add_token_merges([" ".join(merge) for merge in _MERGES])
    writer.add_eos_token_id(order.index(len(normal)))
    writer.add_add_bos_token(False)
    if model.chat:
        writer.add_chat_template(model.chat)


def _add_llama(writer: gguf.GGUFWriter, weights: "_Weights", model: TinyModel) -> None:
    heads = model.width // HEAD
    writer.add_feed_forward_length(model.width * 2)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(HEAD)
    for layer in range(model.layers):
        weights.ones(f"blk.{layer}.attn_norm", model.width)
        _add_attention(weights, model, layer)
        _add_feed_forward(weights, model, layer)


def _add_mamba(writer: gguf.GGUFWriter, weights: "_Weights", model: TinyModel) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_inner_size(model.width * 2)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    for layer in range(model.layers):
        inner, block = model.width * 2, f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", model.width)
        weights.matrix(f"{block}.ssm_in", 2 * inner, model.width)
        weights.matrix(f"{block}.ssm_conv1d", inner, KERNEL)
        weights.ones(f"{block}.ssm_conv1d", inner, suffix="bias")
        weights.matrix(f"{block}.ssm_x", RANK + 2 * STATE, inner)
        weights.matrix(f"{block}.ssm_dt", inner, RANK)
        weights.ones(f"{block}.ssm_dt", inner, suffix="bias")
        weights.tensor(f"{block}.ssm_a", -np.ones((inner, STATE), np.float32))
        weights.tensor(f"{block}.ssm_d", np.ones(inner, np.float32))
        weights.matrix(f"{block}.ssm_out", model.width, inner)


def _add_lfm2(writer: gguf.GGUFWriter, weights: "_Weights", model: TinyModel) -> None:
    writer.add_feed_forward_length(model.width * 2)
    writer.add_head_count(model.width // HEAD)
    writer.add_head_count_kv([model.width // HEAD * (layer % 2) for layer in range(model.layers)])
    writer.add_rope_dimension_count(HEAD)
    writer.add_shortconv_l_cache(KERNEL)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", model.width)
        if layer % 2:
            _add_attention(weights, model, layer)
            weights.ones(f"{block}.attn_q_norm", HEAD)
            weights.ones(f"{block}.attn_k_norm", HEAD)
        else:
            weights.matrix(f"{block}.shortconv.conv", model.width, KERNEL)
            weights.matrix(f"{block}.shortconv.in_proj", 3 * model.width, model.width)
            weights.matrix(f"{block}.shortconv.out_proj", model.width, model.width)
        _add_feed_forward(weights, model, layer)


def _add_attention(weights: "_Weights", model: TinyModel, layer: int) -> None:
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        weights.matrix(f"blk.{layer}.{name}", model.width, model.width)


def _add_feed_forward(weights: "_Weights", model: TinyModel, layer: int) -> None:
    hidden = model.width * 2
    weights.ones(f"blk.{layer}.ffn_norm", model.width)
    weights.matrix(f"blk.{layer}.ffn_gate", hidden, model.width)
    weights.matrix(f"blk.{layer}.ffn_up", hidden, model.width)
    weights.matrix(f"blk.{layer}.ffn_down", model.width, hidden)


class _Weights:
    def __init__(self, writer: gguf.GGUFWriter, rng: np.random.Generator) -> None:
        self._writer = writer
        self._rng = rng

    def matrix(self, name: str, rows: int, columns: int) -> None:
        self.tensor(f"{name}.weight", self._random(rows, columns))

    def by_id(self, name: str, model: TinyModel) -> None:
        """A matrix with a row for each id, in the order of the ids."""
        self.tensor(f"{name}.weight", self._random(model.n_vocab, model.width)[model.order()])

    def _random(self, rows: int, columns: int) -> NDArray[np.float32]:
        return self._rng.standard_normal((rows, columns), np.float32) * np.float32(2.0 / np.sqrt(columns))

    def ones(self, name: str, size: int, suffix: str = "weight") -> None:
        self.tensor(f"{name}.{suffix}", np.ones(size, np.float32))

    def tensor(self, name: str, values: NDArray[np.float32]) -> None:
        self._writer.add_tensor(name, values)


_LAYERS = {"llama": _add_llama, "mamba": _add_mamba, "lfm2": _add_lfm2}
