"""How many ids a context holds: by the settings, the model and the free memory."""

from dataclasses import dataclass, replace

from specmesh.config import KVCacheSize
from specmesh.engines.base import DEFAULT_CTX
from specmesh.errors import ConfigError

MAX_CELLS = 2**31 - 1  # a 32-bit count would wrap around, as llama.cpp's
FREE_SHARE = 0.5
"""Of the free memory that the cells of all sessions get: another daemon may be on this host."""

LEAST_CTX = 512  # ids of a session, if memory allows no more


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWish:
    """The settings of a context, and what its model was trained with.

    ctx: most ids of a session. None: what the model was trained with, as far as memory allows.
    trained: ids of the longest text that the model is made for; 0 if it has no number.
    max_sessions: most sessions.
    kv_cache: of all sessions. None: as much as they can need, as far as memory allows.
    shared: the sessions share the cells.
    """

    ctx: int | None
    trained: int
    max_sessions: int
    kv_cache: KVCacheSize | None = None
    shared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSize:
    """The size of a context.

    n_ctx: most ids of a session. max_sessions: most sessions.
    cells: that they share, or that all have together.
    """

    n_ctx: int
    max_sessions: int
    cells: int


def context_size(wish: ContextWish, cell_bytes: float, free: float | None) -> ContextSize:
    """Return the size of a context. Raises ConfigError if the settings contradict each other.

    - All sessions with all their ids get cells, or as many as memory allows.
    - An explicit `ctx` is kept to for one session, whatever is free.
    - Where sessions share no cells, each has those of the longest text, and there are fewer
      sessions if memory allows no more. Without an explicit `ctx` texts are shorter instead, down
      to DEFAULT_CTX.

    cell_bytes: of one cell; 0 if cells take no memory. free: bytes; None if that is unknown.
    """
    longest = wish.ctx or wish.trained or DEFAULT_CTX
    if longest > MAX_CELLS:
        raise ConfigError(f"--ctx {longest} is more than can be counted", "give a smaller one")
    most = min(longest * wish.max_sessions, MAX_CELLS)
    room = min(_room(wish, cell_bytes, free, most), most)
    if wish.kv_cache is not None and wish.ctx is not None and room < wish.ctx:
        reason = f"--ctx {wish.ctx} does not fit into --kv-cache {wish.kv_cache.text}"
        raise ConfigError(reason, f"{room} tokens do, so give a larger --kv-cache or less --ctx")
    if wish.shared:
        n_ctx = longest
        if wish.ctx is None:
            n_ctx = max(min(longest, room), min(longest, LEAST_CTX))
        return ContextSize(n_ctx=n_ctx, max_sessions=wish.max_sessions, cells=max(room, n_ctx))
    n_ctx = longest
    if wish.ctx is None:
        least = min(longest, max(min(room, DEFAULT_CTX), LEAST_CTX))
        n_ctx = min(longest, max(room // wish.max_sessions, least))
    sessions = min(max(room // n_ctx, 1), wish.max_sessions)
    return ContextSize(n_ctx=n_ctx, max_sessions=sessions, cells=n_ctx * sessions)


def _room(wish: ContextWish, cell_bytes: float, free: float | None, most: int) -> int:
    """Return the cells that the settings or the memory allow."""
    chosen = wish.kv_cache
    if chosen is not None and chosen.cells is not None:
        return chosen.cells
    allowed = free
    share = FREE_SHARE
    if chosen is not None and chosen.bytes is not None:
        allowed = chosen.bytes
        share = 1.0
    if allowed is None or not cell_bytes:
        return most
    return int(allowed * share / cell_bytes)


def halved(size: ContextSize, wish: ContextWish) -> ContextSize | None:
    """Return a context of half the size, for which memory may suffice; None if nothing is smaller.

    A size that the settings name is kept to.
    """
    if wish.kv_cache is not None:
        return None
    cells = size.cells // 2
    if not wish.shared:
        sessions = size.max_sessions // 2
        if not sessions:
            return None
        return replace(size, max_sessions=sessions, cells=sessions * size.n_ctx)
    least = wish.ctx or LEAST_CTX
    if cells < least:
        return None
    return replace(size, cells=cells, n_ctx=min(size.n_ctx, cells))
