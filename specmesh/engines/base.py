"""The protocols of target and draft models, and the checks that their engines share.

Sequences are numbered 0 .. max_sessions + guests - 1; the daemon allots them. An engine is used
from one thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.kv_reuse import KVReuse
from specmesh.core.kv_slots import NO_WINDOWS
from specmesh.core.kv_windows import WindowSizes
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.text.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import LocalProtocolError, RequestError

Trimming = Literal["removal", "restore"]
"""How the last ids of a sequence are taken back.

removal: their rows are removed from memory.
restore: a saved state is restored, and the ids that stay are decoded again.
"""

DEFAULT_CTX = 4096  # ids per sequence if the settings name no number

Progress = Callable[[float], object]
"""Takes the share of a model that is loaded, 0.0 to 1.0."""

ANY_ID = 2**31
"""`n_vocab` of an engine that knows ids only."""


def context_of(chosen: int | None, trained: int) -> int:
    """Return the ids per sequence.

    By default this is DEFAULT_CTX, but no more than the model was trained with.
    """
    if chosen is not None:
        return chosen
    return min(DEFAULT_CTX, trained or DEFAULT_CTX)


def bytes_of(text: str) -> bytes:
    """Return a prompt in UTF-8. Raise RequestError for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"the prompt is not valid Unicode: {error.reason}") from error


