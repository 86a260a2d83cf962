"""Who is attached to a verifier, and who of them is due a PING or gone silent."""

from types import SimpleNamespace

import pytest

from specmesh.core.statistics import SHORT, Histogram
from specmesh.daemons.link.peers import PING_INTERVAL, SILENCE
from specmesh.daemons.verifier import drafters as drafters_module
from specmesh.daemons.verifier.drafters import MOST_OF_A_KEY, Drafters
from specmesh.errors import Busy
from specmesh.wire import messages as m


class Wire:
    """A router that notes what is sent."""

    def __init__(self) -> None:
        self.said: list[tuple[bytes, m.Message]] = []
        self.forgotten: list[bytes] = []
        self.of_key = 0
        self.inlet = SimpleNamespace(sender=lambda: "tcp://here")
        self.doors = SimpleNamespace(attach=self.attach, detach=self.forgotten.append, same_key=lambda _: self.of_key)

    def send(self, identity: bytes, message: m.Message) -> int:
        self.said.append((identity, message))
        return 1

    def attach(self, identity: bytes) -> str:
        return f"{identity.decode()}'s key"

    def forget(self, identity: bytes) -> None:
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
    assert wire.forgotten == [b"small"] * 4  # by the doors and by the queue of what is to be sent
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
    drafters.tell(m.Bye())
    assert wire.said == [(b"small", m.Bye()), (b"large", m.Bye())]


HELLO = m.Hello("one more", "sim", "none", "", 0, 64)


def test_so_many_and_no_more(drafters: Drafters, wire: Wire, monkeypatch: pytest.MonkeyPatch):
    """Of all together, and of one key."""
    monkeypatch.setattr(drafters_module, "MOST", 3)
    wire.of_key = MOST_OF_A_KEY
    with pytest.raises(Busy, match="too many drafters"):
        drafters.add(b"third", HELLO, 0.0)
    wire.of_key = MOST_OF_A_KEY - 1
    drafters.add(b"third", HELLO, 0.0)
    with pytest.raises(Busy, match="too many drafters"):
        drafters.add(b"fourth", HELLO, 0.0)
    drafters.remove(b"third")
    drafters.add(b"fourth", HELLO, 0.0)


def test_a_stuck_drafter_gets_nothing(drafters: Drafters):
    """One that answers while its loop does not turn is named once, and again when it does; meanwhile it is left out."""
    peer = drafters.get(b"large")
    assert peer is not None
    for second in range(4):
        drafters.ponged(peer, m.Pong(0, 7), float(second))
        assert drafters.turned() == []
    drafters.pinged(peer, m.Ping(1, 7), 4.0, 0, 0.0)
    assert drafters.turned() == [peer]
    assert drafters.turned() == []
    assert peer.stuck
    assert peer.describe()["stuck"]
    assert drafters.holding(0) == [b"small"]
    drafters.ponged(peer, m.Pong(0, 8), 5.0)
    assert drafters.turned() == [peer]
    assert drafters.holding(0) == [b"small", b"large"]
