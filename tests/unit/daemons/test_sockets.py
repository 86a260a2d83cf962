"""The sockets: where they may listen, what they take, who is let go, and what becomes of a verifier that does not
read."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
import zmq
from harness import PATIENCE
from harness.ports import free_address

from specmesh.core.peer_limits import Cost, PeerGate, Rate
from specmesh.daemons.link.dealer import Dealer, Route, close_dealer
from specmesh.daemons.link.sockets import Router, bind_router
from specmesh.errors import ConfigError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

HELLOS, BYTES = 20, 10**7  # at once
RATES = {cost: Rate(200, 1000) for cost in Cost} | {Cost.HELLOS: Rate(5, HELLOS), Cost.BYTES: Rate(10**6, BYTES)}


class Ends:
    """A router and one dealer that it has attached."""

    def __init__(self) -> None:
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.now = 0.0
        self.address = free_address()
        self.router = Router(bind_router(self.context, self.address, insecure=False), gate=PeerGate(RATES))
        self.dealer = self.another()
        assert self.dealer.poll(int(PATIENCE * 1000), zmq.POLLOUT)
        self.dealer.send(encode(m.Ping(1)))
        assert self.router.socket.poll(int(PATIENCE * 1000))
        [(self.identity, _, _)] = list(self.router.receive(0.0))
        assert self.router.inlet.known("User-Id") == "", "nobody was asked about its key"
        self.router.gate.attach(self.identity, "")

    def another(self) -> "zmq.Socket[bytes]":
        return Route(self.context, self.address).open()

    def turn(self) -> list[m.Message | None]:
        assert self.router.socket.poll(int(PATIENCE * 1000))
        return [message for _, message, _ in self.router.receive(self.now)]

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield (made := Ends())
    made.close()


def test_a_drafter_that_does_not_keep_up(ends: Ends):
    """It gets all that was taken for it, in order; once its queue is full it is let go, and gets nothing more, as what
    came between would be lost."""
    sent = 0
    while ends.router.send(ends.identity, m.Truth(sent, 0, 0, (0,) * 2000, 4)):
        sent += 1
        assert sent < 100_000
    for session in range(sent):
        assert ends.dealer.poll(int(PATIENCE * 1000))
        assert decode(ends.dealer.recv()).session == session
    assert ends.router.send(ends.identity, m.Done(0, "stop", 1)) == 0
    assert ends.router.take_gone() == {ends.identity: "behind"}


def test_a_drafter_that_has_left(ends: Ends):
    """It is told from one that does not keep up: its descriptor may be another's by now."""
    assert (ends.router.send(b"nobody", m.Bye()), ends.router.take_gone()) == (0, {b"nobody": "unreachable"})


PING, HELLO = encode(m.Ping(1)), encode(m.Hello("d", "m", "none", "", 0, 4096))


def test_what_is_too_much_is_dropped_unread(ends: Ends):
    """It is counted, not decoded, and some of it in a turn; then the wire is left alone for a moment."""
    flood = chain([HELLO] * HELLOS, repeat(HELLO[:-1] + b"?"))  # no JSON, which nobody notices
    ends.router.inlet = SimpleNamespace(receive=lambda: [ends.identity, next(flood)])
    rejected, taken = ends.router.traffic.rejected, 0
    for _ in range(3):
        before = rejected["rate"]
        while rejected["rate"] == before:
            taken += len(list(ends.router.receive(ends.now)))
            ends.now += 1e-4  # so little that no more is allowed by then
        dropped = rejected["rate"]
        assert (list(ends.router.receive(ends.now)), rejected["rate"]) == ([], dropped)
    assert (taken, rejected["body"]) == (HELLOS, 0)
    assert not ends.router.take_gone()


def test_another_peer_is_heard_beside_a_flood(ends: Ends):
    """Each of its frames is taken, although the other's queue is always full."""
    other = ends.another()
    assert other.poll(int(PATIENCE * 1000), zmq.POLLOUT)
    for number in range(20):
        for _ in range(200):
            with suppress(zmq.Again):
                ends.dealer.send(PING, zmq.NOBLOCK)
        other.send(encode(m.Nack(number, 0, 0)))
        heard: list[m.Message | None] = []
        while not heard:
            ends.now += 0.01
            heard = [message for message in ends.turn() if not isinstance(message, m.Ping)]
        assert heard == [m.Nack(number, 0, 0)]
    close_dealer(other)


def test_bytes_of_json_count_more(ends: Ends):
    """Large control frames, which take long to read, are dropped unread while as many bytes of ids would be taken."""
    order = encode(m.Open(1, "x" * 200_000, {"max_tokens": 1, "temperature": 0, "seed": 1, "draft_n": 0}))
    fit = BYTES // (8 * len(order))  # as PROTOCOL.md says
    objections = [ends.router.objection([ends.identity, order], 0.0) for _ in range(fit + 1)]
    assert objections == [None] * fit + ["rate"]
    ids = encode(m.Draft(1, 0, 0, (1,) * 512))
    assert ends.router.objection([ends.identity, ids], 0.0) is None


NO_ADDRESSES = (
    "7071 127.0.0.1:7071 tcp:// tcp://:7071 tcp://127.0.0.1 tcp://127.0.0.1: tcp://127.0.0.1:0 tcp://127.0.0.1:70000 "
    "tcp://127.0.0.1:port tcp://127.0.0.1:-1 udp://127.0.0.1:7071 ipc:///run/x inproc://x http://127.0.0.1:7071"
)


@pytest.mark.parametrize("address", ["", *NO_ADDRESSES.split()])
@pytest.mark.parametrize("open_", ["bind", "connect"])
def test_what_is_no_address(address: str, open_: str):
    context = zmq.Context[zmq.Socket[bytes]].instance()
    with pytest.raises(ConfigError, match=f"--{open_}.*tcp://127.0.0.1:7071"):
        bind_router(context, address, insecure=True) if open_ == "bind" else Route(context, address).open()


def test_no_heartbeats_of_libzmq():
    """They abort the process where a connection breaks while its queue is full."""
    socket = bind_router(zmq.Context.instance(), free_address(), insecure=True)
    assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
    socket.close(0)


# --- at the drafter


def test_a_verifier_that_does_not_keep_up(ends: Ends):
    """A draft is dropped: the next one is as good. Without a CLOSE a session would go on for nobody, so the connection
    counts as cut."""
    dealer, sent = Dealer(Route(ends.context, ends.address)), 0
    assert dealer.socket.poll(int(PATIENCE * 1000), zmq.POLLOUT)
    while dealer.send(m.Draft(1, 0, 0, (0,) * 4000)):
        sent += 1
    assert dealer.traffic.frames_sent == sent > 0, "what is dropped is not counted as sent"
    assert not dealer.cut
    while dealer.send(m.Close(7)):  # into what the network has taken meanwhile
        assert not dealer.cut
    assert dealer.cut
    dealer.close(linger=0)


@pytest.mark.parametrize("room", [3, 4])
def test_no_room_for_another_connection(room: int):
    """It is refused in the system's words, as often as it is tried. room: for itself, or not even that."""
    context = zmq.Context[zmq.Socket[bytes]]()
    context.set(zmq.MAX_SOCKETS, room)  # 3 as one connection has, with its monitor
    dealer = Dealer(Route(context, free_address()))
    for _ in range(2):
        dealer.reconnect()
        assert (dealer.cut, str(dealer.refusal)[-19:]) == (True, "Too many open files")
    context.destroy(linger=0)
