"""Requests of clients and the events that answer them, between the API and a daemon, which share an event loop."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from specmesh.core.report import Report
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.snapshot import Snapshot
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import SpecmeshError

ID_BYTES = 36
"""Memory of an id in a tuple."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, from `prompt_ids`, `messages` (by the target's chat template) or `prompt`: the first given."""

    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    params: SessionParams
    rounds: bool = False  # events carry each round's drafts
    messages: tuple[ChatMessage, ...] = ()
    continued: bool = False  # continue the last message instead of starting a new one
    id: str = ""  # unguessable name; whoever knows it may resume the text
    generated: tuple[int, ...] = ()  # tokens to resume after
    known: int = 0  # generated tokens that the client already has
    reconnect_timeout: float = 0.0  # seconds that a drafter waits for a lost verifier
    named_only: bool = False  # resume that text, never start one
    priority: int = 0  # lower goes first
    target: str = ""  # `ModelInfo.target` of the model wanted, empty for any
    choice: int = 0  # index among the completions of one prompt

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        said = (text for message in self.messages for text in (message.role, message.name, message.content))
        texts = (self.prompt or "", *said)
        grammar = self.params.grammar
        ids = len(self.prompt_ids or ()) + len(self.generated)
        return ID_BYTES * ids + sum(map(sys.getsizeof, texts)) + (len(grammar.text) if grammar is not None else 0)

    @property
    def label(self) -> str:
        """Beginning of the id for logs; too short to resume the text with."""
        return self.id[:-20]


@dataclass(frozen=True, slots=True)
class Started:
    """The session exists."""

    session: int
    prompt_tokens: int
    prompt_ids: tuple[int, ...] = ()
    params: SessionParams | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """New ids, `accepted` of them drafted. With `drafts` (those verified) they are one round, the accepted first.

    logprobs: of each id, where asked for; None for an id generated before the text was resumed.
    """

    ids: tuple[int, ...]
    accepted: int
    drafts: tuple[int, ...] | None
    logprobs: tuple[Logprob | None, ...] = ()

    def joined(self, other: "Tokens") -> "Tokens":
        """Merge with what follows into one event that is no round."""
        return Tokens(self.ids + other.ids, self.accepted + other.accepted, None, self.logprobs + other.logprobs)


@dataclass(frozen=True, slots=True)
class Finished:
    reason: str
    prompt_ids: tuple[int, ...]
    report: Report


@dataclass(frozen=True, slots=True)
class Failed:
    error: SpecmeshError


ClientEvent = Started | Tokens | Finished | Failed


class EventSink(Protocol):
    """Receives the events of a request. Called from the daemon's loop; must not block."""

    def on_event(self, event: ClientEvent) -> None: ...


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request
    client: EventSink


@dataclass(frozen=True, slots=True)
class Cancel:
    client: EventSink


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection; address is tcp://HOST, with a port where known."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Pinged:
    number: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Ponged:
    number: int
    peer: Peer
    seconds: float


@dataclass(frozen=True, slots=True)
class PingPeers:
    """Order to send a PING to every peer. `tell` is called from the loop and must not block."""

    number: int
    tell: Callable[[Pinged | Ponged], None]

    def sent(self, peers: Iterable[Peer]) -> None:
        self.tell(Pinged(self.number, tuple(peers)))

    def answer(self, peer: Peer) -> Callable[[float], None]:
        """Return the callback for the seconds that this peer's PONG took."""
        return lambda seconds: self.tell(Ponged(self.number, peer, seconds))


@dataclass(frozen=True, slots=True)
class AskStats:
    """Order for a snapshot of the statistics. `tell` is called from the loop and must not block."""

    tell: Callable[[Snapshot], None]


ClientOrder = Submit | Cancel | PingPeers | AskStats


def refuse(order: object, error: SpecmeshError) -> None:
    """Fail the request of an order, if it is one."""
    if isinstance(order, Submit):
        order.client.on_event(Failed(error))


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that answers a request; target is for `Request.target`."""

    model: str
    vocabulary: Vocabulary
    target: str = ""


class Backend(Protocol):
    """What the API needs of a daemon. Every member but `stats` answers at once."""

    @property
    def role(self) -> str:
        """verifier or drafter."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models available now."""

    def not_ready(self) -> SpecmeshError | None:
        """Return why requests cannot be served now, or None."""

    def served(self, name: str) -> ModelInfo:
        """Return the model for this name (empty: the default), once ready. A lone verifier answers to any name.

        Raises NoSuchModel, or why that model is not available now.
        """

    def submit(self, order: ClientOrder) -> None:
        """Queue an order for the daemon's loop."""

    async def stats(self) -> Snapshot:
        """Return a snapshot of the statistics."""
