"""Write the Llama of a GGUF file, weights and vocabulary, as a Hugging Face folder for MLX."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import DTypeLike, NDArray
from safetensors.numpy import save_file

Json = dict[str, Any]
Weights = dict[str, NDArray[Any]]

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
SIZES = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
}
"""Values of a GGUF file, by their names in config.json."""

BYTE_LEVEL: Json = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
PRE_TOKENIZERS: dict[str, Json] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
}
"""Ways to split text before it is tokenized, by llama.cpp's name."""


class Llama:
    """A GGUF file's weights and vocabulary in Hugging Face's names and order."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises ValueError for a model that is no Llama, or whose way of splitting text is not in
        PRE_TOKENIZERS.
        """
        self._reader = gguf.GGUFReader(path)
        architecture = self._value("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path} has the architecture {architecture}: only llama is known")
        self._pre = self._value("tokenizer.ggml.pre")
        if self._pre not in PRE_TOKENIZERS:
            raise ValueError(f"{path} splits text as {self._pre}: add it to PRE_TOKENIZERS")
        self._heads = int(self._value("llama.attention.head_count"))
        self._kv_heads = int(self._value("llama.attention.head_count_kv"))
        self._tokens: list[str] = self._value("tokenizer.ggml.tokens")

    def config(self) -> Json:
        """Return the contents of config.json."""
        names = {tensor.name for tensor in self._reader.tensors}
        config: Json = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        for name, value in SIZES.items():
            config[name] = self._value(value)
        config["num_attention_heads"] = self._heads
        config["num_key_value_heads"] = self._kv_heads
        config["rope_theta"] = self._value("llama.rope.freq_base", 10000.0)
        config["vocab_size"] = len(self._tokens)
        config["eos_token_id"] = self._value("tokenizer.ggml.eos_token_id")
        config["tie_word_embeddings"] = "output.weight" not in names
        return config

    def weights(self, dtype: DTypeLike) -> Weights:
        """Return the weights for model.safetensors, dequantised, in this type."""
        weights: Weights = {}
        for tensor in self._reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[-2]
            if kind == "attn_q":
                values = _halves(values, self._heads)
            if kind == "attn_k":
                values = _halves(values, self._kv_heads)
            weights[_hf_name(tensor.name)] = values.astype(dtype)
        return weights

    def tokenizer(self) -> Json:
        """Return the contents of tokenizer.json: a byte-level BPE without unused ids."""
        vocabulary: dict[str, int] = {}
        added: list[Json] = []
        types = self._value("tokenizer.ggml.token_type")
        for token, (text, kind) in enumerate(zip(self._tokens, types, strict=True)):
            # The library gives an added token that the model lacks an id of its own.
            if kind != gguf.TokenType.UNUSED:
                vocabulary[text] = token
            match gguf.TokenType(kind):
                case gguf.TokenType.CONTROL:
                    added.append(_added(token, text, special=True))
                case gguf.TokenType.USER_DEFINED:
                    added.append(_added(token, text, special=False))
                case _:
                    pass
        merges = [merge.split(" ") for merge in self._value("tokenizer.ggml.merges")]
        model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
        return {
            "version": "1.0",
            "pre_tokenizer": PRE_TOKENIZERS[self._pre],
            "decoder": BYTE_LEVEL,
            "added_tokens": added,
            "model": model,
        }

    def tokenizer_config(self) -> Json:
        """Return the contents of tokenizer_config.json."""
        end = self._tokens[self._value("tokenizer.ggml.eos_token_id")]
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
        template = self._value("tokenizer.chat_template", None)
        if template:
            config["chat_template"] = template
        return config

    def _value(self, name: str, default: Any = ...) -> Any:
        field = self._reader.fields.get(name)
        if field is not None:
            return field.contents()
        if default is ...:
            raise ValueError(f"the GGUF file has no {name}")
        return default


def write(folder: Path, path: Path, dtype: DTypeLike = np.float32) -> Path:
    """Write the Llama of the GGUF file `path` into `folder`, and return it.

    Raises ValueError for a model of another kind, OSError if nothing can be read or written.
    """
    llama = Llama(path)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(llama.weights(dtype), folder / "model.safetensors", metadata={"format": "mlx"})
    files = {
        "config.json": llama.config(),
        "tokenizer.json": llama.tokenizer(),
        "tokenizer_config.json": llama.tokenizer_config(),
    }
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _added(token: int, text: str, *, special: bool) -> Json:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": special} | flags


def _hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor, of `blk.0.attn_q.weight` for example."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{OTHER_NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def _halves(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder each head's rows from GGUF's pairs (E / 2, 2) to Hugging Face's halves (2, E / 2)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns).copy()
