"""What verifier and drafter say to each other, as frozen values.

This file knows nothing of bytes (codec.py) and nothing of what a message leads to (specmesh.core).
Token-plane messages place themselves: `base` is the absolute position of the first id carried and
`prefix_crc` the CRC-32 of the little-endian int32 ids before it.
Control-plane messages are JSON bodies; each field's annotation is what `body.py` enforces.
"""

from dataclasses import dataclass, field
from enum import IntEnum

PROTOCOL_VERSION = 2

MAX_TOKENS = 8192
"""Most ids one token frame carries; a longer SYNC is split."""

MAX_SUPPORT = 128
"""Most tokens that DRAFT_PROBS names for one draft."""

MAX_BODY = 512 * 1024
"""Longest JSON body of a control frame, in bytes."""

DRAFT_N_AUTO = 0xFFFF
"""OPEN's draft_n for an adaptive number of drafts."""

NO_LOGPROBS = 0xFFFF
"""OPEN's and OPENED's logprobs where none are wanted."""

MAX_LOGPROBS = 512
"""Most ids of one LOGPROBS."""

MAX_ALTERNATIVES = 12_288
"""Most alternatives of all of them: its body stays below MAX_BODY."""

WINDOW, WHOLE_WINDOW = 64, 0xFFFFFFFF
"""repeat_last_n where nothing is said, and the one that means all ids."""


class Kind(IntEnum):
    """Frame kinds; below 16 the token plane, from 16 on the control plane."""

    DRAFT = 1
    TRUTH = 2
    SYNC = 3
    NACK = 4
    SHADOW = 5
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
    ROUND = 26
    BYE = 27
    LOGPROBS = 28


@dataclass(frozen=True, slots=True)
class _TokenFrame:
    session: int
    base: int
    prefix_crc: int


@dataclass(frozen=True, slots=True)
class Draft(_TokenFrame):
    """Drafted ids from `base`, built on exactly the prefix that `prefix_crc` names."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftProbs(_TokenFrame):
    """Drafts as in DRAFT, each with the law that it was sampled from.

    For each id `sizes` has how many tokens its law has, 0 where it is not told; these stand in `support`, their weights
    in `weights`, one draft's after the other's.
    """

    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    support: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Truth(_TokenFrame):
    """Committed ids from `base`; `draft_n` is how many drafts the next step wants."""

    ids: tuple[int, ...]
    draft_n: int


@dataclass(frozen=True, slots=True)
class Sync(_TokenFrame):
    """A stretch of the whole prefix, sent on open and on resync; more frames may follow with higher bases."""

    ids: tuple[int, ...]
    draft_n: int


@dataclass(frozen=True, slots=True)
class Nack(_TokenFrame):
    """`base` ids with this CRC are what the sender holds: continue from there."""


@dataclass(frozen=True, slots=True)
class Shadow(_TokenFrame):
    """What the drafter says at positions from `base` on, each after the true ids before it, which it knows already."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """Drafter to verifier, first: who I am and which vocabulary my ids come from.

    `vocab_fingerprint` is empty for a drafter without a model of its own (ngram). It is for people and statistics.
    `host` is what two daemons have in common that run on one host, and `cpu_threads` how many its steps take there.
    """

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
    """Verifier to drafter: accepted, and what is served here. Whether the vocabulary suits is the drafter's to decide.

    `probes` are texts and the ids that the verifier's encoder makes of them. `host` and `cpu_threads`: as in HELLO.
    """

    verifier: str
    model: str
    model_hash: str
    vocab_fingerprint: str
    n_vocab: int
    n_ctx: int
    eog_ids: list[int]
    probes: dict[str, object] = field(default_factory=dict)
    host: str = ""
    cpu_threads: int = 0


@dataclass(frozen=True, slots=True)
class Vocab:
    """A stretch of the verifier's vocabulary. The drafter asks with `pieces` empty; the answer has base64 pieces."""

    start: int
    pieces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Open:
    """Drafter to verifier: start a session for this prompt. `ref` returns in OPENED or ERROR.

    `ids`, where given, are used as they are; else `messages`, a chat of role and content each, through the target's own
    template, and where it is `continued` up to the end of its last message; else `prompt`. The text ends with the first
    of `stop` that it contains. `logprobs` is how many of the likeliest ids are to be told with each of the text.

    `name`, where given, is what the session can be asked for again by: an OPEN with the name of a session that lives is
    given that one, whatever else it says; with `adopt` nothing else is wanted. Where `n_prompt` is not 0, `ids` are so
    many ids of prompt and then ids that were generated before, from which the text goes on.

    `grammar`, where given, is what the text must be, in the language that `grammar_kind` names: gbnf or json_schema.
    While all sessions are taken, those with a lower `priority` go before it.
    Without `cache_prompt` the session goes on from nothing that is in memory, on either side, and leaves nothing there.
    """

    ref: int
    prompt: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    draft_n: int
    rounds: bool = False
    ids: list[int] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    name: str = ""
    n_prompt: int = 0
    adopt: bool = False
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = WINDOW
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    biased_ids: list[int] = field(default_factory=list)
    biases: list[float] = field(default_factory=list)
    logprobs: int = NO_LOGPROBS
    strategy: str = "deterministic"
    threshold: float = 0.3
    grammar: str = ""
    grammar_kind: str = ""
    priority: int = 0
    cache_prompt: bool = True
    continued: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """Verifier to drafter: a session to draft for, SYNC follows. `ref` is 0 unless the receiver asked with OPEN.

    The drafter samples with these parameters: with the verifier's noise its drafts match far more often. `stop`,
    `max_tokens` and `logprobs` are for the client that asked, perhaps by the session's name alone. `grammar` is for
    both: drafts that it forbids are dropped.
    """

    session: int
    ref: int
    prompt_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: list[str] = field(default_factory=list)
    max_tokens: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = WINDOW
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    biased_ids: list[int] = field(default_factory=list)
    biases: list[float] = field(default_factory=list)
    logprobs: int = NO_LOGPROBS
    strategy: str = "deterministic"
    threshold: float = 0.3
    grammar: str = ""
    grammar_kind: str = ""
    cache_prompt: bool = True


