"""The drafter's socket under a verifier that does not read."""

from collections.abc import Iterator

import pytest
import zmq
from harness import PATIENCE
from harness.ports import free_address

from specmesh.daemons.link.dealer import Dealer, Route
from specmesh.daemons.link.sockets import bind_router
from specmesh.wire import messages as m

FULL_MS = 2000
"""Milliseconds in which a queue that takes nothing is full, and not on its way into the network's buffers."""


@pytest.fixture
def full() -> Iterator[Dealer]:
    """A dealer that has filled what ZeroMQ takes."""
    context, address = zmq.Context[zmq.Socket[bytes]](), free_address()
    router = bind_router(context, address, insecure=False)
    dealer = Dealer(Route(context, address))
    assert dealer.socket.poll(int(1e3 * PATIENCE), zmq.POLLOUT), "no connection"
    while dealer.socket.poll(FULL_MS, zmq.POLLOUT):
        assert dealer.send(m.Draft(1, 0, 0, (0,) * 4000))
    yield dealer
    dealer.close(linger=0)
    router.close()
    context.destroy(linger=0)


def test_a_verifier_that_does_not_keep_up(full: Dealer):
    """A draft is dropped: the next one is as good. Without a CLOSE a session would go on for nobody, so the connection
    counts as cut."""
    sent = full.traffic.frames_sent
    assert full.send(m.Draft(1, 0, 0, (0,) * 4000)) == 0
    assert full.traffic.frames_sent == sent, "what is dropped is not counted as sent"
    assert not full.cut
    assert full.send(m.Close(7)) == 0
    assert full.cut
