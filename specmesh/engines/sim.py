"""Engines without a model, for tests and simulations: exact, repeatable, with step times as set."""

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.fields import Json
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.kv_slots import GUEST_IDS
from specmesh.core.prefix import Prefix
from specmesh.core.text.chat import Tokenizer
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import (
    Ask,
    Capabilities,
    EngineInfo,
    Sequences,
    Unthreaded,
    bytes_of,
    rows_of,
)
from specmesh.errors import ConfigError, NoRoom

END_ID = 255  # ends a generation; a byte that UTF-8 never contains, so no text encodes to it
PERIOD = 300
_PRINTABLE = range(32, 127)
_LOGIT = 20.0
_AWAKE = 3e-4  # seconds before its end from which on a simulated step polls

# What a setting may be, both ends included; others are from 0 to _MOST.
_MOST = 1e9
_RANGES = {
    "alpha": (0, 1),
    "alphas": (0, 1),
    "n_vocab": (END_ID + 1, 2**24),
    "n_ctx": (1, _MOST),
    "n_batch": (1, _MOST),
    "max_sessions": (1, 4096),
}

_U64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Purposes of a hash.
_NEXT = 1
_LUCK = 2
_WRONG = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """The size of a simulated model, the duration of its steps and the luck of its drafts.

    step_ms, row_ms: a verifier's step of k rows takes step_ms + row_ms (k - 1). Drafts for n
        sequences at once take row_ms (n - 1) more than one.
    draft_ms: duration of one draft. Prefill takes no time.
    steps_ms: if given, durations of steps of 1, 2, ... rows. More rows take as long as the last.
    alpha: probability that a draft is right, decided by a hash of the prefix.
    alphas: if given, each of them holds for PERIOD ids in turn.
    load_s: seconds that loading takes; it cannot be cancelled.
    reach: a token depends on so many ids before it; 0: on all of them.
    cells: that all sequences share; 0: each has n_ctx of its own.
    host_ids: ids that may leave them for the host's memory.
    """

    step_ms: float = 0.0
    row_ms: float = 0.0
    draft_ms: float = 0.0
    steps_ms: tuple[float, ...] = ()
    alpha: float = 0.75
    alphas: tuple[float, ...] = ()
    n_vocab: int = 256
    n_ctx: int = 8192
    n_batch: int = 512
    max_sessions: int = 8
    load_s: float = 0.0
    reach: int = 0
    cells: int = 0
    host_ids: int = 0

    def __post_init__(self) -> None:
        settings: dict[str, float | tuple[float, ...]] = asdict(self)
        for name, value in settings.items():
            _check_range(name, value if isinstance(value, tuple) else (value,))
        if 0 < self.cells < self.n_ctx:
            reason = f"a text of n_ctx={self.n_ctx} ids does not fit into cells={self.cells}"
            raise ConfigError(reason, "give more cells")

    def alpha_at(self, length: int) -> float:
        """Return the probability that a draft after `length` ids is right."""
        if not self.alphas:
            return self.alpha
        return self.alphas[length // PERIOD % len(self.alphas)]

    @classmethod
    def parse(cls, text: str) -> "SimSettings":
        """Parse "name=value,name=value"; several values are written 34/35.5/40.

        Raises ConfigError.
        """
        defaults = asdict(cls())
        values = dict[str, object]()
        for item in filter(None, text.split(",")):
            name, _, value = item.strip().partition("=")
            try:
                kind = defaults[name].__class__
                if kind is tuple:
                    values[name] = tuple(map(float, value.split("/")))
                else:
                    values[name] = kind(value)
            except (KeyError, ValueError) as error:
                known = f"known are {', '.join(defaults)}"
                raise ConfigError(f"{item!r} is no setting of a simulation: {known}") from error
        return cls(**values)  # type: ignore[arg-type]

    def step_seconds(self, rows: int) -> float:
        """Return the seconds of a verifier's step."""
        if self.steps_ms:
            return self.steps_ms[min(rows, len(self.steps_ms)) - 1] / 1000
        return (self.step_ms + self.row_ms * (rows - 1)) / 1000

    def draft_seconds(self, drafts: int) -> float:
        """Return the seconds of one draft for each of several sequences."""
        return (self.draft_ms + self.row_ms * (drafts - 1)) / 1000


class SharedCells:
    """The cells that simulated sequences share: a copy shares those of its source."""

    def __init__(self, cells: int) -> None:
        """Begin empty."""
        self._cells = cells
        self._new = itertools.count()
        self._held: dict[int, list[int]] = {}  # cells of each sequence, in order
        self._users = Counter[int]()  # sequences that hold each cell
        self._away: dict[int, int] = {}  # ids of each sequence in the host's memory

    def take(self, spans: Sequence[Span]) -> None:
        """Give the rows of a step their cells. Raises NoRoom, and gives none then."""
        wanted = rows_of(spans)
        for seq in {span.seq for span in spans}:
            wanted += self._away.get(seq, 0)
        if len(self._users) + wanted > self._cells:
            raise NoRoom(f"no room for {wanted} ids beside {len(self._users)}")
        for span in spans:
            self._grow(span.seq, self._away.pop(span.seq, 0) + len(span.ids))

    def copy(self, order: KVCopy) -> None:
        """Share cells; ids in the host's memory get others, with the next step."""
        if order.source in self._away:
            self._away[order.seq] = order.length
            return
        held = self._held[order.source][: order.length]
        self._held[order.seq] = held
        self._users.update(held)

    def cut(self, seq: int, length: int) -> None:
        """Free the cells behind the first ids."""
        if seq in self._away:
            self._away[seq] = min(self._away[seq], length)
            if not length:
                del self._away[seq]
            return
        held = self._held.get(seq, [])
        for cell in held[length:]:
            self._users[cell] -= 1
            if not self._users[cell]:
                del self._users[cell]
        self._held[seq] = held[:length]

    def leave(self, seq: int) -> None:
        """Move a sequence to the host's memory."""
        count = len(self._held.get(seq, []))
        self.cut(seq, 0)
        self._away[seq] = count

    def _grow(self, seq: int, count: int) -> None:
        cells = list(itertools.islice(self._new, count))
        self._held[seq] = self._held.get(seq, []) + cells
        self._users.update(cells)


class _SimEngine(Unthreaded):
    """Sequences, each continued by a hash of its prefix.

    The vocabulary has an id per byte. END_ID is empty. Higher ids stand for their number in angle
    brackets.
    """

    model: str
    batches = False

    def __init__(self, settings: SimSettings, guests: int = 0) -> None:
        time.sleep(settings.load_s)
        self.settings = settings
        self.info = EngineInfo(
            model=self.model,
            n_ctx=settings.n_ctx,
            n_batch=settings.n_batch,
            max_sessions=settings.max_sessions,
            backend="simulation",
            capabilities=Capabilities(
                reuse="copied", batches=self.batches, offloads=settings.host_ids > 0
            ),
            guests=guests,
            cells=settings.cells or None,
            cell_bytes=1,
            host_ids=settings.host_ids,
        )
        self.vocabulary = Vocabulary(_pieces(settings.n_vocab), frozenset({END_ID}))
        count = settings.max_sessions + guests
        self.sequences = Sequences(count, settings.n_ctx, settings.n_vocab, settings.n_batch)
        self.prefixes = [Prefix() for _ in range(count)]
        self.memory: SharedCells | None = None
        if settings.cells:
            self.memory = SharedCells(settings.cells + guests * GUEST_IDS)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the bytes of the text; there are no special tokens."""
        del special
        return list(bytes_of(text))

    def least_ids(self, text: str) -> int:
        """Return the number of letters: each has at least one byte."""
        return len(text)

    def append(self, seq: int, token: int) -> int:
        """Append an id to a sequence; return the token after it."""
        prefix = self.prefixes[seq]
        prefix.extend((token,))
        self.sequences.lengths[seq] = len(prefix)
        return _PRINTABLE[_hash(_NEXT, self.crc_of(prefix)) % len(_PRINTABLE)]

    def crc_of(self, prefix: Prefix) -> int:
        """Return the CRC of the ids that a prefix's next token depends on."""
        reach = self.settings.reach
        return Prefix(prefix[-reach:]).crc if reach else prefix.crc

    def carry_out(self, order: KVOrder) -> int:
        match order:
            case KVCut():
                kept = self.sequences.cut(order)
                self.prefixes[order.seq].truncate(kept)
                if self.memory is not None:
                    self.memory.cut(order.seq, kept)
            case KVCopy():
                self.sequences.check_copy(order)
                beginning = self.prefixes[order.source][: order.length]
                self.prefixes[order.seq].extend(beginning)
                self.sequences.lengths[order.seq] = order.length
                if self.memory is not None:
                    self.memory.copy(order)
            case KVOffload():
                if self.memory is not None and order.now:
                    self.memory.leave(order.seq)
            case KVSave() | KVDrop() | KVNarrow():
                pass
            case _:
                assert_never(order)
        return self.sequences.held(order.seq)


class SimVerifier(_SimEngine):
    """A target whose next token is a hash of the whole prefix."""

    model = "sim-target"
    texts: Mapping[str, str] = {}
    traits = TemplateTraits()

    @property
    def tokenizer(self) -> Tokenizer:
        return self

    def chat_text(
        self,
        messages: Sequence[ChatMessage],
        variables: Json,  # noqa: ARG002 - there is no template
        *,
        continued: bool = False,
    ) -> str:
        lines = [f"{message.role}: {message.content}" for message in messages]
        if not continued:
            lines.append("assistant: ")
        return "\n".join(lines)

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        """Return logits of 20.0 at the hashed token and 0.0 elsewhere."""
        started = time.perf_counter()
        self.sequences.check_step(spans)
        if self.memory is not None:
            self.memory.take(spans)
        logits: list[NDArray[np.float32] | None] = []
        for span in spans:
            tokens = [self.append(span.seq, token) for token in span.ids]
            logits.append(_one_hot(tokens, self.settings.n_vocab) if span.logits else None)
        if spans:
            wait_until(started + self.settings.step_seconds(rows_of(spans)))
        return logits


class SimDrafter(_SimEngine):
    """Drafts SimVerifier's token with probability alpha."""

    model = "sim-drafter"
    batches = True

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        started = time.perf_counter()
        for ask in asks:
            self.sequences.check_append(ask.seq, ask.ids)
        chosen = [self._chosen(ask) for ask in asks]
        drafts = len(asks) - chosen.count(None)
        if drafts:
            wait_until(started + self.settings.draft_seconds(drafts))
        return chosen

    def _chosen(self, ask: Ask) -> int | None:
        held = self.sequences.held(ask.seq)
        tokens = [self.append(ask.seq, token) for token in ask.ids]
        if ask.sampler is None:
            return None
        length = held + len(ask.ids)
        crc = self.crc_of(self.prefixes[ask.seq])
        draft = self.draft(crc, length + ask.shift, tokens[-1])
        if ask.sampler.argmax:  # as a device would choose it: this host computes no row
            return draft
        [logits] = _one_hot([draft], self.settings.n_vocab)
        return ask.sampler.choose(logits, length + ask.shift)

    def draft(self, crc: int, length: int, right: int) -> int:
        """Return the draft after `length` ids with this CRC; `right` is the target's token."""
        if _hash(_LUCK, crc) < self.settings.alpha_at(length) * 2**64:
            return right
        other = 1 + _hash(_WRONG, crc) % (len(_PRINTABLE) - 1)
        return _PRINTABLE[(right - _PRINTABLE.start + other) % len(_PRINTABLE)]


def wait_until(moment: float) -> None:
    """Sleep until shortly before `moment`, then poll.

    A sleeper wakes late; a model's thread does not.
    """
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(max(left - _AWAKE, 0.0))


def _check_range(name: str, values: Sequence[float]) -> None:
    """Raise ConfigError unless all values of a setting are in its range; NaN is in none."""
    least, most = _RANGES.get(name, (0, _MOST))
    for value in values:
        if not least <= value <= most:
            reason = f"{name}={value:g} is no setting of a simulation"
            raise ConfigError(reason, f"give {least:g} to {most:g}")


def _pieces(n_vocab: int) -> tuple[bytes, ...]:
    pieces = [bytes([token]) for token in range(min(n_vocab, 256))]
    pieces += [b"<%d>" % token for token in range(256, n_vocab)]
    pieces[END_ID] = b""
    return tuple(pieces)


def _hash(purpose: int, crc: int) -> int:
    """Return 64 bits by the finaliser of SplitMix64 (Steele, Lea, Flood 2014).

    A CRC alone is linear in its input: neighbouring prefixes would continue alike.
    """
    mixed = crc + _GOLDEN * purpose & _U64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _U64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _U64
    return mixed ^ mixed >> 31


def _one_hot(tokens: Sequence[int], n_vocab: int) -> NDArray[np.float32]:
    logits = np.zeros((len(tokens), n_vocab), np.float32)
    logits[np.arange(len(tokens)), tokens] = _LOGIT
    return logits