def rows_of(spans: Sequence[Span]) -> int:
    """Return the number of rows of a step."""
    return sum(len(span.ids) for span in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The operations that an engine supports.

    trimming: how the last ids of a sequence are taken back.
    reuse: the part of a sequence that another session may continue from, long after it was
        decoded.
    shares: the sequences that hold the same ids by a copy have them in memory once.
    width: rows in which every span with logits is computed, and the most that it may have, so
        that its logits do not depend on the rest of the step. None: a step is as wide as its
        spans.
    batches: drafts for several sequences take less time in one call than one after the other.
    offloads: steps pay for the ids that all sequences hold, and a `KVOffload` moves idle ones away.
    offload_after: steps that a sequence is idle for before that pays.
    endless: a sequence may have any number of ids, as the memory of each is the same for all.
    checkpoints: states that may be saved by `KVSave`, of all sequences together.
    windows: sizes of the model's sliding windows. If they have fewer cells than the rest, the
        caller makes room for each step by `KVNarrow`.
    follows: a drafter that reads the rows of its target's steps. It needs their hidden states.
    kept_rows: rows before the target's newest step whose hidden states such a drafter still has.
    """

    trimming: Trimming = "removal"
    reuse: KVReuse = "whole"
    shares: bool = True
    width: int | None = None
    batches: bool = False
    offloads: bool = False
    offload_after: int = 0
    endless: bool = False
    checkpoints: int = 0
    windows: WindowSizes = NO_WINDOWS
    follows: bool = False
    kept_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """A loaded engine as the daemons see it.

    n_ctx: most ids of one sequence.
    cells: that the sequences of full length share. None if each has `n_ctx` of its own.
    cell_bytes: memory of a cell; 0 if it is not known.
    host_ids: ids of sequences that there is room for in the host's memory.
    n_batch: most rows of one step, over all spans.
    n_outputs: most rows with logits of one step. None: `n_batch`.
    max_sessions: sequences of full length.
    guests: further sequences, for texts of GUEST_IDS cells; those of a draft model are its spare
        ones, for windows.
    bos: id that the model's texts begin with; None if they begin with none.
    threads: CPU threads of a step; 0 on a GPU or without a model. `use_threads` changes them.
    backend: the device in words ("CPU, 2 threads"; "CUDA: NVIDIA GB10, 81 layers").
    """

    model: str
    n_ctx: int
    n_batch: int
    max_sessions: int
    backend: str
    capabilities: Capabilities
    cells: int | None = None
    cell_bytes: int = 0
    host_ids: int = 0
    n_outputs: int | None = None
    threads: int = 0
    guests: int = 0
    bos: int | None = None

    def kv_cache(self) -> dict[str, object]:
        """Return the ids and bytes that the cells of all sequences of full length take."""
        cells = self.n_ctx * self.max_sessions if self.cells is None else self.cells
        return {"kv_cache_tokens": cells, "kv_cache_bytes": cells * self.cell_bytes}

    def named(self) -> dict[str, object]:
        """Return the part that stats and the log show."""
        return {
            "name": self.model,
            "backend": self.backend,
            "n_ctx": self.n_ctx,
            **self.kv_cache(),
            "trimming": self.capabilities.trimming,
        }


class Engine(Protocol):
    """A loaded model. An invalid call raises LocalProtocolError and changes nothing."""

    @property
    def info(self) -> EngineInfo: ...

    def carry_out(self, order: KVOrder) -> int:
        """Carry out an order; return how many ids the sequence `order.seq` then holds.

        KVCut: it keeps at most its first `length` ids.

        - A length of 0 frees the sequence.
        - With the trimming "removal" every length is possible.
        - A target can always take back the rows of a sequence's last step, except its first.
        - A model that cannot go back so far holds fewer ids. The caller feeds the rest again.

        KVCopy: it is empty, and begins with the first `length` ids of `source`. Raise
        LocalProtocolError unless `capabilities.reuse` is "copied", or a state of `source` of this
        length was saved.

        KVOffload: it is idle, and may leave the memory that each step reads until it is used.
        Callers see no difference. Without `capabilities.offloads` it stays. It must leave its cells
        at once if `now`: then it holds nothing if the host's memory has no room for it.

        KVSave: it can be cut to `length` ids later, or copied, whatever it loses. With the trimming
        "restore" it holds no more. A KVCut to fewer ids forgets it, and so does KVDrop.

        KVNarrow: it may lose the ids before `begin` in layers with a window, and then be cut to no
        fewer than `begin` and a window.
        """
        ...

    def use_threads(self, threads: int) -> None:
        """Use this many CPU threads from the next step on, if `info.threads` is not 0."""

    @property
    def offloaded_bytes(self) -> int:
        """Return the size of all offloaded sequences; safe from any thread."""
        ...

    def close(self) -> None:
        """Free the model; a second call does nothing."""


class Unthreaded:
    """The operations of an engine that has no CPU threads, and nothing to offload or to free."""

    offloaded_bytes = 0

    def use_threads(self, threads: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class VerifyEngine(Engine, Protocol):
    """A target model: decodes rows of several sequences in one step."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        """Run one step.

        Return per span its logits, float32 (rows, n_vocab), valid until the next call; None for a
        span without `logits`. The `position` of a span must equal the ids that its sequence
        holds. Raises EngineError; the sequences of the step are empty then. Raises NoRoom without
        cells for the rows; the sequences are as before then, but for those that it names.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a draft.

    seq: the sequence.
    ids: new ids of the sequence, to be decoded first.
    sampler: chooses the draft of the id that follows. None: nothing is drafted.
    shift: position in the text of the sequence's first id. A sampler wants positions in the text.
    """

    seq: int
    ids: tuple[int, ...]
    sampler: Sampler | None
    shift: int = 0


class DraftEngine(Engine, Protocol):
    """A draft model: drafts one token of a sequence at a time."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Return None for an engine that knows ids only."""

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        """Append each ask's ids to its sequence; return a draft of the id after them, or None.

        - The sequences differ. They have at most n_batch ids in all.
        - Several asks need `capabilities.batches`.
        - A sampler that is `argmax` need not be called.
        - After an error a `KVCut` returns the number of ids that each sequence holds.
        """
        ...


class LocalDrafter(NamedTuple):
    """A drafter in the process of its target, which has as many sequences.

    speaking: the same in the target's vocabulary.
    """

    engine: DraftEngine
    speaking: DraftEngine

    @property
    def source(self) -> str:
        """Return the name of the source of its drafts."""
        return "mtp" if self.engine.info.capabilities.follows else "local"


class Sequences:
    """The lengths of all sequences. Each check raises LocalProtocolError and changes nothing."""

    def __init__(
        self,
        max_sessions: int,
        n_ctx: int,
        n_vocab: int,
        n_batch: int,
        n_outputs: int | None = None,
    ) -> None:
        """Begin empty; n_batch: most rows of a step; n_outputs: most of them with logits."""
        self.lengths = dict.fromkeys(range(max_sessions), 0)
        self._n_ctx = n_ctx
        self._n_vocab = n_vocab
        self._n_batch = n_batch
        self._n_outputs = n_batch if n_outputs is None else n_outputs

    def held(self, seq: int) -> int:
        """Return the number of ids that a sequence holds."""
        if seq not in self.lengths:
            raise self._missing(seq)
        return self.lengths[seq]

    def _missing(self, seq: int) -> LocalProtocolError:
        count = len(self.lengths)
        return LocalProtocolError(f"sequence {seq} does not exist: this engine has {count}")

    def check_append(self, seq: int, ids: Sequence[int]) -> int:
        """Check that `ids` may follow the ids of `seq`; return how many it holds."""
        held = self.held(seq)
        self.check_step((Span(seq, held, tuple(ids), logits=False),))
        return held

    def check_step(self, spans: Sequence[Span]) -> int:
        """Check that `spans` fit one step; return how many rows have logits."""
        rows = 0
        outputs = 0
        ends = self.lengths.copy()
        for span in spans:
            if span.seq not in ends:
                raise self._missing(span.seq)
            count = len(span.ids)
            held = ends[span.seq]
            if span.position != held or not count:
                place = f"{span.position} of sequence {span.seq}"
                raise LocalProtocolError(f"{count} ids at {place}, which has {held}")
            if min(span.ids) < 0 or max(span.ids) >= self._n_vocab:
                allowed = f"[0, {self._n_vocab})"
                raise LocalProtocolError(f"an id outside {allowed} for sequence {span.seq}")
            end = held + count
            ends[span.seq] = end
            if end > self._n_ctx:
                most = f"which can hold at most {self._n_ctx}"
                raise LocalProtocolError(f"{end} ids for sequence {span.seq}, {most}")
            rows += count
            if span.logits:
                outputs += count
        if rows > self._n_batch or outputs > self._n_outputs:
            most = f"{self._n_batch} and {self._n_outputs} are the most"
            raise LocalProtocolError(f"a step of {rows} rows, {outputs} with logits: {most}")
        return outputs

    def check_cut(self, cut: KVCut) -> int:
        """Check that the length is no less than 0; return how many ids the sequence keeps."""
        if cut.length < 0:
            raise LocalProtocolError(f"sequence {cut.seq} cannot be cut to {cut.length}")
        return min(self.held(cut.seq), cut.length)

    def cut(self, cut: KVCut) -> int:
        """Note that a sequence is cut as `check_cut` allows; return how many ids it holds."""
        kept = self.check_cut(cut)
        self.lengths[cut.seq] = kept
        return kept

    def check_copy(self, copy: KVCopy) -> None:
        """Check that the sequence is empty, and that `source` holds `length` ids."""
        if self.held(copy.seq) or not 0 < copy.length <= self.held(copy.source):
            beginning = f"{copy.length} ids of sequence {copy.source}"
            raise LocalProtocolError(f"sequence {copy.seq} cannot begin with {beginning}")

    def decline(self, order: KVCopy | KVOffload | KVSave | KVDrop | KVNarrow) -> int:
        """Return the ids that a sequence holds, which neither left nor was saved; refuse a copy."""
        if isinstance(order, KVCopy):
            raise LocalProtocolError(f"sequence {order.seq} cannot share ids with another")
        return self.held(order.seq)
