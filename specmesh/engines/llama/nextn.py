"""The NextN layers of a GGUF file, its own draft head, checked by its header.

A model may have layers that draft (multi-token prediction, MTP; llama.cpp calls them NextN). They
stand after the layers of the target. llama.cpp ends the process where the graph of such a layer
finds something missing. So its conditions are checked here before a model is loaded with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specmesh.engines.llama.header import Header, Shape, Tensor
from specmesh.errors import ConfigError

_KEY = "nextn_predict_layers"
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_CHOICE = "ffn_gate_inp"
"""The matrix by which experts are chosen."""

_EXPERTS = ("ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_OF_EXPERTS = (("ffn_gate_up_exps",), ("ffn_gate_exps", "ffn_up_exps"))
"""In one matrix, or in two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The conditions of llama.cpp's graph of an architecture's NextN layer.

    Llama.cpp refuses to load a file that lacks other tensors.

    tensors: that each such layer needs, besides those that all need.
    either: it has experts, or is dense, as the file says.
    chained: several layers may draft one after the other; else there is one.
    latent: it needs multi-head latent attention.
    """

    tensors: tuple[str, ...] = ()
    either: bool = False
    chained: bool = False
    latent: bool = False


ARCHITECTURES: dict[str, _Rules] = {
    "bailingmoe3": _Rules(),
    "cohere2moe": _Rules(tensors=(_CHOICE,)),
    "deepseek2": _Rules(tensors=(_CHOICE,), latent=True),
    "deepseek32": _Rules(tensors=(_CHOICE,), latent=True),
    "glm-dsa": _Rules(tensors=(_CHOICE,), latent=True),
    "glm4moe": _Rules(tensors=(_CHOICE,)),
    "hy_v3": _Rules(either=True, chained=True),
    "mimo2": _Rules(tensors=("attn_qkv", *_DENSE), chained=True),
    "nemotron_h_moe": _Rules(),
    "qwen35": _Rules(tensors=_DENSE),
    "qwen35moe": _Rules(tensors=(_CHOICE,)),
    "qwen3next": _Rules(tensors=(_CHOICE,)),
    "step35": _Rules(either=True, chained=True),
}
"""The architectures whose NextN layers the pinned llama.cpp runs from the target's own file."""

_NORMS = ("nextn.enorm", "nextn.hnorm")


@dataclass(frozen=True, slots=True)
class NextN:
    """The NextN layers of a file.

    layers: how many there are, which draft one after the other; 0 if they cannot be used.
    fault: why not, in words; empty if the file names none.
    without: values of the header with which llama.cpp looks for none; empty if it has tensors of
        such layers.
    """

    layers: int = 0
    fault: str = ""
    without: tuple[tuple[str, int], ...] = ()


def nextn_of(headers: Sequence[Header]) -> NextN:
    """Return the NextN layers of a model by the headers of its files.

    Raises ConfigError for a number of layers with which llama.cpp would end the process.
    """
    first = headers[0]
    architecture = first.text("general.architecture")
    layers = _number(first, f"{architecture}.{_KEY}")
    if not layers:
        return NextN()
    blocks = _number(first, f"{architecture}.block_count")
    if layers > blocks:
        reason = f"{first.path} names {layers} NextN layers of {blocks} layers"
        raise ConfigError(reason, "download it again, or choose another model")
    rules = ARCHITECTURES.get(architecture)
    if rules is None:
        return NextN(fault=f"llama.cpp does not run the NextN layers of {architecture}")
    tensors = dict[str, Tensor]()
    for header in headers:
        tensors |= header.tensors
    width = _number(first, f"{architecture}.embedding_length")
    fault = _fault_of_header(first, architecture, rules, layers)
    for layer in range(blocks - layers, blocks):
        fault = fault or _fault_of_layer(tensors, layer, rules, width)
    if not fault:
        return NextN(layers)
    begins = tuple(f"blk.{layer}." for layer in range(blocks - layers, blocks))
    if layers == blocks or any(name.startswith(begins) for name in tensors):
        return NextN(fault=fault)
    without = ((f"{architecture}.{_KEY}", 0), (f"{architecture}.block_count", blocks - layers))
    return NextN(fault=fault, without=without)


def _number(header: Header, key: str) -> int:
    """Return a whole number, 0 if the header has none under this key."""
    found = header.values.get(key)
    if found is None or not isinstance(found.value, int):
        return 0
    return found.value


def _fault_of_header(header: Header, architecture: str, rules: _Rules, layers: int) -> str:
    if layers > 1 and not rules.chained:
        return f"llama.cpp runs one NextN layer of {architecture}, and there are {layers}"
    if _number(header, f"{architecture}.block_count") == layers:
        return "all its layers are NextN layers"
    out = _number(header, f"{architecture}.embedding_length_out")
    if out and out != _number(header, f"{architecture}.embedding_length"):
        return "its hidden states are not as wide as its embeddings"
    if rules.latent:
        lengths = ("key_length_mla", "value_length_mla")
        if not all(_number(header, f"{architecture}.attention.{name}") for name in lengths):
            return "it has no multi-head latent attention"
        if f"{architecture}.attention.temperature_scale" in header.values:
            return "llama.cpp does not scale the attention of NextN layers by temperature"
    return ""


def _fault_of_layer(tensors: Mapping[str, Tensor], layer: int, rules: _Rules, width: int) -> str:
    """Return what is wrong with a NextN layer, in words; empty if nothing is."""
    wanted: dict[str, Shape | None] = {"nextn.eh_proj": (2 * width, width, 1, 1)}
    for name in _NORMS:
        wanted[name] = (width, 1, 1, 1)
    for name in rules.tensors:
        wanted[name] = None
    if rules.either:
        for name in _forward(tensors, layer):
            wanted[name] = None
    for name, shape in wanted.items():
        full = f"blk.{layer}.{name}.weight"
        found = tensors.get(full)
        if found is None:
            return f"it lacks {full}"
        if shape is not None and found.shape != shape:
            return f"{full} has the shape {found.shape[:2]}, and {shape[:2]} is wanted"
    return ""


def _forward(tensors: Mapping[str, Tensor], layer: int) -> tuple[str, ...]:
    """Return the tensors that a layer's feed-forward part needs, by those that it has."""
    if f"blk.{layer}.{_CHOICE}.weight" not in tensors:
        return _DENSE
    joined, apart = _OF_EXPERTS
    if f"blk.{layer}.{joined[0]}.weight" in tensors:
        return (*_EXPERTS, *joined)
    return (*_EXPERTS, *apart)
