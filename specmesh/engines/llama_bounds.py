"""The last look at every number before llama.cpp gets it: sequences, positions, ids, rows.

llama.cpp trusts its caller with most of them, and wrong ones have reached memory that was not theirs. Callers check
what they are asked (`Sequences`); what does not pass here is a defect of ours, and goes no further.
"""

from collections.abc import Sequence

from specmesh.engines.base import Fork, Span
from specmesh.errors import EngineError


class Bounds:
    """What one llama_context may be asked, and at most how many ids each of its sequences holds.

    n_ctx:   positions of a sequence are below this.
    rows:    most of one decode.
    outputs: most of those with logits.

    Every check raises EngineError and changes nothing then.
    """

    __slots__ = ("_held", "_logits", "_n_ctx", "_n_vocab", "_outputs", "_rows")

    def __init__(self, n_seq: int, n_ctx: int, n_vocab: int, rows: int, outputs: int) -> None:
        self._held = [0] * n_seq
        self._n_ctx, self._n_vocab = n_ctx, n_vocab
        self._rows, self._outputs = rows, outputs
        self._logits = 0

    def run(self, spans: Sequence[Span]) -> None:
        """Whether these spans may be decoded; from then on their sequences may hold them, however the decode ends."""
        rows = sum(span.rows for span in spans)
        wanted = sum(span.rows for span in spans if span.logits)
        if rows > self._rows or wanted > self._outputs:
            raise EngineError(f"a decode of {rows} rows, {wanted} with logits: {self._rows} and {self._outputs} fit")
        held = list(self._held)
        for span in spans:
            self.seq(span.seq)
            if not span.ids or span.position != held[span.seq] or span.position + len(span.ids) > self._n_ctx:
                raise EngineError(
                    f"{len(span.ids)} ids at position {span.position} of sequence {span.seq}, which holds "
                    f"{held[span.seq]} of at most {self._n_ctx}"
                )
            self._ids(span.seq, span.ids)
            if span.fork is not None:
                self._fork(span, span.fork, held, [seq for other in spans for seq in other.seqs])
            for seq, length in span.ends.items():
                held[seq] = length
        self._held, self._logits = held, wanted

    def _ids(self, seq: int, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self._n_vocab:
            raise EngineError(f"an id outside [0, {self._n_vocab}) for sequence {seq}")

    def _fork(self, span: Span, fork: Fork, held: Sequence[int], seqs: Sequence[int]) -> None:
        """Rows of two sequences are for such as hold the same cells, in no other rows of the decode."""
        self.seq(fork.seq)
        alone = seqs.count(span.seq) == seqs.count(fork.seq) == 1
        shares = 0 < fork.shared <= len(span.ids) and held[fork.seq] == span.position
        if not fork.ids or not alone or not shares or span.ends[fork.seq] > self._n_ctx:
            raise EngineError(
                f"{len(fork.ids)} ids fork into sequence {fork.seq}, which holds {held[fork.seq]} of at most "
                f"{self._n_ctx}, after {fork.shared} of {len(span.ids)} at position {span.position}"
            )
        self._ids(fork.seq, fork.ids)

    def cut(self, seq: int, length: int) -> None:
        """Whether a sequence may be cut to `length`."""
        self.seq(seq)
        if not 0 <= length <= self._held[seq]:
            raise EngineError(f"sequence {seq} cannot be cut to {length}: it holds {self._held[seq]}")

    def share(self, seq: int, source: int, length: int) -> None:
        """Whether an empty sequence may have the first `length` ids of another too."""
        self.seq(seq)
        self.seq(source)
        if self._held[seq] or not 0 < length <= self._held[source]:
            raise EngineError(
                f"sequence {seq} with {self._held[seq]} ids cannot share {length} of sequence {source}, which holds "
                f"{self._held[source]}"
            )

    def refill(self, seq: int, length: int) -> None:
        """Whether an empty sequence may be filled with `length` ids at once."""
        self.seq(seq)
        if self._held[seq] or not 0 < length <= self._n_ctx:
            raise EngineError(f"sequence {seq} with {self._held[seq]} ids cannot be filled with {length}")

    def was_cut(self, seq: int, length: int) -> None:
        """Note that a sequence holds `length` ids."""
        self._held[seq] = length

    def seq(self, seq: int) -> None:
        """Whether there is such a sequence."""
        if not 0 <= seq < len(self._held):
            raise EngineError(f"sequence {seq} of {len(self._held)}")

    def logits(self, rows: int) -> None:
        """Whether the last decode made so many rows of logits."""
        if not 0 <= rows <= self._logits:
            raise EngineError(f"{rows} rows of logits: the last decode made {self._logits}")
