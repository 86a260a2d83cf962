"""What the API asks of a daemon, with which it shares an event loop."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import EventSink, Request
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.core.text.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import SpecmeshError


@dataclass(frozen=True, slots=True)
class Submit:
    """Order to answer a request. tenant: whom it counts for where clients share something; () for
    nobody."""

    request: Request
    client: EventSink
    tenant: Tenant = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    client: EventSink


@dataclass(frozen=True, slots=True)
class PauseClient:
    """Order to let a client's session wait, since its reader takes no more; or to go on with it."""

    client: EventSink
    paused: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection; address is tcp://HOST, with a port where known."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class PingPeers:
    """Order to send a PING to every peer. sent: called with these peers; answered: with one, and the seconds that its
    PONG took. Both are called from the loop and must not block."""

    sent: Callable[[Iterable[Peer]], None]
    answered: Callable[[Peer, float], None]


@dataclass(frozen=True, slots=True)
class AskStats:
    """Order for a snapshot of the statistics. `tell` is called from the loop and must not block."""

    tell: Callable[[Snapshot], None]


ClientOrder = Submit | Cancel | PauseClient | PingPeers | AskStats


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that answers a request; target is for `Request.target`. texts: `Tokenizer.texts`, known to
    the verifier only, as max_sessions is."""

    model: str
    vocabulary: Vocabulary
    target: str = ""
    n_ctx: int | None = None
    max_sessions: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict[str, str])


class Backend(Protocol):
    """What the API needs of a daemon. Every member but `stats` answers at once."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's, once ready. Raises NotOffered where that is on another machine."""
        ...

    @property
    def role(self) -> str: ...  # verifier or drafter

    @property
    def models(self) -> tuple[str, ...]: ...  # names of those available now

    def not_ready(self) -> SpecmeshError | None:
        """Return why requests cannot be served now, or None."""

    def served(self, name: str) -> ModelInfo:
        """Return the model for this name (empty: the default), once ready. A lone verifier answers to any name. Raises
        NoSuchModel, or why that model is not available now."""
        ...

    def submit(self, order: ClientOrder) -> None:
        """Queue an order for the daemon's loop."""

    async def stats(self) -> Snapshot: ...
