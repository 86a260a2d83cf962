"""What an engine is to reserve: decided by its settings and its model, before memory is known."""

from dataclasses import dataclass, replace

from specmesh.config import ModelSettings
from specmesh.core.drafter.window import WINDOW_IDS
from specmesh.core.kv_slots import GUEST_IDS
from specmesh.core.kv_windows import WindowSizes
from specmesh.engines.base import context_of
from specmesh.engines.kv_size import ContextSize, ContextWish
from specmesh.engines.llama.cache import CacheSizes
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.llama.windows import HELPERS, cells_of, has_keeper
from specmesh.host import physical_cores

CPU_ROWS = 4
GPU_ROWS = 8
"""Rows of a reproducible step.

On a GPU eight rows take hardly longer than one. On a CPU they take 1.5 to 3 times as long, four
rows 1.1 to 1.7 times. Some kernels compute rows in fours, and the rest differently. The numbers
must not depend on measurements: the next start could bring others.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sequences and steps of an engine.

    n_batch: most rows of one step, unless there are more sequences.
    rollback: most rows of a step that are taken back; 0 for a drafter.
    width: rows of each step; None if they differ.
    guests: sequences beside those of sessions.
    endless: no memory grows with a text.
    """

    model: LlamaModel
    settings: ModelSettings
    n_batch: int
    rollback: int
    width: int | None
    guests: int
    endless: bool
    threads: int

    @property
    def wish(self) -> ContextWish:
        """Return the context that is wanted."""
        settings = self.settings
        trained = self.model.trained_ctx
        ctx = settings.ctx
        if not self.rollback:
            ctx = context_of(ctx, trained)
        return ContextWish(
            ctx=ctx,
            trained=trained,
            max_sessions=settings.max_sessions,
            kv_cache=settings.kv_cache,
            shared=self.width is None,
        )

    @property
    def _sequences(self) -> int:
        return self.settings.max_sessions + self.guests

    def cache_sizes(self, size: ContextSize) -> CacheSizes:
        """Return the sizes of a cache for a context of this size."""
        width = self.width
        rows = max(min(self.n_batch, size.cells), self._sequences, 2, width or 0)
        outputs = min(self._sequences * (self.rollback + 1), rows)
        guest_ids = GUEST_IDS
        if not self.rollback:
            guest_ids = _spare_ids(self.settings, size.n_ctx)
        shared_cells: int | None = size.cells
        if width is not None:
            # llama.cpp wants a row of logits for each sequence
            outputs = max(width, size.max_sessions)
            shared_cells = None
        sizes = CacheSizes(
            n_ctx=size.n_ctx,
            max_sessions=size.max_sessions,
            rows=rows,
            outputs=outputs,
            threads=self.threads,
            width=width,
            guests=self.guests,
            guest_ids=guest_ids,
            drafts=self.rollback,
            shared_cells=shared_cells,
        )
        return replace(sizes, swa_full=not self._windows_in(sizes).limited)

    def windows(self, size: ContextSize) -> WindowSizes:
        """Return the sizes of a target's windows; a draft model has a cell for each id."""
        return self._windows_in(self.cache_sizes(size))

    def _windows_in(self, sizes: CacheSizes) -> WindowSizes:
        full = self.settings.swa_full
        is_drafter = not self.rollback
        if not has_keeper(self.model, sizes) or is_drafter or full:
            return WindowSizes()
        cells = cells_of(self.model, sizes)
        most = sizes.cells
        if full is None:  # each id has a cell if that takes at most twice the memory
            most //= 2
        return WindowSizes(self.model.n_swa, cells if cells < most else 0)

    def n_rows(self, size: ContextSize) -> tuple[int, int]:
        """Return the most rows of a step, and the most of them that have logits."""
        n_batch = max(min(self.n_batch, size.cells), self._sequences)
        if self.width is None:
            return n_batch, min(self._sequences * (self.rollback + 1), n_batch)
        # Rows of a prompt fit beside the sessions' steps.
        n_outputs = self.width * size.max_sessions
        return n_batch + n_outputs, n_outputs


def plan_of(
    model: LlamaModel, settings: ModelSettings, *, n_batch: int, rollback: int, guests: int
) -> Plan:
    """Return the plan of an engine.

    guests: as many as are wanted. Fewer fit if llama.cpp counts no more sequences. Sequences that
        share no cells, or have states, have none.
    """
    reproducible = settings.reproducible and rollback > 0
    endless = model.recurrent and not rollback
    most: int = model.lib.llama_max_parallel_sequences()
    if model.n_swa:
        most -= HELPERS
    guests = min(guests, max(most - settings.max_sessions, 0))
    if reproducible or endless or (model.has_states and rollback):
        guests = 0
    width = None
    if reproducible:
        width = GPU_ROWS if model.on_gpu else CPU_ROWS
    return Plan(
        model=model,
        settings=settings,
        n_batch=n_batch,
        rollback=rollback,
        width=width,
        guests=guests,
        endless=endless,
        threads=settings.threads or physical_cores(),
    )


def _spare_ids(settings: ModelSettings, n_ctx: int) -> int:
    """Return the cells of a spare sequence: those of a window, or of what is kept there between."""
    return max(min(settings.window or WINDOW_IDS, n_ctx) + 1, GUEST_IDS)
