"""What verifier and drafter say to each other, as frozen values. PROTOCOL.md says what each means and leads to.

This file knows nothing of bytes (codec.py). Token frames place themselves: `base` is the absolute position of the first
id carried, `prefix_crc` the CRC-32 of the little-endian int32 ids before it. Control frames have JSON bodies; the codec
enforces each field's annotation.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

PROTOCOL_VERSION = 2

MAX_TOKENS = 8192  # most ids one token frame carries; a longer SYNC is split
MAX_SUPPORT = 128  # most tokens that DRAFT_PROBS names for one draft
MAX_BODY = 512 * 1024  # bytes of the longest JSON body of a control frame
MAX_LOGPROBS = 512  # most ids of one LOGPROBS
NACK_INTERVAL = (
    0.1  # seconds between two NACKs for the same gap, or two answers to NACKs, of one session
)


class Kind(IntEnum):
    """Frame kinds; below 16 the token plane, from 16 on the control plane."""

    DRAFT = 1
    TRUTH = 2
    SYNC = 3
    NACK = 4
    DRAFT_PROBS = 6
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


@dataclass(frozen=True, slots=True)
class _TokenFrame:
    session: int
    base: int
    prefix_crc: int


@dataclass(frozen=True, slots=True)
class Draft(_TokenFrame):
    """Ids drafted on exactly the prefix that `prefix_crc` names."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftProbs(_TokenFrame):
    """Drafts, each with the distribution that it was sampled from; `support` and `weights` have one after the other."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    support: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Truth(_TokenFrame):
    """Committed ids, `accepted` of them drafts; `draft_n` is how many drafts the next step wants."""

    ids: tuple[int, ...]
    draft_n: int
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Sync(_TokenFrame):
    """A stretch of the whole prefix, on open and resync; more frames may follow with higher bases."""

    ids: tuple[int, ...]
    draft_n: int


@dataclass(frozen=True, slots=True)
class Nack(_TokenFrame):
    """The sender holds `base` ids with this CRC: continue from there."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Drafter to verifier, first."""

    drafter: str
    engine: str
    model: str
    vocab_fingerprint: str
    n_vocab: int
    n_ctx: int
    host: str = ""
    cpu_threads: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    """Verifier to drafter: accepted. The drafter decides if the vocabulary suits."""

    verifier: str
    model: str
    model_hash: str
    vocab_fingerprint: str
    n_vocab: int
    n_ctx: int
    end_ids: list[int]
    host: str = ""
    cpu_threads: int = 0


@dataclass(frozen=True, slots=True)
class Vocab:
    """A stretch of the verifier's vocabulary: asked for with `pieces` empty, answered with base64 pieces."""

    start: int
    pieces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Open:
    """Drafter to verifier: start a session, or with `name` resume one. `ref` returns in OPENED or ERROR."""

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


@dataclass(frozen=True, slots=True)
class Opened:
    """Verifier to drafter: a session to draft for, SYNC follows. `ref` is 0 unless the receiver sent OPEN."""

    session: int
    ref: int
    prompt_tokens: int
    options: dict[str, object]


@dataclass(frozen=True, slots=True)
class Close:
    """Drafter to verifier: over for me. With `ref`, withdraws that OPEN instead."""

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
class Done:
    """Verifier to drafter: the session has ended with `length` ids in all; `report` is for its client."""

    session: int
    finish_reason: str  # a FinishReason's; any other word of a peer goes to the client as it is
    length: int
    report: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error:
    """Something was refused. `code` is one of version, hello, busy, request, context, session, engine; `ref` as in
    OPEN; `param`: the request's field that it is about, or empty."""

    code: str
    message: str
    ref: int = 0
    param: str = ""


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    number: int
    busy: float = 0.0
    sessions: int = 0
    queued: int = 0
    max_sessions: int = 0
    step_ms: float = 0.0
    no_drafts: str = ""


class Ping(_Heartbeat):
    """Answer with PONG and the same `number`. From `sessions` to `step_ms` the fields are a
    verifier's, `no_drafts` is a drafter's: why it drafts nothing here."""

    __slots__ = ()


class Pong(_Heartbeat):
    """The answer to the PING with this `number`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Verifier to drafter: log-probabilities of ids of the TRUTH or SYNC just sent, `top` the likeliest first."""

    session: int
    base: int
    chosen: list[float]
    top_ids: list[int] = field(default_factory=list)
    top: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender stops: nothing more comes from it on this connection."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Drafter to verifier: the client of a session that the sender opened reads nothing, so its
    steps may wait; or with `paused` false it reads again."""

    session: int
    paused: bool = True


# In the order of `Kind`.
TokenMessage = Draft | Truth | Sync | Nack | DraftProbs
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
)
Message = TokenMessage | ControlMessage
