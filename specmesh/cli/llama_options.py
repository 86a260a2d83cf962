"""Options of both daemons that only llama.cpp has, with the names and meanings of llama-server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import cast

import click

from specmesh.cli.options import FILE, Completion, Decorator, combined, flag, option
from specmesh.llama_options import (
    CACHE_TYPES,
    FLASH_ATTN,
    ROPE_SCALINGS,
    SPLIT_MODES,
    LlamaOptions,
    parse_adapters,
    parse_overrides,
    parse_tensor_split,
    pieces_of,
)

_LAYERS = click.IntRange(0, 4096)
_ROWS = click.IntRange(1, 2**16)
_IDS = click.IntRange(0, 2**31 - 1)
_FACTOR = click.FloatRange(1e-3, 1e6)


class _Listed(click.types.StringParamType):
    """A value of an option with several, which a variable has between commas."""

    envvar_list_splitter = ","


_LISTED = _Listed()


def _listed(
    name: str, metavar: str, meaning: str, completion: Completion | None = None
) -> Decorator:
    """Return an option that may be given more than once; its values are not taken apart."""
    return click.option(
        name,
        type=_LISTED,
        metavar=metavar,
        help=meaning,
        multiple=True,
        shell_complete=completion,
    )


def _choice(name: str, values: Sequence[str], meaning: str, shown: str) -> Decorator:
    """Return an option with one of some values; shown: its default in words."""
    kind = click.Choice(values)
    return option(name, kind, None, meaning, shown=shown)


# Devices.

_meaning = (
    "Devices that take layers, as `specmesh doctor` names them; none: the CPU does all "
    "(default: all)."
)
_device = _listed("--device", "NAME,...", _meaning)

_meaning = (
    "How several devices share a model: layer by layer, the rows of each weight (row), weights "
    "and KV cache (tensor), or not (none)."
)
_split_mode = _choice("--split-mode", SPLIT_MODES, _meaning, "layer")

_meaning = "Share of each device, such as 3,1 (default: by free memory)."
_tensor_split = _listed("--tensor-split", "N,...", _meaning)

_meaning = (
    "Number of the device that takes all with --split-mode none, or intermediate results with row."
)
_main_gpu = option("--main-gpu", _LAYERS, "N", _meaning, shown="0")

# Weights.

_cpu_moe = flag("--cpu-moe", "Keep the weights of all experts on the CPU.")

_meaning = "Keep the weights of the experts of the first N layers on the CPU."
_n_cpu_moe = option("--n-cpu-moe", _LAYERS, "N", _meaning)

_meaning = (
    "Put the weights in whose names the regular expression is found into this buffer, such as "
    "CPU or CUDA0; the first that is found counts."
)
_override_tensor = _listed("--override-tensor", "PATTERN=BUFFER,...", _meaning)

_no_mmap = flag("--no-mmap", "Read the model into memory instead of mapping the file.")
_mlock = flag("--mlock", "Keep the model in memory: never swap it out.")

_meaning = "LoRA adapter in GGUF, and the factor of its effect (default: 1)."
_lora = _listed("--lora", "FILE[:SCALE],...", _meaning, FILE.shell_complete)

# The KV cache and its steps.

_meaning = "Type of keys in the KV cache."
_cache_type_k = _choice("--cache-type-k", CACHE_TYPES, _meaning, "f16")

_meaning = (
    "Type of values in the KV cache; other types than f32, f16 and bf16 need flash attention."
)
_cache_type_v = _choice("--cache-type-v", CACHE_TYPES, _meaning, "f16")

_meaning = "Flash attention; auto: where the device has it."
_flash_attn = _choice("--flash-attn", FLASH_ATTN, _meaning, "auto")

_meaning = (
    "Most tokens that are computed at once, at least one for each session; more read prompts "
    "faster on a GPU and take more memory."
)
_ubatch_size = option("--ubatch-size", _ROWS, "N", _meaning, shown="512")

# RoPE.

_meaning = "How positions beyond the trained context are made to fit."
_rope_scaling = _choice("--rope-scaling", ROPE_SCALINGS, _meaning, "the model's, or linear")

_meaning = "Make the context X times as long."
_rope_scale = option("--rope-scale", _FACTOR, "X", _meaning, shown="the model's")

_meaning = "Context that the model was trained with before YaRN."
_yarn_orig_ctx = option("--yarn-orig-ctx", _IDS, "N", _meaning, shown="the model's")

_devices = [_device, _split_mode, _tensor_split, _main_gpu]
_weights = [_cpu_moe, _n_cpu_moe, _override_tensor, _no_mmap, _mlock, _lora]
_cache = [_cache_type_k, _cache_type_v, _flash_attn, _ubatch_size]
_rope = [_rope_scaling, _rope_scale, _yarn_orig_ctx]
llama_options = combined([*_devices, *_weights, *_cache, *_rope])

_PARSERS: Mapping[str, Callable[[Sequence[str]], Sequence[object]]] = {
    "device": pieces_of,
    "tensor_split": parse_tensor_split,
    "override_tensor": parse_overrides,
    "lora": parse_adapters,
}


def llama_options_of(values: Mapping[str, object]) -> LlamaOptions:
    """Return the options in a command's values. Raises ConfigError."""
    given: dict[str, object] = {}
    for field in fields(LlamaOptions):
        given[field.name] = values[field.name]
    for name, parse in _PARSERS.items():
        texts = cast("tuple[str, ...]", values[name])
        given[name] = tuple(parse(texts))
    given["yarn_orig_ctx"] = values["yarn_orig_ctx"] or None  # 0: the model's
    return cast("Callable[..., LlamaOptions]", LlamaOptions)(**given)
