"""All sequences of a target in MLX: what each rank of a group does in the same way."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, assert_never

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.engines.mlx.caches import evaluate
from specmesh.engines.mlx.target_sequence import TargetSequence
from specmesh.errors import EngineError

CLEARED_EVERY = 256
"""Steps after which MLX frees what it keeps for later ones, as mlx-lm has it."""

LONG_READ = 128
"""Ids of a prompt, read in one step, after which it does too."""

TOGETHER = 32
"""Most ids of a prompt that are read in one pass with its last id, which has logits.

Of more ids, all but the last run without logits: the output layer is wide.
"""

Rows = NDArray[np.float32] | None


class TargetSequences:
    """The sequences of a model. Nothing is checked; exceptions are those of MLX.

    members: the sequences. n_vocab: the model's ids.
    """

    def __init__(self, module: Any, width: int | None) -> None:
        """Begin with one sequence, which holds some ids; width: rows of each span with logits."""
        self._module = module
        self._width = width
        self._steps = 0
        first = TargetSequence(module)
        self.members = [first]
        self.n_vocab = first.measure()

    def reserve(self, count: int) -> None:
        """Have so many sequences, all of them empty."""
        self.members = [TargetSequence(self._module) for _ in range(count)]

    def decode(self, spans: Sequence[Span]) -> list[Rows]:
        """Run a step; return the logits of each span."""
        lazy = list(self._passes(spans))
        wanted: list[Any] = []
        for span, rows in zip(spans, lazy, strict=True):
            caches = self.members[span.seq].caches
            if rows is None:  # nothing but the states is evaluated: the output layer never runs
                wanted.append(caches.arrays())
            else:
                wanted += [rows, caches.watched_arrays()]
        evaluate(wanted)
        self._steps += 1
        read = max((len(span.ids) for span in spans if not span.logits), default=0)
        if read >= LONG_READ or self._steps % CLEARED_EVERY == 0:
            mx.clear_cache()
        return [None if rows is None else np.asarray(rows) for rows in lazy]

    def _passes(self, spans: Sequence[Span]) -> Iterator[Any]:
        """Yield the logits of each span, which are not evaluated yet; None for one without."""
        begun: Span | None = None  # it is read in one pass with the next one
        for span, following in zip_longest(spans, spans[1:]):
            memory = self.members[span.seq]
            if begun is not None:
                rows = memory.append((*begun.ids, *span.ids), drafted=False)
                yield _single(rows[-1:])
                begun = None
            elif span.logits:
                yield self._verified(memory, span)
            elif self._goes_on(span, following):
                begun = span
                yield None
            else:
                memory.append(span.ids, drafted=False)
                yield None

    def _goes_on(self, span: Span, following: Span | None) -> bool:
        """Return True if a prompt's last id is the next span, and one pass is best for both."""
        if following is None or following.seq != span.seq or self._width is not None:
            return False
        return following.logits and len(following.ids) == 1 and len(span.ids) <= TOGETHER

    def _verified(self, memory: TargetSequence, span: Span) -> Any:
        """Return the logits of a span, filled up to the width of all steps if there is one."""
        count = len(span.ids)
        missing = 0 if self._width is None else self._width - count
        rows = memory.append((*span.ids, *[0] * missing), drafted=True)
        if missing and memory.trim(span.end) != span.end:
            step = f"a step of sequence {span.seq}"
            raise EngineError(f"MLX did not remove the rows that filled up {step}")
        return _single(rows[:count] if missing else rows)

    def carry_out(self, order: KVOrder) -> int:
        """Carry out an order as `Engine.carry_out`; return how many ids the sequence then holds."""
        memory = self.members[order.seq]
        match order:
            case KVCut(_, length):
                return memory.trim(length)
            case KVCopy(_, source, length):
                memory.begin_as(self.members[source], length)
            case KVSave():
                memory.keep()
            case KVDrop(_, length):
                memory.drop(length)
            case KVOffload() | KVNarrow():
                pass
            case _:
                assert_never(order)
        return memory.length

    def clear(self, seq: int) -> None:
        """Empty a sequence, whatever state it is in."""
        self.members[seq].clear()

    def close(self) -> None:
        """Let go of the model."""
        self.members = []
        self._module = None


def _single(rows: Any) -> Any:
    """Return logits in single precision."""
    return rows.astype(mx.float32)
