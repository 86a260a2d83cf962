"""What a verifier needs of a target model and a drafter of a draft model: two small protocols.

Sequences are numbered 0 .. n_seq - 1; the daemon hands them out. An engine is used from one thread.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling.sampler import Sampler
from specmesh.core.scheduling.kv_slots import KVReuse
from specmesh.core.session_params import ChatMessage
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import LocalProtocolError

Trimming = Literal["removal", "rollback", "restore", "none"]
"""How the last ids of a sequence are taken back: removed from memory; by states that the library kept of the last step;
by restoring a saved state and decoding again what stays; or not at all."""

DEFAULT_CTX = 4096
"""Ids per sequence where nobody chose."""


def context_of(chosen: int | None, trained: int) -> int:
    """Ids per sequence: as chosen, else the default, or as many as the model was trained with where those are fewer."""
    return min(DEFAULT_CTX, trained or DEFAULT_CTX) if chosen is None else chosen


@functools.cache
def physical_cores() -> int:
    """Cores this process may run on, counting hyper-threads of one core once."""
    try:
        allowed = os.sched_getaffinity(0)  # type: ignore[attr-defined,unused-ignore]
    except AttributeError:  # macOS, whose cores have one thread each
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in allowed})


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


class Progress(Protocol):
    """Told how far the loading of a model is, from any thread."""

    def __call__(self, share: float, fetched: int = 0, /) -> bool | None:
        """The share that is loaded, 0.0 to 1.0, or the bytes that a download has brought so far; False gives up."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about a loaded model.

    n_ctx:    ids one sequence can hold.
    n_batch:  most rows of one `VerifyEngine.decode`, over all spans.
    n_seq:    sequences that can be held at once.
    trimming: how part of a sequence is taken back; a target that cannot runs without speculation.
    backend:  where it runs, for people ("CPU, 2 threads"; "CUDA: NVIDIA GB10, 81 layers").
    threads:  CPU threads that its steps take; 0 where they run on a GPU, or are a look-up.
    width:    rows that each span with logits is computed in, whatever it holds, so that its logits do not depend on
              what else is in the step; it takes no more. None: a step is as wide as what is asked of it.
    reuse:    what of a sequence another session may go on from, long after it was decoded.
    n_outputs: most rows with logits of one step; None: as many as `n_batch`.
    batches:  whether a draft engine guesses for several sequences at once: it is a `BatchDraftEngine`.
    """

    model: str
    n_ctx: int
    n_batch: int
    n_seq: int
    trimming: Trimming
    backend: str
    width: int | None = None
    reuse: KVReuse = "whole"
    batches: bool = False
    n_outputs: int | None = None
    threads: int = 0

    @property
    def can_trim(self) -> bool:
        """Whether part of a sequence can be taken back."""
        return self.trimming != "none"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence: `ids` at absolute positions `position`, `position` + 1, ...

    logits: whether a row of logits is wanted for each id, else for none.
    """

    seq: int
    position: int
    ids: tuple[int, ...]
    logits: bool

    @property
    def end(self) -> int:
        """How many ids the sequence holds after it."""
        return self.position + len(self.ids)


class Engine(Protocol):
    """A loaded model. What cannot be asked of it is a LocalProtocolError, with nothing done."""

    @property
    def info(self) -> EngineInfo:
        """Facts about the model."""

    def close(self) -> None:
        """Free the model; a second call does nothing."""


class VerifyEngine(Engine, Protocol):
    """A target model: decodes rows of several sequences in one step."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary."""

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with the special tokens the model wants at its start; safe from any thread."""

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        """Run one step over all spans; per span the logits, float32 (rows, n_vocab), or None where not wanted.

        Each span's `position` must equal the ids its sequence holds. The arrays are valid until the next call.
        Raises EngineError; the sequences then hold an unknown number of the new ids and must be trimmed.
        """

    def trim(self, seq: int, length: int) -> None:
        """Keep the first `length` ids of a sequence; 0 frees it. Raises EngineError where that is impossible.

        With `trimming` "removal" every length is possible. Else only 0 and those inside the sequence's last step, at
        least its first row; and, with "rollback", before the next step of any sequence.
        """

    def copy(self, seq: int, source: int, length: int) -> None:
        """Let the empty sequence `seq` begin with the first `length` ids of another one, 0 < length <= held.

        Raises LocalProtocolError for what cannot be, and for an engine whose `reuse` is not "copied".
        """


@runtime_checkable
class Encoder(Protocol):
    """What an engine with a tokenizer of its own can do besides; drafters use it to compare tokenizers only."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens the model wants at its start. Raises RequestError."""


@runtime_checkable
class ChatEncoder(Protocol):
    """What a target with a chat template can do besides."""

    def encode_chat(self, messages: Sequence[ChatMessage], *, continued: bool = False) -> list[int]:
        """Ids of a chat, up to where the assistant begins to answer, or of one that is continued up to the end of its
        last message; safe from any thread.

        Raises RequestError where the model has no template, or the template refuses the messages.
        """


@runtime_checkable
class CpuEngine(Protocol):
    """What an engine can do besides whose `info.threads` may be changed."""

    def use_threads(self, threads: int) -> None:
        """Take so many CPU threads from the next step on; not while one runs."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A guess that is wanted of a draft engine: what follows `ids`, which are new to a sequence, by `sampler`."""

    seq: int
    ids: tuple[int, ...]
    sampler: Sampler | None


@runtime_checkable
class BatchDraftEngine(Protocol):
    """What a draft engine whose `info.batches` is true can do besides: guess for several sequences in one go, in less
    time than one after the other."""

    def predict_many(self, asks: Sequence[Ask]) -> list[int | None]:
        """`DraftEngine.predict` for each, of different sequences, with at most n_batch ids in all. Where it raises,
        `trim` tells what each of them holds."""


class DraftEngine(Engine, Protocol):
    """A draft model: guesses one token at a time. It may be an `Encoder` as well."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The model's vocabulary; None for an engine that knows ids only."""

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        """Append `ids` (at most n_batch) to a sequence and guess the id after them.

        Without a `sampler` the ids are only taken in and the answer is None. None with one: no guess. A sampler that is
        `greedy` may be answered for without being asked.
        """

    def trim(self, seq: int, length: int) -> int:
        """Keep at most the first `length` ids of a sequence and return how many it still holds (0 where a model
        cannot go back so far): the caller feeds the rest again."""


def predict_all(engine: DraftEngine, asks: Sequence[Ask]) -> list[int | None]:
    """The guesses; of several in one go, which the engine must be able to."""
    if len(asks) > 1:
        assert isinstance(engine, BatchDraftEngine), "asked for where `info.batches` is true"
        return engine.predict_many(asks)
    return [engine.predict(ask.seq, ask.ids, ask.sampler) for ask in asks]


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
