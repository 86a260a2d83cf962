"""The verifier's socket: nothing is lost to a slow drafter, and one that never reads is let go."""

import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from specmesh.daemons.router import MAX_BACKLOG, Router
from specmesh.daemons.transport import bind_router, connect_dealer
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

PATIENCE = 20.0


class Ends:
    """A router and one dealer that it has heard of."""

    def __init__(self) -> None:
        self._context = zmq.Context[zmq.Socket[bytes]]()
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        self.router = Router(bind_router(self._context, address, insecure=False))
        self.dealer = connect_dealer(self._context, address)
        assert self.dealer.poll(int(PATIENCE * 1000), zmq.POLLOUT)
        self.dealer.send(encode(m.Ping(1, 1)))
        assert self.router.socket.poll(int(PATIENCE * 1000))
        [(self.identity, _, _)] = list(self.router.receive())

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
            heard.append(decode(ends.dealer.recv()).session)  # type: ignore[union-attr]
    assert heard == list(range(count))
    assert not ends.router.behind
    assert ends.router.unreachable() == []


def test_drafter_that_never_reads_is_let_go(ends: Ends):
    """Beyond MAX_BACKLOG bytes nothing more is kept: the drafter is given up."""
    fill(ends)
    kept = 0
    while size := ends.router.send(ends.identity, m.Truth(0, 0, 0, (0,) * 8000, 4)):
        kept += size
        assert kept <= MAX_BACKLOG
    assert ends.router.unreachable() == [ends.identity]
    assert not ends.router.behind


def test_drafter_that_has_gone_is_told(ends: Ends):
    """A drafter that disconnected is named by `unreachable` once it is sent something, and nothing is kept for it."""
    fill(ends)
    ends.dealer.close(linger=0)
    deadline = time.monotonic() + PATIENCE
    while not (gone := ends.router.unreachable()):
        ends.router.flush()
        ends.router.send(ends.identity, m.Ping(1, 1))
        assert list(ends.router.receive()) == []
        assert time.monotonic() < deadline
    assert set(gone) == {ends.identity}
    assert not ends.router.behind
