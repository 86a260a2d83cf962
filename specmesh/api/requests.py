"""What a client asks of a daemon and what it hears back, between the API's thread and a daemon's loop."""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from specmesh.core.report import Report
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import SpecmeshError

ID_BYTES = 36
"""Of an id in a tuple."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation: of ids, or of a chat by the target's own template, or of a text.

    The first of them that is given counts. continued: the last message of the chat goes on, and none begins. rounds:
    events carry each round's drafts. id: its name, which nobody can guess and who knows may have the text. named_only:
    the text of that name is wanted, and none to be begun. choice: its number among those to the same prompt.
    generated: ids that came before, after those of the prompt, to go on from; known: how many of the text's need not
    be told. reconnect_timeout: seconds that a drafter waits for its verifier to come back before it gives up. priority:
    while all sessions are taken, those with a lower one go before it. target: the one that it is for, as `Served` calls
    it, where a drafter has several; empty for any.
    """

    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    params: SessionParams
    rounds: bool = False
    messages: tuple[ChatMessage, ...] = ()
    continued: bool = False
    id: str = ""
    generated: tuple[int, ...] = ()
    known: int = 0
    reconnect_timeout: float = 0.0
    named_only: bool = False
    priority: int = 0
    target: str = ""
    choice: int = 0

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        said = (text for message in self.messages for text in (message.role, message.name, message.content))
        texts = (self.prompt or "", *said)
        grammar = self.params.grammar
        ids = len(self.prompt_ids or ()) + len(self.generated)
        return ID_BYTES * ids + sum(map(sys.getsizeof, texts)) + (len(grammar.text) if grammar is not None else 0)

    @property
    def label(self) -> str:
        """What the log calls it: the beginning of its name, from which nobody can have the text."""
        return self.id[:-20]


@dataclass(frozen=True, slots=True)
class Started:
    """The session exists: how many tokens its prompt has, which, and how it goes on."""

    session: int
    prompt_tokens: int
    prompt_ids: tuple[int, ...] = ()
    params: SessionParams | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """New ids, `accepted` of them drafted. With `drafts`, what was verified, it is one round, the accepted first.

    logprobs: of each id, where asked for; None for one that was said before the text was gone on with.
    """

    ids: tuple[int, ...]
    accepted: int
    drafts: tuple[int, ...] | None
    logprobs: tuple[Logprob | None, ...] = ()

    def joined(self, other: "Tokens") -> "Tokens":
        """This and what follows, the rounds no longer told apart."""
        return Tokens(self.ids + other.ids, self.accepted + other.accepted, None, self.logprobs + other.logprobs)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: why, and the session's numbers."""

    reason: str
    prompt_ids: tuple[int, ...]
    report: Report


@dataclass(frozen=True, slots=True)
class Failed:
    """The request was refused or broke."""

    error: SpecmeshError


ClientEvent = Started | Tokens | Finished | Failed


class Client(Protocol):
    """Who hears what becomes of a request. Called from the daemon's loop; never blocks."""

    def hear(self, event: ClientEvent) -> None:
        """Take an event."""


E = TypeVar("E")


class Crossing(Generic[E]):
    """Events from a daemon's loop to the asyncio loop that this was made in, the API thread's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[E] = deque()
        self._arrived = asyncio.Event()
        self._woken = False

    def hear(self, event: E) -> None:
        """Take an event, from any thread. Wakes the API's thread only where it has taken all before."""
        self._events.append(event)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the API's loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._arrived.set)

    async def batch(self) -> list[E]:
        """The events since the last call, in order; now and then there is none."""
        await self._arrived.wait()
        self._arrived.clear()
        self._woken = False  # before taking: an event that comes in between wakes once too often, never too seldom
        events: list[E] = []
        while self._events:
            events.append(self._events.popleft())
        return events


class LocalClient(Crossing[ClientEvent]):
    """A client in this process's API thread. unread_since: when it was given what it has not taken yet."""

    unread_since: float | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """From the API to a daemon's loop: start this request."""

    request: Request
    client: LocalClient


@dataclass(frozen=True, slots=True)
class Cancel:
    """From the API to a daemon's loop: this client is gone."""

    client: LocalClient


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection: what it calls itself, and where it is (tcp://HOST, with a port where known)."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Pinged:
    """A PING has gone to each of these."""

    number: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Ponged:
    """A peer has answered the PING with this number after so many seconds."""

    number: int
    peer: Peer
    seconds: float


@dataclass(frozen=True, slots=True)
class Probe:
    """From the API to a daemon's loop: send a PING to every peer. `number` is the asker's own, who is told by `tell`:
    from the loop, which it must not block."""

    number: int
    tell: Callable[[Pinged | Ponged], None]

    def sent(self, peers: Iterable[Peer]) -> None:
        """The loop tells whom it pings."""
        self.tell(Pinged(self.number, tuple(peers)))

    def answer(self, peer: Peer) -> Callable[[float], None]:
        """What is to be called with the seconds that this peer's answer took."""
        return lambda seconds: self.tell(Ponged(self.number, peer, seconds))


ClientOrder = Submit | Cancel | Probe
"""What the API asks of a daemon's loop."""


def refuse(order: object, error: SpecmeshError) -> None:
    """Tell a request's client that nobody takes it; other orders have nobody to tell."""
    if isinstance(order, Submit):
        order.client.hear(Failed(error))


@dataclass(frozen=True, slots=True)
class Served:
    """What answers a request: the model's name, its vocabulary, and what `Request.target` is to be for it."""

    model: str
    vocabulary: Vocabulary
    target: str = ""


class Backend(Protocol):
    """What the API needs of a daemon. Every member answers at once, from any thread."""

    @property
    def role(self) -> str:
        """verifier or drafter."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that can be asked for now; none while they are unknown."""

    def not_ready(self) -> SpecmeshError | None:
        """Why requests cannot be served now; None when they can."""

    def served(self, name: str) -> Served:
        """What answers a request for this model, or where the name is empty, one that names none; only once ready.

        Raises NoSuchModel, or why that one cannot be asked now. Where there is one verifier, it has any name.
        """

    def submit(self, order: ClientOrder) -> None:
        """Hand an order to the daemon's loop."""

    def stats(self) -> dict[str, object]:
        """The newest snapshot of the daemon's statistics."""
