"""A context that fits into the memory that is free."""

from collections.abc import Callable

import structlog

from specmesh.engines.kv_size import ContextSize, ContextWish, context_size, halved
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, NoContext
from specmesh.engines.llama.library import gpu_free_bytes
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.llama.params import NUMBER_BYTES, metadata_text
from specmesh.engines.llama.rollback import open_cache
from specmesh.free_memory import free_bytes

_log = structlog.get_logger("specmesh.engines.llama")

HOST_SHARE = 0.25
"""Of the host's memory, free beside the context, that offloaded sequences may take."""

_F16 = 2  # bytes of a number in a mask
_PLACE = 24  # bytes that a state has for the place of a token, in both caches of a windowed model
_ROWS = 512  # of a step without --ubatch-size; each has a mask of all cells

TOLERANCE = 0.05
"""By so much a context may be smaller than one made with the measured bytes of a cell."""


def free_memory(model: LlamaModel) -> float | None:
    """Return the most bytes that all cells can take beside a loaded model; None if unknown.

    The cells of a layer are where the layer is.
    """
    allowed: list[float] = []
    if model.gpu_share > 0:
        allowed.append(gpu_free_bytes(model.gpus) / model.gpu_share)
    if model.gpu_share < 1:
        host = free_bytes()
        if host is not None:
            allowed.append(host / (1 - model.gpu_share))
    return min(allowed, default=None)


def fitting_cache(
    model: LlamaModel,
    wish: ContextWish,
    free: float | None,
    sizes_of: Callable[[ContextSize], CacheSizes],
) -> tuple[LlamaCache, ContextSize]:
    """Reserve a target's memory, as much as the settings and the free memory allow.

    Return it with its size. Raises ConfigError.

    sizes_of: returns the sizes of a cache of that size.
    """
    expected = context_size(wish, _expected_bytes(model), free)
    cache, size = _opened(model, wish, expected, sizes_of)
    measured = context_size(wish, _all_bytes(model, cache.cell_bytes), free)
    if size != expected or (1 - TOLERANCE) * measured.cells <= size.cells <= measured.cells:
        return cache, size
    cache.close()
    return _opened(model, wish, measured, sizes_of)


def _opened(
    model: LlamaModel,
    wish: ContextWish,
    size: ContextSize,
    sizes_of: Callable[[ContextSize], CacheSizes],
) -> tuple[LlamaCache, ContextSize]:
    """Return a cache of this size, or of the largest half of a half that memory suffices for."""
    first: NoContext | None = None
    tried: ContextSize | None = size
    while tried is not None:
        try:
            cache = open_cache(model, sizes_of(tried), drafter=False)
        except NoContext as error:
            first = first or error
            tried = halved(tried, wish)
        else:
            if tried is not size:
                _log.warning("kv_cache_is_smaller", tokens=tried.cells, instead_of=size.cells)
            return cache, tried
    assert first is not None, "something was tried"
    raise first


def host_ids(cells: int, cell_bytes: int) -> int:
    """Return the ids of sequences that there is room for in the host's memory."""
    free = free_bytes()
    if free is None or not cell_bytes:
        return cells
    return min(cells, int(free * HOST_SHARE / cell_bytes))


def _expected_bytes(model: LlamaModel) -> float:
    """Return the bytes of a cell by the model's metadata: those of plain attention."""
    if model.recurrent:
        return 0
    lib = model.lib
    heads = lib.llama_model_n_head(model.handle)
    kv_heads = lib.llama_model_n_head_kv(model.handle) or heads  # the first layer may have none
    size: int = lib.llama_model_n_embd(model.handle) // max(heads, 1)
    architecture = metadata_text(lib, model.handle, "general.architecture")
    types = (model.options.cache_type_k, model.options.cache_type_v)
    head_bytes = 0.0
    for name, kind in zip(("key_length", "value_length"), types, strict=True):
        key = f"{architecture}.attention.{name}"
        length = int(metadata_text(lib, model.handle, key) or size)
        head_bytes += length * NUMBER_BYTES[kind or "f16"]
    layers: int = lib.llama_model_n_layer(model.handle)
    return _all_bytes(model, int(layers * kv_heads * head_bytes) + _PLACE)


def _all_bytes(model: LlamaModel, cell_bytes: int) -> float:
    """Return the bytes of a cell, with those of the masks that a step of all rows needs for it."""
    if not cell_bytes:
        return 0
    masks = 2 if model.lib.llama_model_n_swa(model.handle) > 0 else 1
    rows = model.options.ubatch_size or _ROWS
    return cell_bytes + masks * _F16 * rows
