"""Who is attached to a verifier, and who of them is due a PING or gone silent."""

from types import SimpleNamespace

import pytest

from specmesh.core.stats import SHORT, Histogram
from specmesh.daemons.drafters import Drafters
from specmesh.daemons.peers import PING_INTERVAL, SILENCE
from specmesh.wire import messages as m


class Wire:
    """A router that notes what is sent."""

    def __init__(self) -> None:
        self.said: list[tuple[bytes, m.Message]] = []
        self.forgotten: list[bytes] = []
        self.inlet = SimpleNamespace(sender=lambda: "tcp://here")

    def send(self, identity: bytes, message: m.Message) -> int:
        self.said.append((identity, message))
        return 1

    def attach(self, identity: bytes) -> str:
        return f"{identity.decode()}'s key"

    def detach(self, identity: bytes) -> None:
        self.forgotten.append(identity)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def drafters(wire: Wire) -> Drafters:
    """Two of them, one with a small context."""
    made = Drafters(wire, Histogram(SHORT))  # type: ignore[arg-type]
    for name, n_ctx in (("small", 64), ("large", 4096)):
        made.add(name.encode(), m.Hello(name, "sim", "none", "", 0, n_ctx), 0.0)
    return made


def test_who_is_there(drafters: Drafters, wire: Wire):
    """By identity, in order, by what they can hold; nothing is kept for one that is removed."""
    assert [peer.hello.drafter for peer in drafters] == ["small", "large"]
    assert drafters.holding(64) == [b"large"]
    assert drafters.get(None) is drafters.get(b"nobody") is None
    removed = drafters.remove(b"small")
    assert removed is not None
    assert (removed.address, removed.key) == ("tcp://here", "small's key")
    assert drafters.remove(b"small") is None
    assert wire.forgotten == [b"small", b"small"]
    assert [peer.hello.drafter for peer in drafters] == ["large"]


def test_pings_are_due_once_a_second(drafters: Drafters, wire: Wire):
    """Each drafter's own; none where there is nobody."""
    drafters.ping(5.0, 7, 0.5)
    drafters.ping(5.0, 7, 0.5)
    assert wire.said == [(b"small", m.Ping(1, 7, 0.5)), (b"large", m.Ping(1, 7, 0.5))]
    assert drafters.next_ping() == 5.0 + PING_INTERVAL
    peer = drafters.get(b"large")
    assert peer is not None
    drafters.ponged(peer, m.Pong(1, 9, 0.25), 5.01)
    assert (peer.link.progress, peer.link.busy) == (9, 0.25)
    assert peer.link.round_trips.percentile(0.5) == pytest.approx(0.01)
    drafters.remove(b"small")
    drafters.remove(b"large")
    assert drafters.next_ping() is None


def test_silence(drafters: Drafters):
    """Only those that were not heard."""
    peer = drafters.get(b"large")
    assert peer is not None
    peer.link.last_heard = 1.0
    assert drafters.silent(SILENCE + 0.5) == [b"small"]


def test_bye_goes_to_each(drafters: Drafters, wire: Wire):
    """Once."""
    drafters.bye()
    assert wire.said == [(b"small", m.Bye()), (b"large", m.Bye())]