@dataclass(frozen=True, slots=True)
class Close:
    """Drafter to verifier: this session is over for me (cancelled by its client, or DONE heard).

    `draft_s` is the time this drafter spent drafting for the session, `drafted` the ids it drafted. With `ref` it is
    about the OPEN of that ref instead, which was not answered yet.
    """

    session: int
    drafted: int
    draft_s: float
    ref: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Verifier to drafter: the session has ended. `length` ids are the whole of it; `report` is for its client."""

    session: int
    finish_reason: str
    length: int
    report: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error:
    """Something was refused. `code` is one of version, hello, busy, request, context, session, engine; `ref` as in
    OPEN; `param`: the field of the request that it is about, empty for none."""

    code: str
    message: str
    ref: int = 0
    param: str = ""


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    number: int
    progress: int
    busy: float = 0.0
    sessions: int = 0
    queued: int = 0
    places: int = 0
    step_ms: float = 0.0
    row_ms: float = 0.0


class Ping(_Heartbeat):
    """Answer with PONG and the same `number`.

    `progress` counts turns of the sender's own loop; `busy` is the share of the last minute its engine worked. The
    others are a verifier's, for drafters that have several: `sessions` that it generates for, requests `queued`,
    `places` for sessions (0: not told), milliseconds of a step of one row, and of each further row.
    """

    __slots__ = ()


class Pong(_Heartbeat):
    """The answer to the PING with this `number`; all else is the answerer's, as in PING."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Round:
    """Verifier to the drafter whose client asked for rounds: the drafts that led to the TRUTH just sent."""

    session: int
    drafts: list[int]
    accepted: int


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Verifier to the drafter whose client asked: log-probabilities of ids of the TRUTH or SYNC just sent.

    They are those from `base` on; for each id there are equally many of `top_ids` and `top`, the likeliest first.
    """

    session: int
    base: int
    chosen: list[float]
    top_ids: list[int] = field(default_factory=list)
    top: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender stops: nothing more comes from it on this connection."""


TokenMessage = Draft | Truth | Sync | Nack | Shadow | DraftProbs
ControlMessage = Hello | Welcome | Vocab | Open | Opened | Close | Done | Error | Ping | Pong | Round | Logprobs | Bye
Message = TokenMessage | ControlMessage
