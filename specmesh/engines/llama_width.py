"""Steps of one constant width, whose logits depend on nothing but the ids before them.

Kernels are chosen by how many rows a decode has, and round differently; and the cells that attention sums over lie
where there was room. So each sequence is decoded on its own, in cells of its own, and rows whose logits are wanted are
filled up to always as many. What fills them up follows in the same sequence, where no row looks, and is removed after.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specmesh.engines.base import Span
from specmesh.engines.llama_cache import LlamaCache
from specmesh.engines.llama_model import LlamaModel
from specmesh.errors import EngineError, LocalProtocolError

CPU_ROWS, GPU_ROWS = 4, 8
"""Rows of a step: on a GPU eight cost hardly more than one; on a CPU they cost 1.5 to 3 times as much, four 1.1 to 1.7
times (bench/RESULTS.md). Multiples of four, because some kernels take rows in fours, and the rest in another way."""


def width_of(model: LlamaModel) -> int:
    """The width of all steps of a model. It must not depend on measurements, or the next start could bring another."""
    return GPU_ROWS if model.on_gpu else CPU_ROWS


class ConstantWidth:
    """Runs spans in a cache whose rows can be removed.

    width: rows of each decode with logits. rows: most of one without.
    """

    def __init__(self, cache: LlamaCache, width: int, rows: int) -> None:
        self._cache, self._width, self._rows = cache, width, rows

    def run(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """Run each span; the wanted logits in order, float32 (rows with logits, n_vocab), valid until the next call.

        Raises LocalProtocolError for a span with logits that is too wide, with nothing done; EngineError, with any
        number of the rows taken in.
        """
        for span in spans:
            if span.logits and len(span.ids) > self._width:
                raise LocalProtocolError(f"a span of {len(span.ids)} rows with logits: each step has {self._width}")
        shown: list[NDArray[np.float32]] = []
        for span in spans:
            if not span.logits:
                self._read(span)
                continue
            rows = self._step(span)
            shown.append(rows if span is spans[-1] else rows.copy())
        return shown[0] if len(shown) == 1 else np.concatenate(shown or [self._cache.logits(0)])

    def _step(self, span: Span) -> NDArray[np.float32]:
        end = span.end
        missing = self._width - len(span.ids)
        filling = [Span(span.seq, end, (0,) * missing, logits=True)] if missing else []
        self._cache.run([span, *filling])
        if missing and not self._cache.remove(span.seq, end):
            raise EngineError(f"llama.cpp did not remove what filled a step of sequence {span.seq} up")
        return self._cache.logits(self._width)[: len(span.ids)]

    def _read(self, span: Span) -> None:
        for at in range(0, len(span.ids), self._rows):
            self._cache.run([Span(span.seq, span.position + at, span.ids[at : at + self._rows], logits=False)])
