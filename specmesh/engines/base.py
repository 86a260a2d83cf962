"""The protocols of target and draft models, and what their engines share.

Sequences are numbered 0 .. max_sessions + guests - 1; the daemon allots them. An engine is used
from one thread.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, assert_never, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.events import DraftedRows, DraftRow, DraftStep, Rows, Span, Step
from specmesh.core.kv_slots import KVCopy, KVCut, KVOffload, KVReuse
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.session_params import TargetLimits
from specmesh.core.text.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import LocalProtocolError

Trimming = Literal["removal", "restore"]
"""How the last ids of a sequence are taken back: they are removed; or a saved state is restored, and what is kept
decoded again."""

DEFAULT_CTX = 4096  # default ids per sequence


def context_of(chosen: int | None, trained: int) -> int:
    """Return the ids per sequence: as chosen, else the default, but no more than the model was trained with."""
    return min(DEFAULT_CTX, trained or DEFAULT_CTX) if chosen is None else chosen


@functools.cache
def physical_cores() -> int:
    """Return the number of cores this process may run on, without hyper-threads."""
    try:
        allowed = os.sched_getaffinity(0)  # type: ignore[attr-defined,unused-ignore]
    except AttributeError:  # macOS, whose cores have one thread each
        return os.cpu_count() or 1
    siblings = (
        Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in allowed
    )
    try:
        return len({path.read_text() for path in siblings})
    except OSError:
        return len(allowed)


Progress = Callable[[float], object]  # takes the share of a model that is loaded, 0.0 to 1.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    model: str
    n_ctx: int  # ids per sequence
    n_batch: int  # most rows of one step, over all spans
    max_sessions: int  # each has a sequence
    trimming: Trimming
    backend: str  # where it runs, for people ("CPU, 2 threads"; "CUDA: NVIDIA GB10, 81 layers")
    # Rows in which every span with logits is computed, and most that it may have, so that its logits do not depend on
    # the rest of the step. None: a step is as wide as its spans.
    width: int | None = None
    reuse: KVReuse = (
        "whole"  # what of a sequence another session may continue from, long after it was decoded
    )
    batches: bool = (
        False  # a draft engine drafts for several sequences in less time than one after the other
    )
    n_outputs: int | None = None  # most rows with logits of one step; None: `n_batch`
    threads: int = 0  # CPU threads of its steps; 0 on a GPU, or without a model
    guests: int = 0  # sequences beside `max_sessions`, for texts of GUEST_IDS cells

    def named(self) -> dict[str, object]:
        return {
            "name": self.model,
            "backend": self.backend,
            "n_ctx": self.n_ctx,
            "trimming": self.trimming,
        }


class Engine(Protocol):
    """A loaded model. An invalid call raises LocalProtocolError and changes nothing."""

    @property
    def info(self) -> EngineInfo: ...

    def trim(self, seq: int, length: int) -> int:
        """Keep at most the first `length` ids of a sequence and return how many it holds; 0 frees it. With `trimming`
        "removal" every length is possible; with any, a target takes back rows of the sequence's last step but its
        first. Where a model cannot go back so far it holds fewer, and the caller feeds the rest again."""
        ...

    def close(self) -> None:
        """Free the model; a second call does nothing."""


class VerifyEngine(Engine, Protocol):
    """A target model: decodes rows of several sequences in one step."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        """Run one step; return per span its logits, float32 (rows, n_vocab), or None where not wanted. Each span's
        `position` must equal the ids its sequence holds. The arrays are valid until the next call. Raises EngineError;
        the sequences are empty then."""
        ...

    def copy(self, seq: int, source: int, length: int) -> None:
        """Let the empty `seq` begin with the first `length` ids of `source`; only where `info.reuse` is "copied"."""


@runtime_checkable
class CpuEngine(Protocol):
    """An engine whose `info.threads` may be changed."""

    def use_threads(self, threads: int) -> None:
        """Use this many CPU threads from the next step on; not while one runs."""


@runtime_checkable
class OffloadEngine(Protocol):
    """An engine whose steps pay for what all sequences hold."""

    def offload(self, seq: int) -> None:
        """Keep what a sequence holds elsewhere, where that pays, until it is used. Nobody else sees a difference."""

    @property
    def offloaded_bytes(self) -> int:
        """What sequences hold elsewhere; any thread may ask."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a draft: what follows the new `ids` of a sequence, by `sampler`."""

    seq: int
    ids: tuple[int, ...]
    sampler: Sampler | None


