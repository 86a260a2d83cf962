"""Writes small GGUF models with random weights, so that tests run models nobody has seen before."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

EOS = b"<|end|>"
USER_DEFINED = b"<tool>"
HEAD = 16
STATE = 16
RANK = 4
KERNEL = 4
GROUPS = 2
WINDOW = 32
"""Ids that a layer with a sliding window attends to."""
SMALL = 0.02
"""Share of the usual weights with which layers change their input, in a model that drafts.

So the next id depends mostly on the last one, and is learnt from few texts.
"""

MERGES = (("h", "e"), ("l", "l"), ("t", "h"), ("th", "e"))


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A model to write.

    arch: "llama"; or one with layers whose state cannot be cut: "mamba" has only those, "lfm2" and
    "qwen35" have attention in every second layer. "gemma3" has a sliding window in every first of
    two layers. "mimo2", "step35" and "glm4moe" are plain transformers, the last one with experts.
    nextn: layers that draft, after the others; of "qwen35" and those three. words: so many of
    the unused ids are tokens with text. foreign: so many of those, the last ones, have other
    texts than usual. permute: seed of a permutation of all ids, with their weights, for the
    same function of the text; 0: none. chat: the chat template; empty: none. pre: how text is
    split before it is tokenized, by llama.cpp's name. experts: so many share each layer's
    forward pass, two at a time; 0: there are none. head: width of an attention head. rope: the
    kind of RoPE scaling, by a factor of 4; empty: none.
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
    experts: int = 0
    head: int = HEAD
    rope: str = ""
    nextn: int = 0

    def order(self) -> list[int]:
        """For each id the one it has without `permute`."""
        if not self.permute:
            return list(range(self.n_vocab))
        rng = np.random.default_rng(self.permute)
        ids: list[int] = rng.permutation(self.n_vocab).tolist()
        return ids


def write(
    path: Path, model: TinyModel, fixed: dict[str, NDArray[np.float32]] | None = None
) -> Path:
    """Write a model; fixed: tensors by name whose values are not random."""
    fixed = fixed or {}
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_file_type(0)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers + model.nextn)
    if model.nextn:
        writer.add_nextn_predict_layers(model.nextn)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(model.n_vocab)
    _add_vocabulary(writer, model)
    _add_shape(writer, model)
    rng = np.random.default_rng(model.seed)
    order = model.order()

    def weights(*shape: int) -> NDArray[np.float32]:
        scale = np.float32(2.0 / np.sqrt(shape[-1]))
        return rng.standard_normal(shape, np.float32) * scale

    writer.add_tensor("token_embd.weight", weights(model.n_vocab, model.width)[order])
    norm = "token_embd_norm" if model.arch == "lfm2" else "output_norm"
    writer.add_tensor(f"{norm}.weight", np.ones(model.width, np.float32))
    writer.add_tensor("output.weight", weights(model.n_vocab, model.width)[order])
    for layer in range(model.layers + model.nextn):
        if model.experts:
            for name, *shape in _experts(model):
                values = weights(*shape)
                if model.nextn and name.startswith("ffn_down"):
                    values *= np.float32(SMALL)
                writer.add_tensor(f"blk.{layer}.{name}", values)
        if model.arch == "glm4moe":
            bias = np.zeros(model.experts, np.float32)
            writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", bias)
        for name, rows, columns in _tensors(model, layer):
            values = weights(rows, columns) if columns else np.ones(rows, np.float32)
            if model.nextn and name.startswith(("attn_output", "ffn_down", "ssm_out")):
                values *= np.float32(SMALL)
            full = f"blk.{layer}.{name}"
            writer.add_tensor(full, fixed.get(full, values))
        if model.arch == "mamba":
            decay = -np.ones((2 * model.width, STATE), np.float32)
            writer.add_tensor(f"blk.{layer}.ssm_a", decay)
        elif model.arch == "qwen35" and layer % 2 == 0 and layer < model.layers:
            writer.add_tensor(f"blk.{layer}.ssm_a", -np.ones(RANK, np.float32))
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
    tokens = [*byte_alphabet(), *map("".join, MERGES)]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    eos = len(tokens)
    tokens += [EOS.decode(), USER_DEFINED.decode()]
    types += [gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED]
    usual = model.words - model.foreign
    tokens += [f"w{index:02}" for index in range(usual)]
    tokens += [f"x{index:02}" for index in range(usual, model.words)]
    types += [gguf.TokenType.NORMAL] * model.words
    unused = model.n_vocab - len(tokens)
    tokens += [f"<unused{index}>" for index in range(unused)]
    types += [gguf.TokenType.UNUSED] * unused
    order = model.order()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(model.pre)
    writer.add_token_list([tokens[i] for i in order])
    writer.add_token_types([types[i] for i in order])
    writer.add_token_merges(list(map(" ".join, MERGES)))
    writer.add_eos_token_id(order.index(eos))
    writer.add_add_bos_token(False)
    if model.chat:
        writer.add_chat_template(model.chat)


def _add_shape(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    inner = 2 * model.width
    if model.arch == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(inner)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANK)
        return
    heads = model.width // model.head
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_rope_dimension_count(model.head)
    if model.experts:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(2)
    if model.rope:
        writer.add_rope_scaling_type(gguf.RopeScalingType(model.rope))
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(model.n_ctx // 4)
    if model.arch == "lfm2":
        writer.add_head_count_kv([heads * (layer % 2) for layer in range(model.layers)])
        writer.add_shortconv_l_cache(KERNEL)
        return
    writer.add_head_count_kv(heads)
    if model.arch == "gemma3":
        _add_head(writer, model.head)
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(model.layers)])
    elif model.arch in ("mimo2", "step35"):
        _add_head(writer, model.head)
        blocks = range(model.layers + model.nextn)
        writer.add_sliding_window(model.n_ctx)
        writer.add_sliding_window_pattern([block >= model.layers for block in blocks])
        writer.add_expert_feed_forward_length(inner)
    elif model.arch == "glm4moe":
        _add_head(writer, model.head)
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(inner)
    elif model.arch == "qwen35":
        _add_head(writer, model.head)
        writer.add_rope_dimension_sections([2, 3, 3, 0])
        writer.add_full_attention_interval(2)
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(RANK * STATE)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANK)
        writer.add_ssm_group_count(GROUPS)


def _add_head(writer: gguf.GGUFWriter, width: int) -> None:
    writer.add_key_length(width)
    writer.add_value_length(width)


def _tensors(model: TinyModel, layer: int) -> list[tuple[str, int, int]]:
    """Return name, rows and columns of a layer's tensors; without columns it is ones."""
    width = model.width
    inner = 2 * model.width
    if model.arch == "mamba":
        convolution = [("ssm_conv1d.weight", inner, KERNEL), ("ssm_conv1d.bias", inner, 0)]
        steps = [
            ("ssm_x.weight", RANK + 2 * STATE, inner),
            ("ssm_dt.weight", inner, RANK),
            ("ssm_dt.bias", inner, 0),
        ]
        ways = [("ssm_in.weight", 2 * inner, width), *convolution, *steps, ("ssm_d", inner, 0)]
        return [("attn_norm.weight", width, 0), *ways, ("ssm_out.weight", width, inner)]
    names = ("q", "k", "v", "output")
    mixed = [(f"attn_{name}.weight", width, width) for name in names]
    if model.arch == "lfm2":
        mixed += [("attn_q_norm.weight", model.head, 0), ("attn_k_norm.weight", model.head, 0)]
        if layer % 2 == 0:
            mixed = [("shortconv.conv.weight", width, KERNEL)]
            mixed += [
                ("shortconv.in_proj.weight", 3 * width, width),
                ("shortconv.out_proj.weight", width, width),
            ]
    if model.arch in ("gemma3", "qwen35"):
        mixed += [("attn_q_norm.weight", model.head, 0), ("attn_k_norm.weight", model.head, 0)]
    after = "ffn_norm"
    if model.arch in ("qwen35", "glm4moe"):
        after = "post_attention_norm"
    if model.arch == "gemma3":
        mixed += [("post_attention_norm.weight", width, 0), ("post_ffw_norm.weight", width, 0)]
    if model.arch == "qwen35":
        mixed[0] = ("attn_q.weight", 2 * width, width)  # a gate for each of its rows
        if layer % 2 == 0 and layer < model.layers:
            mixed = _delta_net(width)
    if model.arch == "mimo2":
        mixed = [("attn_qkv.weight", 3 * width, width), mixed[-1]]
    forward = [
        ("ffn_gate.weight", inner, width),
        ("ffn_up.weight", inner, width),
        ("ffn_down.weight", width, inner),
    ]
    if model.experts:
        forward = []
    if model.arch == "glm4moe":
        forward = [
            ("ffn_gate_shexp.weight", inner, width),
            ("ffn_up_shexp.weight", inner, width),
            ("ffn_down_shexp.weight", width, inner),
        ]
    if layer >= model.layers:
        forward += [
            ("nextn.eh_proj.weight", width, 2 * width),
            ("nextn.enorm.weight", width, 0),
            ("nextn.hnorm.weight", width, 0),
        ]
    return [("attn_norm.weight", width, 0), *mixed, (f"{after}.weight", width, 0), *forward]


