"""Options of both daemons that only llama.cpp has, with the names and meanings of llama-server."""

from collections.abc import Callable, Mapping
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

_MOST_LAYERS = 4096
_MOST_ROWS = 2**16
_MOST_IDS = 2**31 - 1


class _Listed(click.types.StringParamType):
    """A value of an option with several, which a variable has between commas."""

    envvar_list_splitter = ","


def _listed(
    name: str, metavar: str, meaning: str, completion: Completion | None = None
) -> Decorator:
    """Return an option that may be given more than once; its values are not taken apart."""
    return click.option(
        name,
        type=_Listed(),
        metavar=metavar,
        help=meaning,
        multiple=True,
        shell_complete=completion,
    )


_cache_type = click.Choice(CACHE_TYPES)
_cache_options = [
    option("--cache-type-k", _cache_type, None, "Type of keys in the KV cache.", shown="f16"),
    option(
        "--cache-type-v",
        _cache_type,
        None,
        "Type of values in the KV cache; other types than f32, f16 and bf16 need flash attention.",
        shown="f16",
    ),
    option(
        "--flash-attn",
        click.Choice(FLASH_ATTN),
        None,
        "Flash attention; auto: where the device has it.",
        shown="auto",
    ),
    option(
        "--ubatch-size",
        click.IntRange(1, _MOST_ROWS),
        "N",
        "Most tokens that are computed at once, at least one for each session; more read prompts "
        "faster on a GPU and take more memory.",
        shown="512",
    ),
]
_device_options = [
    _listed(
        "--device",
        "NAME,...",
        "Devices that take layers, as `specmesh doctor` names them; none: the CPU does all "
        "(default: all).",
    ),
    option(
        "--split-mode",
        click.Choice(SPLIT_MODES),
        None,
        "How several devices share a model: layer by layer, the rows of each weight (row), weights "
        "and KV cache (tensor), or not (none).",
        shown="layer",
    ),
    _listed(
        "--tensor-split",
        "N,...",
        "Share of each device, such as 3,1 (default: by free memory).",
    ),
    option(
        "--main-gpu",
        click.IntRange(0, _MOST_LAYERS),
        "N",
        "Number of the device that takes all with --split-mode none, or intermediate results with "
        "row.",
        shown="0",
    ),
]
_weight_options = [
    flag("--cpu-moe", "Keep the weights of all experts on the CPU."),
    option(
        "--n-cpu-moe",
        click.IntRange(0, _MOST_LAYERS),
        "N",
        "Keep the weights of the experts of the first N layers on the CPU.",
    ),
    _listed(
        "--override-tensor",
        "PATTERN=BUFFER,...",
        "Put the weights in whose names the regular expression is found into this buffer, such as "
        "CPU or CUDA0; the first that is found counts.",
    ),
    flag("--no-mmap", "Read the model into memory instead of mapping the file."),
    flag("--mlock", "Keep the model in memory: never swap it out."),
    _listed(
        "--lora",
        "FILE[:SCALE],...",
        "LoRA adapter in GGUF, and the factor of its effect (default: 1).",
        FILE.shell_complete,
    ),
]
_rope_options = [
    option(
        "--rope-scaling",
        click.Choice(ROPE_SCALINGS),
        None,
        "How positions beyond the trained context are made to fit.",
        shown="the model's, or linear",
    ),
    option(
        "--rope-scale",
        click.FloatRange(1e-3, 1e6),
        "X",
        "Make the context X times as long.",
        shown="the model's",
    ),
    option(
        "--yarn-orig-ctx",
        click.IntRange(0, _MOST_IDS),
        "N",
        "Context that the model was trained with before YaRN.",
        shown="the model's",
    ),
]

llama_options = combined([*_device_options, *_weight_options, *_cache_options, *_rope_options])


def llama_options_of(values: Mapping[str, object]) -> LlamaOptions:
    """Return the options in a command's values. Raises ConfigError."""
    given = {field.name: values[field.name] for field in fields(LlamaOptions)}
    device = cast("tuple[str, ...]", given["device"])
    shares = cast("tuple[str, ...]", given["tensor_split"])
    overrides = cast("tuple[str, ...]", given["override_tensor"])
    adapters = cast("tuple[str, ...]", given["lora"])
    given["device"] = tuple(pieces_of(device))
    given["tensor_split"] = parse_tensor_split(shares)
    given["override_tensor"] = parse_overrides(overrides)
    given["lora"] = parse_adapters(adapters)
    given["yarn_orig_ctx"] = given["yarn_orig_ctx"] or None  # 0: the model's
    return cast("Callable[..., LlamaOptions]", LlamaOptions)(**given)
