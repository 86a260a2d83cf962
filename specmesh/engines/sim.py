"""Engines without a model, for tests and simulations: exact, repeatable, with step times as set."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.fields import Json
from specmesh.core.prefix import Prefix
from specmesh.core.session_params import ChatMessage
from specmesh.core.text.chat import Tokenizer
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Ask, EngineInfo, Sequences
from specmesh.errors import ConfigError, RequestError

END_ID = 255  # ends a generation; a byte that UTF-8 never contains, so no text encodes to it
PERIOD = 300
_PRINTABLE = range(32, 127)
_LOGIT = 20.0
_AWAKE = 3e-4  # seconds before its end from which on a simulated step polls

_U64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NEXT, _LUCK, _WRONG = 1, 2, 3  # purposes of a hash


@dataclass(frozen=True, slots=True)
class SimSettings:
    step_ms: float = 0.0  # a verifier's step of k rows takes step_ms + row_ms (k - 1);
    row_ms: float = 0.0  # drafts for n sequences at once take row_ms (n - 1) more than one
    draft_ms: float = 0.0  # one draft; prefill costs nothing
    steps_ms: tuple[
        float, ...
    ] = ()  # if given: of 1, 2, ... rows; more rows cost as much as the last entry
    alpha: float = 0.75  # probability that a draft is right, decided by a hash of the prefix
    alphas: tuple[float, ...] = ()  # if given: each holds for PERIOD ids in turn
    n_vocab: int = 256
    n_ctx: int = 8192
    n_batch: int = 512
    max_sessions: int = 8
    end_after: int = 0  # a sequence of this many ids is followed by END_ID; 0: never
    load_s: float = 0.0  # seconds that loading takes; it cannot be cancelled

    def alpha_at(self, length: int) -> float:
        return self.alphas[length // PERIOD % len(self.alphas)] if self.alphas else self.alpha

    @classmethod
    def parse(cls, text: str) -> "SimSettings":
        """Parse "name=value,name=value"; several values are written 34/35.5/40. Raises ConfigError."""
        defaults = asdict(cls())
        values = dict[str, object]()
        for item in filter(None, text.split(",")):
            name, _, value = item.strip().partition("=")
            try:
                kind = defaults[name].__class__
                values[name] = tuple(map(float, value.split("/"))) if kind is tuple else kind(value)
            except (KeyError, ValueError) as error:
                raise ConfigError(
                    f"{item!r} is no setting of a simulation: known are {', '.join(defaults)}"
                ) from error
        return cls(**values)  # type: ignore[arg-type]

    def step_seconds(self, rows: int) -> float:
        if self.steps_ms:
            return self.steps_ms[min(rows, len(self.steps_ms)) - 1] / 1000
        return (self.step_ms + self.row_ms * (rows - 1)) / 1000


class _SimEngine:
    """Sequences, each continued by a hash of its prefix. The vocabulary has an id per byte; END_ID is empty, ids above
    it stand for their number in angle brackets."""

    model: str
    batches = False

    def __init__(self, settings: SimSettings, guests: int = 0) -> None:
        time.sleep(settings.load_s)
        self.settings = settings
        count = settings.max_sessions + guests
        sizes, backend = (settings.n_ctx, settings.n_batch, settings.max_sessions), "simulation"
        self.info = EngineInfo(
            self.model,
            *sizes,
            "removal",
            backend,
            reuse="copied",
            batches=self.batches,
            guests=guests,
        )
        pieces = [
            bytes([token]) if token < 256 else b"<%d>" % token for token in range(settings.n_vocab)
        ]
        pieces[END_ID] = b""
        self.vocabulary = Vocabulary(tuple(pieces), frozenset({END_ID}))
        self.sequences = Sequences(count, settings.n_ctx, settings.n_vocab, settings.n_batch)
        self.prefixes = [Prefix() for _ in range(count)]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        del special  # there is none
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error.reason}") from error

    def least_ids(self, text: str) -> int:
        """Return at most as many ids as `encode` does: each is a byte."""
        return len(text)

    def append(self, seq: int, token: int) -> int:
        """Append an id to a sequence; returns the token after it."""
        prefix = self.prefixes[seq]
        prefix.extend((token,))
        self.sequences.lengths[seq] = len(prefix)
        if 0 < self.settings.end_after <= len(prefix):
            return END_ID
        return _PRINTABLE[_hash(_NEXT, prefix.crc) % len(_PRINTABLE)]

    def trim(self, seq: int, length: int) -> int:
        self.sequences.lengths[seq] = kept = self.sequences.check_trim(seq, length)
        self.prefixes[seq].truncate(kept)
        return kept

    def close(self) -> None:
        pass


class SimVerifier(_SimEngine):
    """A target whose next token is a hash of the whole prefix; `encode` gives the bytes of the text."""

    model = "sim-target"
    texts: Mapping[str, str] = {}
    traits = TemplateTraits()

    @property
    def tokenizer(self) -> Tokenizer:
        return self

    def chat_text(
        self,
        messages: Sequence[ChatMessage],
        variables: Json,  # noqa: ARG002 - of a template, which there is none of
        *,
        continued: bool = False,
    ) -> str:
        text = "".join(f"{message.role}: {message.content}\n" for message in messages)
        return text[:-1] if continued else text + "assistant: "

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        """Logits are 20.0 at the hashed token and 0.0 elsewhere."""
        started = time.perf_counter()
        self.sequences.check_step(spans)
        logits: list[NDArray[np.float32] | None] = []
        for span in spans:
            tokens = [self.append(span.seq, token) for token in span.ids]
            logits.append(_one_hot(tokens, self.settings.n_vocab) if span.logits else None)
        if spans:
            wait_until(started + self.settings.step_seconds(sum(len(span.ids) for span in spans)))
        return logits

    def copy(self, seq: int, source: int, length: int) -> None:
        self.sequences.check_copy(seq, source, length)
        self.prefixes[seq].extend(self.prefixes[source][:length])
        self.sequences.lengths[seq] = length


class SimDrafter(_SimEngine):
    """Drafts SimVerifier's token with probability alpha."""

    model, batches = "sim-drafter", True

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        started, settings = time.perf_counter(), self.settings
        for ask in asks:
            self.sequences.check_append(ask.seq, ask.ids)
        chosen = [self._chosen(ask) for ask in asks]
        drafts = sum(ask.sampler is not None for ask in asks)
        if drafts:
            wait_until(started + (settings.draft_ms + settings.row_ms * (drafts - 1)) / 1000)
        return chosen

    def _chosen(self, ask: Ask) -> int | None:
        held = self.sequences.held(ask.seq)
        tokens = [self.append(ask.seq, token) for token in ask.ids]
        if ask.sampler is None:
            return None
        draft = self.draft(self.prefixes[ask.seq].crc, held + len(ask.ids), tokens[-1])
        if ask.sampler.argmax:  # as its device would choose it: no row for this host to fill
            return draft
        return ask.sampler.choose(_one_hot([draft], self.settings.n_vocab)[0], held + len(ask.ids))

    def draft(self, crc: int, length: int, right: int) -> int:
        """Return the draft after `length` ids with this CRC, where `right` is the target's token."""
        if _hash(_LUCK, crc) < self.settings.alpha_at(length) * 2**64:
            return right
        other = 1 + _hash(_WRONG, crc) % (len(_PRINTABLE) - 1)
        return _PRINTABLE[(right - _PRINTABLE.start + other) % len(_PRINTABLE)]


def _hash(purpose: int, crc: int) -> int:
    """64 bits; a CRC alone is linear in its input and would make neighbouring prefixes continue alike. The finaliser of
    SplitMix64 (Steele, Lea, Flood 2014)."""
    mixed = crc + _GOLDEN * purpose & _U64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _U64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _U64
    return mixed ^ mixed >> 31


def _one_hot(tokens: Sequence[int], n_vocab: int) -> NDArray[np.float32]:
    logits = np.zeros((len(tokens), n_vocab), np.float32)
    logits[np.arange(len(tokens)), tokens] = _LOGIT
    return logits


def wait_until(moment: float) -> None:
    """Sleep until shortly before `moment`, then poll: a sleeper wakes late, a model's thread does not."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(max(left - _AWAKE, 0.0))