class DraftEngine(Engine, Protocol):
    """A draft model: drafts one token of a sequence at a time."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """None for an engine that knows ids only."""

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        """Append each ask's ids to its sequence and return a draft of the id after them, or None. The sequences are
        different ones, several only where `info.batches`, and have at most n_batch ids in all. Without a `sampler` the
        ids are only decoded. An `argmax` one need not be consulted. Where it raises, `trim` returns what each sequence
        holds."""
        ...


ANY_ID = 2**31  # `n_vocab` of an engine that knows ids only


class Sequences:
    """Lengths of all sequences; every check raises LocalProtocolError and changes nothing. n_batch: most rows of a
    step; n_outputs: most of them with logits."""

    def __init__(
        self,
        max_sessions: int,
        n_ctx: int,
        n_vocab: int,
        n_batch: int,
        n_outputs: int | None = None,
    ) -> None:
        self.lengths = [0] * max_sessions
        self._n_ctx, self._n_vocab = n_ctx, n_vocab
        self._n_batch, self._n_outputs = n_batch, n_batch if n_outputs is None else n_outputs

    def held(self, seq: int) -> int:
        if not 0 <= seq < len(self.lengths):
            raise LocalProtocolError(
                f"sequence {seq} does not exist: this engine has {len(self.lengths)}"
            )
        return self.lengths[seq]

    def check_append(self, seq: int, ids: Sequence[int]) -> int:
        """Check that `ids` may follow what `seq` holds; return how many it holds."""
        held = self.held(seq)
        self.check_step((Span(seq, held, tuple(ids), logits=False),))
        return held

    def check_step(self, spans: Sequence[Span]) -> int:
        """Check that `spans` fit one step; return how many rows have logits."""
        rows = outputs = 0
        ends: dict[int, int] = {}
        for span in spans:
            ids, held = span.ids, ends[span.seq] if span.seq in ends else self.held(span.seq)
            if span.position != held or not ids:
                raise LocalProtocolError(
                    f"{len(ids)} ids at {span.position} of sequence {span.seq}, which has {held}"
                )
            if min(ids) < 0 or max(ids) >= self._n_vocab:
                raise LocalProtocolError(
                    f"an id outside [0, {self._n_vocab}) for sequence {span.seq}"
                )
            ends[span.seq] = end = held + len(ids)
            if end > self._n_ctx:
                raise LocalProtocolError(
                    f"{end} ids for sequence {span.seq}, which can hold at most {self._n_ctx}"
                )
            rows += len(ids)
            outputs += len(ids) * span.logits
        if rows > self._n_batch or outputs > self._n_outputs:
            most = f"{self._n_batch} and {self._n_outputs} are the most"
            raise LocalProtocolError(f"a step of {rows} rows, {outputs} with logits: {most}")
        return outputs

    def check_trim(self, seq: int, length: int) -> int:
        """Check that `length` >= 0; return how many ids `seq` holds after a cut to at most `length`."""
        if length < 0:
            raise LocalProtocolError(f"sequence {seq} cannot be cut to {length}")
        return min(self.held(seq), length)

    def check_copy(self, seq: int, source: int, length: int) -> None:
        """Check that the empty `seq` may begin with `length` ids of `source`, 0 < length <= held."""
        if self.held(seq) or not 0 < length <= self.held(source):
            raise LocalProtocolError(
                f"sequence {seq} cannot begin with {length} ids of sequence {source}"
            )


@functools.cache
def host_id() -> str:
    """A digest that two processes have in common where one kernel runs both, containers included. It is made of the
    boot's id, so that it names no machine to a peer; empty where there is none, as on macOS."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""
    return hashlib.sha256(f"specmesh {boot.strip()}".encode()).hexdigest()[:32]


def offloaded_by(engine: Engine) -> int:
    """Return the bytes that sequences of an engine hold elsewhere."""
    return engine.offloaded_bytes if isinstance(engine, OffloadEngine) else 0


def limits_of(engine: VerifyEngine) -> TargetLimits:
    info, vocabulary = engine.info, engine.tokenizer.vocabulary
    drafts = MAX_DRAFTS if info.width is None else min(MAX_DRAFTS, info.width - 1)
    return TargetLimits(
        info.n_ctx, len(vocabulary), vocabulary.end_ids, drafts, vocabulary.pieces, info.width
    )


def run_step(engine: VerifyEngine, step: Step) -> Sequence[Rows]:
    if step.threads is not None and isinstance(engine, CpuEngine):
        engine.use_threads(step.threads)
    for order in step.orders:
        match order:
            case KVCut(seq, length):
                engine.trim(seq, length)
            case KVCopy(seq, source, length):
                engine.copy(seq, source, length)
            case KVOffload(seq):
                assert isinstance(engine, OffloadEngine)
                engine.offload(seq)
            case _:
                assert_never(order)
    return engine.decode(step.spans)


def run_draft_step(
    engine: DraftEngine, speaking: Mapping[int, DraftEngine], step: DraftStep
) -> DraftedRows:
    """Carry a step out but for rows that the memory cannot follow; each drafts until it has enough, or the model has
    none. speaking: the engine as each upstream's ids have it."""
    if step.threads is not None and isinstance(engine, CpuEngine):
        engine.use_threads(step.threads)
    held, asks = dict[int, int](), list[Ask]()
    for cut in step.cuts:
        held[cut.seq] = engine.trim(cut.seq, cut.length)
    for seq in step.offloads:
        assert isinstance(engine, OffloadEngine)
        engine.offload(seq)
    rows, tokens = dict[int, DraftRow](), dict[int, list[int]]()
    for row in step.rows:
        rows[row.seq], tokens[row.seq] = row, []
        if held.get(row.seq, row.position) == row.position:
            asks.append(Ask(row.seq, row.ids, row.sampler))
    while asks:
        drafts, following = speaking[step.upstream].predict(asks), list[Ask]()
        for ask, draft in zip(asks, drafts, strict=True):
            if draft is not None:
                made = tokens[ask.seq]
                made.append(draft)
                if len(made) < rows[ask.seq].draft_n:
                    following.append(Ask(ask.seq, (draft,), ask.sampler))
        asks = following
    return DraftedRows(held, list(tokens.values()))