def _delta_net(width: int) -> list[tuple[str, int, int]]:
    """Return the tensors of a gated delta net."""
    value = RANK * STATE
    mixed = 2 * GROUPS * STATE + value
    return [
        ("attn_qkv.weight", mixed, width),
        ("attn_gate.weight", value, width),
        ("ssm_conv1d.weight", mixed, KERNEL),
        ("ssm_dt.bias", RANK, 0),
        ("ssm_beta.weight", RANK, width),
        ("ssm_alpha.weight", RANK, width),
        ("ssm_norm.weight", STATE, 0),
        ("ssm_out.weight", width, value),
    ]


def _experts(model: TinyModel) -> list[tuple[str, *tuple[int, ...]]]:
    """Return name and shape of the tensors by which a layer's experts are chosen and run."""
    width = model.width
    inner = 2 * model.width
    return [
        ("ffn_gate_inp.weight", model.experts, width),
        ("ffn_gate_exps.weight", model.experts, inner, width),
        ("ffn_up_exps.weight", model.experts, inner, width),
        ("ffn_down_exps.weight", model.experts, width, inner),
    ]


@dataclass(frozen=True, kw_only=True)
class TinyAdapter:
    """A LoRA adapter to write.

    factors: name of a weight, the shapes of A and of B, in numpy's order; an empty one is left
    out. The rest are values of the header.
    """

    seed: int = 0
    factors: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
        ("blk.0.attn_q.weight", (RANK, 64), (64, RANK)),
        ("blk.1.ffn_down.weight", (RANK, 128), (64, RANK)),
        ("token_embd.weight", (320, RANK), (64, RANK)),
    )
    arch: str = "llama"
    type: str = "adapter"
    kind: str = "lora"
    alpha: float | str | None = 2.0 * RANK


def write_adapter(path: Path, adapter: TinyAdapter) -> Path:
    writer = gguf.GGUFWriter(path, adapter.arch)
    writer.add_type(adapter.type)
    writer.add_string("adapter.type", adapter.kind)
    if isinstance(adapter.alpha, str):
        writer.add_string("adapter.lora.alpha", adapter.alpha)
    elif adapter.alpha is not None:
        writer.add_float32("adapter.lora.alpha", adapter.alpha)
    rng = np.random.default_rng(adapter.seed)
    for name, first, second in adapter.factors:
        for end, shape in (("lora_a", first), ("lora_b", second)):
            if shape:
                values = rng.standard_normal(shape, np.float32) * np.float32(0.2)
                writer.add_tensor(f"{name}.{end}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
