"""LoRA adapters: a file is checked against its model before anything is loaded.

An adapter has two factors A and B for each weight that it changes. llama.cpp adds
scale * alpha / rank * B(A(x)) to the weight's own result (llama-adapter.cpp). It ends the process
for some wrong files, takes others without a word, and reads beyond weights of a wrong shape.
"""

from collections.abc import Iterable
from math import isfinite

from specmesh.engines.llama.header import Header, Shape, Tensor
from specmesh.errors import ConfigError

_FACTORS = (".lora_a", ".lora_b")
_IGNORED = "_norm.weight"  # of a norm: llama.cpp leaves it out
_EMBEDDING = "token_embd.weight"
_ALPHA = "adapter.lora.alpha"
_INVOCATION = "adapter.alora.invocation_tokens"
_NUMBERS = ("i8", "i16", "i32", "i64", "f64")  # types that ggml does not multiply

REMEDY = "give a LoRA adapter of this very model, converted by convert_lora_to_gguf.py"


def check_adapter(adapter: Header, parts: Iterable[Header]) -> None:
    """Raise ConfigError for a file that is no LoRA adapter of this model.

    parts: the headers of the model's files.
    """
    try:
        _check(adapter, list(parts))
    except ValueError as error:
        raise ConfigError(f"--lora {adapter.path} {error}", REMEDY) from None


def _check(adapter: Header, parts: list[Header]) -> None:
    _check_kind(adapter, parts[0])
    if not adapter.is_whole:
        raise ValueError("is shorter than its weights: it was cut off")
    weights = dict[str, Tensor]()
    for part in parts:
        weights |= part.tensors
    names = _changed(adapter)
    if not names:
        raise ValueError("changes no weight")
    for name in names:
        if name not in weights:
            raise ValueError(f"is for another model: this one has no {name}")
        first, second = (adapter.tensors.get(f"{name}{end}") for end in _FACTORS)
        if first is None or second is None:
            raise ValueError(f"has one of two factors for {name}")
        _check_factors(name, weights[name], first, second)


def _check_kind(adapter: Header, model: Header) -> None:
    general = adapter.text("general.type")
    if general != "adapter":
        raise ValueError(f"is no adapter, but a {general or 'model'}")
    kind = adapter.text("adapter.type")
    if kind != "lora":
        raise ValueError(f"is an adapter of another kind than LoRA: {kind or 'none is named'}")
    architecture = adapter.text("general.architecture")
    wanted = model.text("general.architecture")
    if architecture != wanted:
        raise ValueError(f"is for {architecture or 'no'} models, and this one is {wanted}")
    if _INVOCATION in adapter.values:
        raise ValueError("is an activated LoRA (aLoRA), which starts within a text")
    alpha = adapter.values.get(_ALPHA)
    if alpha is not None and alpha.type != "f32":
        raise ValueError(f"has an {_ALPHA} that is no 32-bit float")
    if alpha is not None and not isfinite(float(alpha.value or 0.0)):
        raise ValueError(f"has {alpha.value} as {_ALPHA}")


def _changed(adapter: Header) -> list[str]:
    """Return the names of the weights that an adapter changes. Raises ValueError."""
    names = dict[str, None]()
    for name in adapter.tensors:
        weight, dot, end = name.rpartition(".")
        if f"{dot}{end}" in _FACTORS:
            names[weight] = None
        elif not name.endswith(_IGNORED):
            raise ValueError(f"has a weight that is no factor: {name}")
    return list(names)


def _check_factors(name: str, weight: Tensor, first: Tensor, second: Tensor) -> None:
    """Raise ValueError unless the factors go with the weight and with each other."""
    for factor in (first, second):
        if factor.kind in _NUMBERS:
            raise ValueError(f"has factors of {name} in {factor.kind}")
    inputs, outputs = weight.shape[:2]
    if name == _EMBEDDING:  # a row of it is looked up, so its first factor is transposed
        expected = (second.shape[1], first.shape[1])
        ranks = (second.shape[0], first.shape[0])
    else:
        expected = (first.shape[0], second.shape[1])
        ranks = (first.shape[1], second.shape[0])
    outer = weight.shape[2:]
    fits = expected == (inputs, outputs) and first.shape[2:] == second.shape[2:] == outer
    if not fits:
        shapes = f"{_of(first.shape)} and {_of(second.shape)} for {_of(weight.shape)}"
        raise ValueError(f"is for another model: the factors of {name} are {shapes}")
    if ranks[0] != ranks[1]:
        raise ValueError(f"has factors of ranks {ranks[0]} and {ranks[1]} for {name}")


def _of(shape: Shape) -> str:
    return " x ".join(str(length) for length in shape if length > 1) or "1"
