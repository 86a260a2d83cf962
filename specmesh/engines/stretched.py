"""llama.cpp with the step times of another machine: the rest of each step's time is waited for."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.engines.base import Ask, Progress, rows_of
from specmesh.engines.llama.engine import LlamaDrafter, LlamaEngine, LlamaVerifier
from specmesh.engines.sim import wait_until
from specmesh.machines import DRAFT_MS, step_ms


class _Stretched(LlamaEngine):
    """An engine whose name, in statistics too, shows that its speed is not this machine's."""

    def __init__(self, settings: ModelSettings, progress: Progress, guests: int = 0) -> None:
        super().__init__(settings, progress, guests=guests)
        self.machine = settings.stretch or ""
        self.info = replace(self.info, model=f"{self.info.model}, stretched to {self.machine}")


class StretchedVerifier(_Stretched, LlamaVerifier):
    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        started = time.perf_counter()
        logits = super().decode(spans)
        wait_until(started + step_ms(self.machine, rows_of(spans)) / 1000)
        return logits


class StretchedDrafter(_Stretched, LlamaDrafter):
    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        started = time.perf_counter()
        drafts = super().predict(asks)
        wait_until(started + DRAFT_MS / 1000)
        return drafts
