"""Requests of clients, and the events that answer them."""

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specmesh.core.draft_sources import PREDICTION
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import SessionParams
from specmesh.core.text.chat_message import ChatMessage
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

ID_BYTES = 36  # memory of an id in a tuple
CHOICE_BYTES = 2048  # and of a request without its prompt
Account = tuple[str, Hashable]
"""Whose a request is, of those that this daemon can tell apart: ("key", the SHA-256 of an API key)
or ("user", the number of a user of this machine).
"""
CHAT = "chatcmpl-"  # what names of chats begin with, as at OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation.

    It starts from the first that is given of `prompt_ids`, `messages` (by the target's chat
    template) and `prompt`.
    """

    prompt: str | None = field(kw_only=False)
    prompt_ids: tuple[int, ...] | None = field(kw_only=False)
    params: SessionParams = field(kw_only=False)
    rounds: bool = False  # each round is an event of its own
    messages: tuple[ChatMessage, ...] = ()
    continued: bool = False  # continue the last message instead of starting a new one
    # Variables of the chat template's own.
    template: Mapping[str, object] = field(default_factory=dict[str, object])
    id: str = ""  # unguessable name; whoever knows it may resume the text
    generated: tuple[int, ...] = ()  # tokens to resume after
    known: int = 0  # generated tokens that the client already has
    reconnect_timeout: float = 0.0  # seconds that a drafter waits for a lost verifier
    named_only: bool = False  # resume that text, never start one
    target: str = ""  # `ModelInfo.target` of the model wanted, empty for any
    choice: int = 0  # index among the completions of one prompt
    prediction: str = ""  # text that the answer is expected to be close to
    known_size: int = 0  # `size`, if it was computed before, which takes time for many messages

    @property
    def chat(self) -> bool:
        """Return True if the answer has a chat's form; if it is resumed, its name shows that."""
        return bool(self.messages) or self.id.startswith(CHAT)

    @property
    def size(self) -> int:
        """Return the approximate bytes of memory that it takes."""
        if self.known_size:
            return self.known_size
        ids = len(self.prompt_ids or ()) + len(self.generated)
        size = ID_BYTES * ids + sys.getsizeof(self.prompt or "")
        size += sys.getsizeof(str(self.template)) + sys.getsizeof(self.prediction)
        grammar = self.params.grammar
        size += sys.getsizeof(grammar.text if grammar else "")
        for message in self.messages:
            size += message.size
        return size

    @property
    def predicts(self) -> bool:
        """Return True if it has a prediction that may draft."""
        return bool(self.prediction) and self.params.drafts_by(PREDICTION)

    @property
    def own_size(self) -> int:
        """Return the bytes that it adds to those of the first answer to its prompt."""
        return CHOICE_BYTES if self.choice else self.size

    @property
    def label(self) -> str:
        """Return the beginning of the id, for logs: too short to resume the text with."""
        return self.id[:-20]


@dataclass(frozen=True, slots=True)
class Started:
    """A session has begun."""

    session: int
    prompt_tokens: int
    prompt_ids: tuple[int, ...] = ()
    params: SessionParams | None = None


class Scored(NamedTuple):
    """Log-probabilities of an echoed prompt's ids but for the first one, before any Tokens."""

    logprobs: tuple[Logprob | None, ...]


class PromptRead(NamedTuple):
    """How far a prompt is read, before any Tokens.

    total: ids to be read. cached: of these, those that were in memory before.
    processed: ids read so far, cached ones included.
    seconds: since the session began.
    """

    total: int
    cached: int
    processed: int
    seconds: float


SourceRun = tuple[str, int]
"""A source of drafts, or `target`, and how many ids in a row it proposed."""


class Tokens(NamedTuple):
    """New ids, of which the first `accepted` were drafts.

    logprobs: of each id, if they are wanted; None for an id from before the text was resumed.
    sources: of all ids, if they are wanted.
    """

    ids: tuple[int, ...]
    accepted: int
    logprobs: tuple[Logprob | None, ...] = ()
    sources: tuple[SourceRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The text has ended.

    reason: a FinishReason, or another word of the verifier.
    stop: the stop string that ended it, or ""; known to the API only.
    """

    reason: str
    prompt_ids: tuple[int, ...]
    report: dict[str, object]
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request has failed."""

    error: SpecmeshError


ClientEvent = Started | PromptRead | Scored | Tokens | Finished | Failed


class EventSink(Protocol):
    """Receives the events of a request."""

    def on_event(self, event: ClientEvent) -> None:
        """Take an event. The daemon's loop calls this, never the core; it must not block."""


class Nobody:
    """The client of a request that was answered.

    It takes the place of the real one, whose connection would be kept in memory by the request.
    """

    def on_event(self, event: ClientEvent) -> None:
        pass


NOBODY = Nobody()


class Reply(NamedTuple):
    """Give a client an event of its request."""

    client: EventSink
    event: ClientEvent


def target_of(verifier: m.Welcome) -> str:
    """Return the name of a verifier's target in `Request.target`."""
    return f"{verifier.vocab_fingerprint} {verifier.model}"
