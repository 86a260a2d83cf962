"""The messages between verifier and drafter, as frozen values.

PROTOCOL.md specifies their meaning and their order. This file knows nothing of bytes (codec.py).

- Frames of the token plane carry token ids of one session.
- Frames of the control plane have JSON bodies. The codec enforces each field's annotation.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import ClassVar

PROTOCOL_VERSION = 2

MAX_TOKENS = 8192  # most ids that one token frame carries; a longer SYNC is split
MAX_ACCEPTED = 255  # most drafts that one TRUTH counts
MAX_SUPPORT = 128  # most tokens that DRAFT_PROBS names for one draft
MAX_BODY = 512 * 1024  # bytes of the longest JSON body of a control frame
MAX_PIECE = 64 * 1024  # characters that one BODY carries
MAX_OPEN_BODY = 3 * 2**20
"""Bytes of the longest JSON body of an OPEN that comes before it, in BODY frames.

An HTTP body has at most 2 MiB. It grows where JSON becomes a string, as the schemas of tools do.
"""
MAX_LOGPROBS = 512  # most ids of one LOGPROBS
NACK_INTERVAL = 0.1
"""Seconds between two NACKs of one session for the same gap, or between two answers to NACKs."""


class Kind(IntEnum):
    """Frame kinds: the token plane below 16, the control plane from 16 on."""

    DRAFT = 1
    TRUTH = 2
    SYNC = 3
    NACK = 4
    DRAFT_PROBS = 6
    IDS = 7
    HELLO = 16
    WELCOME = 17
    VOCAB = 18
    OPEN = 19
    OPENED = 20
    CLOSE = 21
    DONE = 22
    ERROR = 23
    PING = 24
    PONG = 25
    BYE = 27
    LOGPROBS = 28
    PAUSE = 29
    BODY = 30
    PROGRESS = 31


@dataclass(frozen=True, slots=True)
class Frame:
    """Any message. Each class has the kind by which its frames are recognised."""

    kind: ClassVar[Kind]


# --- the token plane


@dataclass(frozen=True, slots=True)
class TokenFrame(Frame):
    """A frame that names its place in a session's text.

    base: absolute position of the first id carried.
    prefix_crc: CRC-32 of the ids [0, base) as little-endian int32.
    """

    session: int
    base: int
    prefix_crc: int


@dataclass(frozen=True, slots=True)
class Draft(TokenFrame):
    """Drafts on exactly the prefix that `prefix_crc` names."""

    kind = Kind.DRAFT

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Truth(TokenFrame):
    """Committed ids.

    draft_n: drafts that the next step wants. accepted: how many of the ids were drafts.
    """

    kind = Kind.TRUTH

    ids: tuple[int, ...]
    draft_n: int
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Sync(TokenFrame):
    """A stretch of the committed prefix, on open and on resync.

    More frames may follow with higher bases. draft_n: as in TRUTH.
    """

    kind = Kind.SYNC

    ids: tuple[int, ...]
    draft_n: int


@dataclass(frozen=True, slots=True)
class Nack(TokenFrame):
    """A request to continue from `base`: the sender holds so many ids, with this CRC."""

    kind = Kind.NACK


@dataclass(frozen=True, slots=True)
class DraftProbs(TokenFrame):
    """Drafts, each with the distribution that it was sampled from.

    sizes: tokens of each draft's distribution.
    support, weights: the tokens of all distributions, one after the other, and their weights.
    """

    kind = Kind.DRAFT_PROBS

    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    support: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ids(TokenFrame):
    """A stretch of the ids of an OPEN that follows, from a drafter.

    session: the `ref` of that OPEN. base, prefix_crc: the place within its ids.
    """

    kind = Kind.IDS

    ids: tuple[int, ...]


# --- the control plane


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Frame):
    """The first message of a drafter.

    host, cpu_threads: its machine, and the CPU threads that it uses; empty and 0 if unknown.
    any_length: it drafts for texts of more ids than `n_ctx` too.
    """

    kind = Kind.HELLO

    drafter: str
    engine: str
    model: str
    vocab_fingerprint: str
    n_vocab: int
    n_ctx: int
    host: str = ""
    cpu_threads: int = 0
    any_length: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Frame):
    """The verifier's answer to HELLO. The drafter decides whether the vocabulary suits it.

    takes_ids: ids of an OPEN may come before it, in IDS frames.
    takes_body: so may the body of an OPEN, in BODY frames.
    """

    kind = Kind.WELCOME

    verifier: str
    model: str
    model_hash: str
    vocab_fingerprint: str
    n_vocab: int
    n_ctx: int
    end_ids: list[int]
    host: str = ""
    cpu_threads: int = 0
    takes_ids: bool = False
    takes_body: bool = False


@dataclass(frozen=True, slots=True)
class Vocab(Frame):
    """A stretch of the verifier's vocabulary, from id `start` on.

    pieces: in base64; empty in the drafter's request.
    """

    kind = Kind.VOCAB

    start: int
    pieces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Frame):
    """A drafter's request for a session, or with `name` for the one of that name.

    ref: number of the request, which OPENED or ERROR repeats.
    prediction: text that the answer is expected to be close to.
    n_ids: if not 0, so many ids came in IDS frames before it, and `ids` is empty.
    n_body: if not 0, so many bytes of its body came in BODY frames before it, and but for `ref` the
        other fields are empty.
    """

    kind = Kind.OPEN

    ref: int
    prompt: str
    options: dict[str, object]
    ids: list[int] = field(default_factory=list)
    messages: list[dict[str, object]] = field(default_factory=list)
    name: str = ""
    n_prompt: int = 0
    adopt: bool = False
    continued: bool = False
    template: dict[str, object] = field(default_factory=dict)
    prediction: str = ""
    n_ids: int = 0
    n_body: int = 0


@dataclass(frozen=True, slots=True)
class Opened(Frame):
    """A session to draft for, from the verifier. SYNC follows.

    ref: of the OPEN that it answers; 0 if the receiver sent none.
    """

    kind = Kind.OPENED

    session: int
    ref: int
    prompt_tokens: int
    options: dict[str, object]


@dataclass(frozen=True, slots=True)
class Close(Frame):
    """A drafter wants no more of a session. With `ref` it withdraws that OPEN instead."""

    kind = Kind.CLOSE

    session: int
    ref: int = 0


class FinishReason(StrEnum):
    """Why a session is over."""

    STOP = "stop"  # an end token, a stop string or its grammar
    LENGTH = "length"
    CANCELLED = "cancelled"  # nobody wants it any more
    ERROR = "error"  # its own request broke it, or the engine failed
    SHUTDOWN = "shutdown"  # its verifier stops: it may be resumed
    MOVED = "moved"  # over for this drafter: another has it now


@dataclass(frozen=True, slots=True)
class Done(Frame):
    """The end of a session, from the verifier.

    finish_reason: a FinishReason; any other word of a peer goes to the client as it is.
    length: ids in all. report: for the session's client.
    """

    kind = Kind.DONE

    session: int
    finish_reason: str
    length: int
    report: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error(Frame):
    """A refusal by the verifier.

    code: one of version, hello, busy, request, context, session, engine; the message is for people.
    ref: of the OPEN that is refused, if any.
    param: the field of the request that it is about, or empty.
    """

    kind = Kind.ERROR

    code: str
    message: str
    ref: int = 0
    param: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heartbeat(Frame):
    """The load of the sender.

    number: of the PING. busy: share of the last minute that the engine worked.
    sessions, queued, max_sessions, step_ms: sent by a verifier only.
    no_drafts: sent by a drafter only: why it drafts nothing here, or empty.
    """

    number: int = field(kw_only=False)
    busy: float = field(default=0.0, kw_only=False)
    sessions: int = 0
    queued: int = 0
    max_sessions: int = 0
    step_ms: float = 0.0
    no_drafts: str = ""


class Ping(_Heartbeat):
    """A request for PONG with the same `number`."""

    __slots__ = ()
    kind = Kind.PING


class Pong(_Heartbeat):
    """The answer to the PING with this `number`."""

    __slots__ = ()
    kind = Kind.PONG


@dataclass(frozen=True, slots=True)
class Bye(Frame):
    """The sender stops: nothing more comes from it on this connection."""

    kind = Kind.BYE


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs(Frame):
    """What clients want to know of the ids of the TRUTH or SYNC just sent, from `base` on.

    chosen: log-probabilities of the ids themselves; empty if they are not wanted.
    top_ids, top: the likeliest ids of each position and their log-probabilities, as many for each
        position, the likeliest first.
    sources: of each id, whose draft it was; empty if they are not wanted.
    """

    kind = Kind.LOGPROBS

    session: int
    base: int
    chosen: list[float]
    top_ids: list[int] = field(default_factory=list)
    top: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Return the number of ids."""
        return max(len(self.chosen), len(self.sources))


