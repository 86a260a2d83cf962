"""How many ids each sequence of an engine holds, and the checks of a call before it touches a model."""

from collections.abc import Sequence

from specmesh.engines.base import Span
from specmesh.errors import LocalProtocolError

ANY_ID = 2**31
"""`n_vocab` of an engine that knows ids only: every non-negative int32 passes."""


class Sequences:
    """Lengths of sequences 0 .. n_seq - 1; every check raises LocalProtocolError and changes nothing."""

    __slots__ = ("_held", "n_ctx", "n_vocab")

    def __init__(self, n_seq: int, n_ctx: int, n_vocab: int) -> None:
        self._held = [0] * n_seq
        self.n_ctx = n_ctx
        self.n_vocab = n_vocab

    def held(self, seq: int) -> int:
        if not 0 <= seq < len(self._held):
            raise LocalProtocolError(f"sequence {seq} does not exist: this engine has {len(self._held)}")
        return self._held[seq]

    def set(self, seq: int, length: int) -> None:
        self._held[seq] = length

    def check_append(self, seq: int, ids: Sequence[int], n_batch: int) -> int:
        """Whether `ids` may follow what `seq` holds, in one call; returns how many it holds."""
        held = self.held(seq)
        if not 0 < len(ids) <= n_batch:
            raise LocalProtocolError(f"{len(ids)} ids in one call: 1 to {n_batch} can be taken")
        self._check_ids(seq, held, ids)
        return held

    def check_step(self, spans: Sequence[Span], n_batch: int, n_outputs: int) -> None:
        """Whether `spans` fit one step of at most n_batch rows, n_outputs of them with logits."""
        rows = sum(len(span.ids) for span in spans)
        outputs = sum(len(span.ids) for span in spans if span.logits)
        if rows > n_batch or outputs > n_outputs:
            raise LocalProtocolError(
                f"a step of {rows} rows, {outputs} with logits: {n_batch} and {n_outputs} are the most"
            )
        ends: dict[int, int] = {}
        for span in spans:
            held = ends.get(span.seq, self.held(span.seq))
            if span.position != held:
                raise LocalProtocolError(f"a span at {span.position} of sequence {span.seq} with {held} ids")
            self._check_ids(span.seq, held, span.ids)
            ends[span.seq] = span.end

    def check_trim(self, seq: int, length: int) -> int:
        """Whether `seq` may be cut to `length`, 0 <= length <= held; returns how many it holds."""
        held = self.held(seq)
        if not 0 <= length <= held:
            raise LocalProtocolError(f"sequence {seq} cannot be cut to {length}: it holds {held}")
        return held

    def check_copy(self, seq: int, source: int, length: int) -> None:
        """Whether the empty `seq` may begin with `length` ids of `source`, 0 < length <= held."""
        if self.held(seq) or not 0 < length <= self.held(source):
            raise LocalProtocolError(
                f"sequence {seq} with {self.held(seq)} ids cannot begin with {length} of sequence {source}, which "
                f"holds {self.held(source)}"
            )

    def _check_ids(self, seq: int, held: int, ids: Sequence[int]) -> None:
        if not ids:
            raise LocalProtocolError(f"no ids for sequence {seq}")
        if held + len(ids) > self.n_ctx:
            raise LocalProtocolError(f"{len(ids)} ids for sequence {seq}, which holds {held} of at most {self.n_ctx}")
        if min(ids) < 0 or max(ids) >= self.n_vocab:
            raise LocalProtocolError(f"an id outside [0, {self.n_vocab}) for sequence {seq}")
