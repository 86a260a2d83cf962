"""The memory of a target's sequences in MLX: how many ids there is room for."""

from typing import Any

import mlx.core as mx

from specmesh.config import ModelSettings
from specmesh.engines.kv_size import ContextSize, ContextWish, context_size
from specmesh.engines.mlx.caches import Caches
from specmesh.free_memory import free_bytes
from specmesh.host import physical_memory

_CHECKPOINT_BYTES = 2 * 2**30
_MAX_CHECKPOINTS = 32
"""Memory for saved states, if that is not more than an eighth; and most of a sequence."""


def size_for(settings: ModelSettings, trained: int, caches: Caches, *, shared: bool) -> ContextSize:
    """Return the size of all sequences. Raises ConfigError.

    trained: ids of the longest text that the model is made for; 0 if it has no number.
    caches: of the model, with some ids. shared: sequences may have the memory of others.
    """
    wish = ContextWish(
        ctx=settings.ctx,
        trained=trained,
        max_sessions=settings.max_sessions,
        kv_cache=settings.kv_cache,
        shared=shared,
    )
    return context_size(wish, caches.cell_bytes, free_memory())


def free_memory() -> int | None:
    """Return the most bytes that MLX may still take; None if that is unknown."""
    device: dict[str, Any] = mx.device_info()
    allowed: list[int] = []
    most = device.get("max_recommended_working_set_size")  # of Metal
    if most:
        allowed.append(int(most) - mx.get_active_memory())
    left = device.get("free_memory")  # of CUDA
    host = free_bytes()
    if left:
        allowed.append(int(left))
    elif host is not None:
        allowed.append(host)
    return max(min(allowed), 0) if allowed else None


def keep_resident() -> None:
    """Have the system keep as much of MLX's memory in place as Metal recommends."""
    if mx.metal.is_available():
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))


def checkpoints_for(caches: Caches, sequences: int) -> int:
    """Return how many states may be saved; 0 where ids are cut off."""
    if caches.can_cut:
        return 0
    room = min(_CHECKPOINT_BYTES, physical_memory() // 8)
    return min(room // max(caches.state_bytes, 1), _MAX_CHECKPOINTS * sequences)
