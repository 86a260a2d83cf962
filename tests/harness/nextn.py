"""Writes the bundled target as another architecture, with a NextN layer that drafts.

The layer is solved, not trained: it is a copy of the target's last layer, whose input is computed
from the token and from the hidden state before it by the matrix with the least square error. The
layer's own last matrix is solved anew after that.
"""

import os
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from harness import tiny_gguf
from harness.tiny_gguf import TinyModel
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.engines.llama.encoder import LlamaEncoder
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.llama.library import library
from specmesh.paths import bundled

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Padding:
    """What makes a target dearer, and its logits no other.

    hidden: channels that each feed-forward part gets besides, which are multiplied by zero.
    layers: that stand behind the target's, and add zero.
    """

    hidden: int = 0
    layers: int = 0


NO_PADDING = Padding()
ARCH = "mimo2"
EPSILON = 1e-5
HEAD = 64
CHUNK = 256
"""Ids of a text that the layer is solved with."""

CHUNKS = 20
RIDGE = 1e-3
RUN = 64
RUNS = 100
"""Ids of a random text, and texts, that a random model's layer is solved with."""

SIZES = (
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "rope.freq_base",
)
LAYER = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
MODULES: tuple[str, ...] = (
    "argparse.py",
    "ast.py",
    "configparser.py",
    "datetime.py",
    "difflib.py",
    "doctest.py",
)
MODULES += ("enum.py", "inspect.py", "logging/__init__.py", "mailbox.py", "optparse.py", "pdb.py")
MODULES += ("pickle.py", "subprocess.py", "tarfile.py", "threading.py", "typing.py", "zipfile.py")
"""Files of the standard library, on which the target was trained."""


@dataclass
class Target:
    """The weights of a small Llama, by name, float32; q, k and v of a layer are one matrix."""

    reader: gguf.GGUFReader
    weights: dict[str, Array]
    layers: int

    @classmethod
    def read(cls, path: Path) -> "Target":
        reader = gguf.GGUFReader(path)
        weights = dict[str, Array]()
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            weights[tensor.name.removesuffix(".weight")] = values
        layers = int(reader.fields["llama.block_count"].contents())
        for layer in range(layers):
            parts = [weights.pop(f"blk.{layer}.attn_{name}") for name in ("q", "k", "v")]
            parts[0] = _halves(parts[0])
            parts[1] = _halves(parts[1])
            weights[f"blk.{layer}.attn_qkv"] = np.concatenate(parts)
        return cls(reader, weights, layers)

    def layer(self, index: int) -> dict[str, Array]:
        return {name: self.weights[f"blk.{index}.{name}"] for name in LAYER}

    def run(self, ids: NDArray[Any]) -> tuple[Array, Array, Array]:
        """Return the embeddings of (rows, length) ids, the last layer's input, and its output."""
        first = self.weights["token_embd"][ids]
        hidden = first
        for index in range(self.layers - 1):
            hidden, _, _ = run_layer(self.layer(index), hidden)
        last, _, _ = run_layer(self.layer(self.layers - 1), hidden)
        return first, hidden, last


