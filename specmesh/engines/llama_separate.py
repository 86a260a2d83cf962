"""Steps of sequences with a memory each, in as few decodes as they can be.

llama.cpp computes rows of such sequences together where these follow each other without a gap, as many rows of each at
once as all of them have that have any left (`llama_batch_allocr::split_equal`). What is left over is computed on its
own, and the weights are read again for it.
"""

from collections.abc import Sequence
from itertools import pairwise

from specmesh.engines.base import Span
from specmesh.engines.llama_cache import LlamaCache
from specmesh.engines.sequences import Sequences
from specmesh.errors import EngineError, LocalProtocolError

_ALONE = 32
"""Rows from which on a part of a prompt is a decode of its own: slices of unequal parts would be, and some of them
thin."""

_BRIDGE = 4
"""Most sequences side by side that get a row for nothing: as much as that they cost, the weights cost on a CPU."""


class SeparateMemories:
    """Runs spans in a cache whose sequences have memories of their own, and rows can be removed.

    rows: most of one decode.
    """

    def __init__(self, cache: LlamaCache, sequences: Sequences, rows: int) -> None:
        self._cache, self._sequences, self._rows = cache, sequences, rows

    def run(self, spans: Sequence[Span]) -> None:
        """Run spans; the wanted logits are those of the last decode.

        Raises LocalProtocolError, with nothing done, where spans with logits are not in the order of their sequences,
        as the logits would be; EngineError, with any number of the rows taken in.
        """
        wanted = [span.seq for span in spans if span.logits]
        if wanted != sorted(wanted):
            raise LocalProtocolError(f"logits of sequences {wanted}: give spans in the order of their sequences")
        alone = [span for span in spans if not span.logits and len(span.ids) >= _ALONE]
        together = [span for span in spans if span.logits or len(span.ids) < _ALONE]
        for span in alone:
            self._cache.run([span])
        bridges = self._bridges(together, {span.seq: span.end for span in alone})
        try:
            self._cache.run(sorted((*together, *bridges), key=lambda span: span.seq))
        finally:
            kept = [bridge.seq for bridge in bridges if not self._cache.remove(bridge.seq, bridge.position)]
        if kept:
            raise EngineError(f"llama.cpp did not remove what bridged a gap, of sequences {kept}")

    def _bridges(self, spans: Sequence[Span], ends: dict[int, int]) -> list[Span]:
        """A row for each sequence in the small gaps between those of the spans, of which nothing is wanted: where none
        is longer than those, as attention passes over as many cells of each.

        ends: what sequences hold by now where that is not known yet.
        """
        seqs, bridges = sorted({span.seq for span in spans}), list[Span]()
        longest = max((span.position for span in spans), default=0)
        for before, after in pairwise(seqs):
            gap = range(before + 1, after)
            held = [ends.get(seq, self._sequences.held(seq)) for seq in gap]
            if len(gap) <= _BRIDGE and all(length <= longest for length in held):
                bridges += [Span(seq, length, (0,), logits=False) for seq, length in zip(gap, held, strict=True)]
        fits = sum(len(span.ids) for span in spans) + len(bridges) <= self._rows
        return bridges if fits else []