@dataclass(frozen=True, slots=True)
class Pause(Frame):
    """Drafter to verifier: the client of a session that the sender opened reads nothing.

    Its steps may wait then. With `paused` false it reads again.
    """

    kind = Kind.PAUSE

    session: int
    paused: bool = True


@dataclass(frozen=True, slots=True)
class Body(Frame):
    """A piece of the JSON body of an OPEN that follows, from a drafter.

    ref: of that OPEN. base: bytes of the body, in UTF-8, before this piece.
    text: at most MAX_PIECE characters.
    """

    kind = Kind.BODY

    ref: int
    base: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Frame):
    """How far the verifier has read the prompt of a session that the receiver opened.

    total: ids to be read. cached: of these, those in memory before.
    processed: ids read so far, cached ones included. time_ms: since the first step for it.
    """

    kind = Kind.PROGRESS

    session: int
    total: int
    cached: int
    processed: int
    time_ms: float


TokenMessage = Draft | Truth | Sync | Nack | DraftProbs | Ids
ControlMessage = (
    Hello
    | Welcome
    | Vocab
    | Open
    | Opened
    | Close
    | Done
    | Error
    | Ping
    | Pong
    | Bye
    | Logprobs
    | Pause
    | Body
    | Progress
)
Message = TokenMessage | ControlMessage
