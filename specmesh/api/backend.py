"""The daemon as the API sees it: orders to it, and questions. Both share an event loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import Account, EventSink, Request
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.core.text.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import SpecmeshError


@dataclass(frozen=True, slots=True)
class Submit:
    """Order to answer requests: all of them find room, or none does.

    texts: each request with its client.
    tenant: the client for whose share they count, () for none.
    account: the API key or the local user that asks; None for nobody that is known.
    """

    texts: Sequence[tuple[Request, EventSink]]
    tenant: Tenant = ()
    account: Account | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Order to end a client's session."""

    client: EventSink


@dataclass(frozen=True, slots=True)
class PauseClient:
    """Order to pause a client's session, because its reader takes no more, or to go on with it."""

    client: EventSink
    paused: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. address: tcp://HOST, with a port if it is known."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class PingPeers:
    """Order to send a PING to every peer.

    sent: called with the peers.
    answered: called with a peer and the seconds until its PONG.
    Both are called from the loop and must not block.
    """

    sent: Callable[[Iterable[Peer]], None]
    answered: Callable[[Peer, float], None]


@dataclass(frozen=True, slots=True)
class AskStats:
    """Order for a snapshot of the statistics. tell: called from the loop, must not block."""

    tell: Callable[[Snapshot], None]


ClientOrder = Submit | Cancel | PauseClient | PingPeers | AskStats


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that answers a request.

    target: for `Request.target`.
    n_ctx: tokens of its context; None while unknown.
    max_sessions: of the verifier; None at a drafter.
    texts: `Tokenizer.texts`; empty at a drafter.
    model_hash: as in WELCOME; "" if it is not known, or where several verifiers may answer.
    """

    model: str
    vocabulary: Vocabulary
    target: str = ""
    n_ctx: int | None = None
    max_sessions: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    model_hash: str = ""


class Backend(Protocol):
    """A daemon. Every member but `stats` answers at once."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer, once ready. Raises NotOffered at a drafter."""
        ...

    @property
    def role(self) -> str:
        """Return "verifier" or "drafter"."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models that are available now."""
        ...

    def not_ready(self) -> SpecmeshError | None:
        """Return the reason for which requests cannot be served now, or None."""

    def served(self, name: str) -> ModelInfo:
        """Return the model of this name, "" for the default, once ready.

        A verifier answers to any name. Raises NoSuchModel, or the reason for which the model is
        not available now.
        """
        ...

    def submit(self, order: ClientOrder) -> None:
        """Queue an order for the daemon's loop."""

    async def stats(self) -> Snapshot:
        """Return a snapshot of the statistics."""
        ...