def _halves(rows: Array) -> Array:
    """Return the rows of q or k in the order of NEOX RoPE: pairs lie half a head apart."""
    pairs = rows.reshape(-1, HEAD // 2, 2, rows.shape[-1])
    halves: Array = pairs.swapaxes(1, 2).reshape(rows.shape)
    return halves


def norm(values: Array) -> Array:
    """Return RMS-normed values without a gain."""
    square = np.mean(values * values, axis=-1, keepdims=True)
    normed: Array = values / np.sqrt(square + np.float32(EPSILON))
    return normed


def run_layer(layer: dict[str, Array], values: Array) -> tuple[Array, Array, Array]:
    """Return a layer's output (rows, length, width), what its last matrix adds to, and reads."""
    rows, length, width = values.shape
    mixed = norm(values) * layer["attn_norm"] @ layer["attn_qkv"].T
    heads = mixed.reshape(rows, length, 3, width // HEAD, HEAD).transpose(2, 0, 3, 1, 4)
    queries = rotated(heads[0])
    keys = rotated(heads[1])
    scores = queries @ keys.swapaxes(-1, -2) / np.float32(np.sqrt(HEAD))
    future = np.triu(np.ones((length, length), bool), 1)
    scores[..., future] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=-1, keepdims=True)
    seen = (shares @ heads[2]).transpose(0, 2, 1, 3).reshape(values.shape)
    between = values + seen @ layer["attn_output"].T
    normed = norm(between) * layer["ffn_norm"]
    gate = normed @ layer["ffn_gate"].T
    inner = gate / (1 + np.exp(-gate)) * (normed @ layer["ffn_up"].T)
    return between + inner @ layer["ffn_down"].T, between, inner


def rotated(values: Array) -> Array:
    """Return (..., length, head) values with NEOX RoPE."""
    length = values.shape[-2]
    half = HEAD // 2
    speeds = 10000.0 ** (-np.arange(half) / half)
    angles = np.outer(np.arange(length), speeds).astype(np.float32)
    first = values[..., :half]
    second = values[..., half:]
    cosine = np.cos(angles)
    sine = np.sin(angles)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return np.concatenate(turned, axis=-1)


def texts(path: Path) -> NDArray[Any]:
    """Return (CHUNKS, CHUNK) ids of the standard library's text."""
    lib = library()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    encoder = LlamaEncoder(lib, lib.llama_model_get_vocab(model))
    folder = Path(sysconfig.get_path("stdlib"))
    ids = list[int]()
    for name in MODULES:
        ids += encoder.encode((folder / name).read_text("utf-8"))
    encoder.close()
    lib.llama_model_free(model)
    count = len(ids) // CHUNK
    chunks = np.array(ids[: count * CHUNK]).reshape(count, CHUNK)
    return chunks[:: max(count // CHUNKS, 1)][:CHUNKS]


def solved(target: Target, ids: NDArray[Any]) -> dict[str, Array]:
    """Return a NextN layer for a target, by what it computes for these ids."""
    embedded, inputs, outputs = target.run(ids)
    before = np.zeros_like(outputs)
    before[:, 1:] = outputs[:, :-1]
    joined = np.concatenate((norm(embedded), norm(before)), axis=-1)
    layer = target.layer(target.layers - 1)
    projection = least_squares(joined, inputs)
    _, between, inner = run_layer(layer, joined @ projection.T)
    layer["ffn_down"] = least_squares(inner, outputs - between)
    width = outputs.shape[-1]
    ones = np.ones(width, np.float32)
    nextn = {"nextn.eh_proj": projection, "nextn.enorm": ones, "nextn.hnorm": ones}
    return layer | nextn


def drafts_of(path: Path, ids: list[int], n: int) -> list[int]:
    """Return the drafts after a text by the bundled target and its layer, computed by numpy.

    path: of the file that `write` has written.
    """
    target, layer = _read_both(path)
    embeddings = target.weights["token_embd"]
    _, _, states = target.run(np.array([ids]))
    before = [np.zeros(states.shape[-1], np.float32), *states[0, :-1]]
    text = list(ids)
    drafts = list[int]()
    for _ in range(n):
        joined = np.concatenate((norm(embeddings[text]), norm(np.stack(before))), axis=-1)
        own, _, _ = run_layer(layer, (joined @ layer["nextn.eh_proj"].T)[None])
        last = own[0, -1]
        logits = embeddings @ (norm(last) * target.weights["output_norm"])
        drafts.append(int(logits.argmax()))
        text.append(drafts[-1])
        before.append(last)
    return drafts


@cache
def _read_both(path: Path) -> tuple[Target, dict[str, Array]]:
    """Return the bundled target, and the layer in a file that `write` has written."""
    target = Target.read(Path(bundled("target.gguf")))
    name = f"blk.{target.layers}."
    layer = dict[str, Array]()
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name.startswith(name):
            key = tensor.name.removeprefix(name).removesuffix(".weight")
            layer[key] = np.array(tensor.data, np.float32)
    return target, layer


def least_squares(given: Array, wanted: Array) -> Array:
    """Return the matrix that maps `given` rows to `wanted` ones with the least square error."""
    rows = given.reshape(-1, given.shape[-1])
    square = rows.T @ rows
    ridge = RIDGE * np.trace(square) / len(square)
    square += ridge * np.eye(len(square), dtype=np.float32)
    mixed = rows.T @ wanted.reshape(-1, wanted.shape[-1])
    return np.linalg.solve(square, mixed).T.astype(np.float32)


def padded(target: Target, head: dict[str, Array], padding: Padding) -> dict[str, Array]:
    """Make a target dearer; return its NextN layer, of the same shape as its layers."""
    random = np.random.default_rng(1)
    layers = [target.layer(index) for index in range(target.layers)]
    for layer in (*layers, head):
        widen(layer, padding.hidden, random)
    for _ in range(padding.layers):
        idle = dict(layers[0])
        for name in ("attn_output", "ffn_down"):
            idle[name] = np.zeros_like(idle[name])
        layers.append(idle)
    for index, layer in enumerate(layers):
        for name, values in layer.items():
            target.weights[f"blk.{index}.{name}"] = values
    target.layers = len(layers)
    return head


def widen(layer: dict[str, Array], hidden: int, random: np.random.Generator) -> None:
    """Give a layer's feed-forward part more channels, whose values are multiplied by zero."""
    width = len(layer["ffn_down"])
    for name in ("ffn_gate", "ffn_up"):
        rows = random.standard_normal((hidden, width), np.float32) / np.float32(np.sqrt(width))
        layer[name] = np.concatenate((layer[name], rows))
    unread = np.zeros((width, hidden), np.float32)
    layer["ffn_down"] = np.concatenate((layer["ffn_down"], unread), axis=-1)


def write(path: Path, *, heads: int = 1, lacks: str = "", padding: Padding = NO_PADDING) -> Path:
    """Write the bundled target with NextN layers, all of them the same; return the path.

    lacks: the tensor that they do not have.
    """
    source = Path(bundled("target.gguf"))
    target = Target.read(source)
    layer = padded(target, solved(target, texts(source)), padding)
    writer = gguf.GGUFWriter(path, ARCH)
    _add_values(writer, target, heads)
    weights = dict(target.weights)
    weights.setdefault("output", weights["token_embd"])
    for head in range(target.layers, target.layers + heads):
        for name, values in layer.items():
            if name != lacks:
                weights[f"blk.{head}.{name}"] = values
    for name, values in weights.items():
        kind = np.float32 if values.ndim == 1 else np.float16
        writer.add_tensor(f"{name}.weight", values.astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_values(writer: gguf.GGUFWriter, target: Target, heads: int) -> None:
    """Write a header: the target's tokenizer and sizes, and what the architecture wants."""
    fields = target.reader.fields
    for key, field in fields.items():
        if key.startswith("tokenizer."):
            kinds = field.types
            writer.add_key_value(key, field.contents(), kinds[0], kinds[-1])
    sizes = {key: fields[f"llama.{key}"].contents() for key in SIZES}
    hidden = len(target.weights["blk.0.ffn_gate"])
    blocks = target.layers + heads
    writer.add_file_type(1)
    writer.add_block_count(blocks)
    writer.add_vocab_size(len(target.weights["token_embd"]))
    writer.add_context_length(sizes["context_length"])
    writer.add_embedding_length(sizes["embedding_length"])
    writer.add_feed_forward_length(hidden)
    writer.add_expert_feed_forward_length(hidden)
    writer.add_head_count(sizes["attention.head_count"])
    writer.add_head_count_kv(sizes["attention.head_count_kv"])
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(sizes["rope.freq_base"])
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_nextn_predict_layers(heads)
    writer.add_sliding_window(sizes["context_length"])
    writer.add_sliding_window_pattern([block >= target.layers for block in range(blocks)])
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)


def write_tiny(path: Path, model: TinyModel) -> Path:
    """Write a random model whose NextN layers draft; return the path.

    Their first matrix is solved by the hidden states that llama.cpp computes for random ids.
    """
    tiny_gguf.write(path, model)
    embeddings = tensor_of(path, "token_embd.weight")
    settings = ModelSettings(engine="llama", model=str(path), ctx=RUN, threads=1, mtp=True)
    engine = LlamaVerifier(settings)
    random = np.random.default_rng(1)
    given: list[Array] = []
    wanted: list[Array] = []
    for _ in range(RUNS):
        ids = random.integers(0, model.n_vocab, RUN).tolist()
        engine.decode([Span(0, 0, tuple(ids), logits=True)])
        states = states_of(engine)
        given.append(np.concatenate((norm(embeddings[ids[1:]]), norm(states[:-1])), axis=-1))
        wanted.append(states[1:])
        engine.carry_out(KVCut(0, 0))
    engine.close()
    projection = least_squares(np.concatenate(given), np.concatenate(wanted))
    fixed = dict[str, Array]()
    for layer in range(model.layers, model.layers + model.nextn):
        fixed[f"blk.{layer}.nextn.eh_proj.weight"] = projection
    return tiny_gguf.write(path, model, fixed)


def tensor_of(path: Path, name: str) -> Array:
    [values] = [tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.name == name]
    return np.array(values, np.float32)


def states_of(engine: LlamaVerifier) -> Array:
    """Return a copy of the hidden states of the rows that the first sequence holds."""
    assert engine.head is not None
    hidden = engine.head.hidden
    return hidden.rows(0, 0, RUN).copy()
