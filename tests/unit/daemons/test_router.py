"""The verifier's socket: nothing is lost to a slow drafter, and one that never reads is let go."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import zmq
from harness.ports import free_address

from specmesh.core.peer_limits import BODY_WEIGHT, RATES, Cost
from specmesh.daemons.link import router
from specmesh.daemons.link.router import MAX_REFUSED_PER_TURN, PAUSE, Router
from specmesh.daemons.link.transport import MAX_BACKLOG, Route, bind_router, close_dealer
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

PATIENCE = 20.0


class Ends:
    """A router and one dealer that it has attached."""

    def __init__(self) -> None:
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self.now = 0.0
        self.address = free_address()
        self.router = Router(bind_router(self._context, self.address, insecure=False))
        self.dealer = self.another()
        assert self.dealer.poll(int(PATIENCE * 1000), zmq.POLLOUT)
        self.dealer.send(encode(m.Ping(1)))
        assert self.router.socket.poll(int(PATIENCE * 1000))
        [(self.identity, _, _)] = list(self.router.receive(0.0))
        self.router.gate.attach(self.identity, m.Hello("d", "sim", "m", "", 0, 64), 0.0)

    def another(self) -> "zmq.Socket[bytes]":
        return Route(self._context, self.address).open()

    def turn(self) -> list[m.Message | None]:
        assert self.router.socket.poll(int(PATIENCE * 1000))
        return [message for _, message, _ in self.router.receive(self.now)]

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def fill(ends: Ends) -> int:
    """Send until something has to be kept back; how many messages that took."""
    count = 0
    while not ends.router.behind:
        assert ends.router.send(ends.identity, m.Truth(count, 0, 0, (0,) * 2000, 4))
        count += 1
        assert count < 100_000
    return count


def test_slow_drafter_gets_everything_in_order(ends: Ends):
    """What a full queue does not take is kept and sent later: no message is lost or moved."""
    count = fill(ends)
    for _ in range(20):
        assert ends.router.send(ends.identity, m.Truth(count, 0, 0, (), 4))
        count += 1
    heard = []
    deadline = time.monotonic() + PATIENCE
    while len(heard) < count and time.monotonic() < deadline:
        ends.router.flush()
        while ends.dealer.poll(1):
            heard.append(decode(ends.dealer.recv()).session)
    assert heard == list(range(count))
    assert not ends.router.behind
    assert not ends.router.gate.take_gone()


def test_drafter_that_never_reads_is_let_go(ends: Ends):
    """Beyond MAX_BACKLOG bytes nothing more is kept: the drafter is given up."""
    fill(ends)
    kept = 0
    while size := ends.router.send(ends.identity, m.Truth(0, 0, 0, (0,) * 8000, 4)):
        kept += size
        assert kept <= MAX_BACKLOG
    assert ends.router.gate.take_gone() == {ends.identity: "unreachable"}
    assert not ends.router.behind


PING = encode(m.Ping(1))
BURST = int(RATES[Cost.PINGS].burst)


def use_up(ends: Ends) -> None:
    """Have the peer send all the PINGs that it may at once."""
    for _ in range(BURST - 1):  # one was sent when it came
        ends.dealer.send(PING)
    taken = 0
    while taken < BURST - 1:
        taken += len(ends.turn())


def test_what_is_too_much_is_dropped_unread(ends: Ends, monkeypatch: pytest.MonkeyPatch):
    """It is counted, not decoded, and so many in a turn; then the wire is left alone for a moment."""
    monkeypatch.setattr(router, "PAUSE", 1e-6)  # so short that nothing more is allowed by then
    use_up(ends)
    rejected = ends.router.traffic.rejected
    for _ in range(3 * MAX_REFUSED_PER_TURN):
        ends.dealer.send(PING[:-1] + b"?")  # no JSON, which nobody notices
    before = 0
    while rejected["rate"] < 3 * MAX_REFUSED_PER_TURN:
        assert ends.turn() == []
        dropped, before = rejected["rate"] - before, rejected["rate"]
        assert dropped <= MAX_REFUSED_PER_TURN
        if dropped == MAX_REFUSED_PER_TURN:
            assert list(ends.router.receive(ends.now)) == []
            assert rejected["rate"] == before
        ends.now += 2e-6
    assert rejected["body"] == 0
    assert not ends.router.gate.take_gone()


def test_another_peer_is_heard_beside_a_flood(ends: Ends):
    """Each of its frames is taken, although the other's queue is always full."""
    use_up(ends)
    other = ends.another()
    assert other.poll(int(PATIENCE * 1000), zmq.POLLOUT)
    for number in range(20):
        for _ in range(200):
            with suppress(zmq.Again):
                ends.dealer.send(PING, zmq.NOBLOCK)
        other.send(encode(m.Nack(number, 0, 0)))
        deadline = time.monotonic() + PATIENCE
        heard: list[m.Message | None] = []
        while not heard:
            ends.now += 2 * PAUSE
            heard = [message for message in ends.turn() if not isinstance(message, m.Ping)]
            assert time.monotonic() < deadline
        assert heard == [m.Nack(number, 0, 0)]
    close_dealer(other)


def test_bytes_of_json_count_more(ends: Ends):
    """Large control frames, which take long to read, are dropped unread while as many bytes of ids would be taken."""
    order = encode(m.Open(1, "x" * 200_000, 1, 0.0, 0, 1.0, 1, 0))
    fit = int(RATES[Cost.BYTES].burst) // (BODY_WEIGHT * len(order))
    objections = [ends.router.gate.objection([ends.identity, order], 0.0) for _ in range(fit + 1)]
    assert objections == [None] * fit + ["rate"]
    ids = encode(m.Draft(1, 0, 0, (1,) * 512))
    assert ends.router.gate.objection([ends.identity, ids], 0.0) is None
