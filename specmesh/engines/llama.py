"""llama.cpp as verifier and as drafter."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specmesh.core.chat import ChatMessage
from specmesh.core.sampling import Sampler
from specmesh.core.vocabulary import Vocabulary
from specmesh.engines.base import Ask, EngineInfo, Progress, Span
from specmesh.engines.llama_context import LlamaContext
from specmesh.engines.llama_model import LlamaModel, LlamaSettings
from specmesh.engines.llama_tokens import SHORT, Tokenizer
from specmesh.engines.llama_width import width_of
from specmesh.errors import ConfigError, EngineError, LocalProtocolError

__all__ = ["LlamaDrafter", "LlamaSettings", "LlamaVerifier"]


class _LlamaEngine:
    """What both have: a model, and sequences of it."""

    _model: LlamaModel
    _context: LlamaContext

    @property
    def info(self) -> EngineInfo:
        return self._context.info

    @property
    def saved_bytes(self) -> int:
        return self._context.saved_bytes

    @property
    def vocabulary(self) -> Vocabulary:
        return self._model.vocabulary

    def use_threads(self, threads: int) -> None:
        self._context.use_threads(threads)

    def close(self) -> None:
        self._context.close()


class LlamaVerifier(_LlamaEngine):
    """A GGUF target model: `VerifyEngine` by llama.cpp.

    One step carries up to n_batch rows, n_seq * (max_draft + 1) of them with logits; where it is reproducible,
    n_seq * info.width.
    """

    def __init__(self, settings: LlamaSettings, progress: Progress | None = None) -> None:
        """Load the model; raises ConfigError where it cannot be loaded, EngineError when cancelled."""
        self._model = LlamaModel(settings, progress)
        try:
            self._model.load_template(settings.chat_template)
        except ConfigError:
            self._model.close()
            raise
        width = width_of(self._model) if settings.reproducible else None
        most = settings.max_draft + 1 if width is None else width
        self._context = _context(self._model, settings, settings.n_seq * most, max(most - 1, 1), width)
        self._tokenizer = Tokenizer(settings.path, self._model.vocabulary.fingerprint())

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, made as llama-server's /completion does; safe from any thread.

        The model's own start tokens come first, and special tokens written in the text are recognised.
        Raises RequestError for a lone surrogate, and where the tokenizer fails.
        """
        if len(text) > SHORT:
            return self._tokenizer.encode(text)
        if len(text) > SHORT // 2:
            self._tokenizer.prepare()
        return self._model.encode(text)

    def encode_chat(self, messages: Sequence[ChatMessage], *, continued: bool = False) -> list[int]:
        return self.encode(self._model.chat_text(messages, continued=continued))

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        # Memories of sequences that follow each other are computed together.
        order = sorted(range(len(spans)), key=lambda index: spans[index].seq)
        block = self._context.decode([spans[index] for index in order])
        rows: list[NDArray[np.float32] | None] = [None] * len(spans)
        start = 0
        for index in order:
            span = spans[index]
            end = start + span.rows * span.logits
            rows[index] = block[start:end] if span.logits else None
            start = end
        return rows

    def trim(self, seq: int, length: int) -> None:
        if not self._context.trim(seq, length):
            raise EngineError(f"{self.info.model} cannot remove so much of a sequence (cut {seq} to {length})")

    def copy(self, seq: int, source: int, length: int) -> None:
        self._context.copy(seq, source, length)

    def close(self) -> None:
        self._tokenizer.close()
        super().close()


class LlamaDrafter(_LlamaEngine):
    """A GGUF draft model, `DraftEngine` by llama.cpp."""

    def __init__(self, settings: LlamaSettings, progress: Progress | None = None) -> None:
        """Load the model; raises ConfigError where it cannot be loaded, EngineError when cancelled."""
        self._model = LlamaModel(settings, progress)
        self._context = _context(self._model, settings, 1, 0)

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        return self.predict_many([Ask(seq, tuple(ids), sampler)])[0]

    def predict_many(self, asks: Sequence[Ask]) -> list[int | None]:
        n_batch, spans = self.info.n_batch, list[Span]()
        ends = [self._context.sequences.check_append(ask.seq, ask.ids, n_batch) + len(ask.ids) for ask in asks]
        for ask, end in zip(asks, ends, strict=True):
            *body, last = ask.ids
            if body:
                spans.append(Span(ask.seq, end - len(ask.ids), tuple(body), logits=False))
            spans.append(Span(ask.seq, end - 1, (last,), logits=ask.sampler is not None))
        rows = iter(self._context.decode(spans))
        pairs = zip(asks, ends, strict=True)
        return [None if ask.sampler is None else ask.sampler.choose(next(rows), end) for ask, end in pairs]

    def trim(self, seq: int, length: int) -> int:
        held = self._context.sequences.held(seq)
        if length < 0:
            raise LocalProtocolError(f"sequence {seq} cannot be cut to {length}")
        if length < held and not self._context.trim(seq, length):
            self._context.trim(seq, 0)
        return self._context.sequences.held(seq)


def _context(
    model: LlamaModel, settings: LlamaSettings, n_outputs: int, rollback: int, width: int | None = None
) -> LlamaContext:
    try:
        return LlamaContext(model, settings, n_outputs, rollback, width)
    except BaseException:
        model.close()
        raise
