"""The drafter's end: refusals are seen, said in words, and outlived."""

import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from harness.ports import free_address

from specmesh.daemons.link.dealer import CHECK_INTERVAL, Dealer
from specmesh.daemons.link.transport import MAX_BACKLOG, Route, bind_router
from specmesh.wire import messages as m
from specmesh.wire.codec import decode

PATIENCE = 20.0

FULL_MS = 500
"""Milliseconds in which a queue that takes nothing is full, and not on its way into the network's buffers."""


class Clock:
    """The time that a dealer is told: it looks at every step, and as often as needed."""

    def __init__(self, dealer: Dealer) -> None:
        self.dealer, self.now = dealer, 1000.0
        self.told: list[str] = []

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.told
            self.now += CHECK_INTERVAL
            told = self.dealer.look(self.now)
            self.told += [told] if told else []
            time.sleep(0.002)


def connected(dealer: Dealer) -> bool:
    return bool(dealer.socket.poll(0, zmq.POLLOUT))


def opening(ref: int, prompt: str = "prompt") -> m.Open:
    return m.Open(ref, prompt, 10, temperature=0.0, top_k=0, top_p=1.0, seed=0, draft_n=4)


class Slow:
    """A verifier's socket that nobody reads from, and a dealer that has filled what ZeroMQ takes."""

    def __init__(self) -> None:
        self._context = zmq.Context[zmq.Socket[bytes]]()
        address = free_address()
        self.router = bind_router(self._context, address, insecure=False)
        self.dealer = Dealer(Route(self._context, address))
        Clock(self.dealer).until(lambda: connected(self.dealer))
        self.drafts = 0
        while self.dealer.socket.poll(FULL_MS, zmq.POLLOUT):
            assert self.dealer.send(m.Draft(1, self.drafts, 0, (0,) * 4000))
            self.drafts += 1

    def heard(self, count: int) -> list[m.Message]:
        found: list[m.Message] = []
        end = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < end:
            self.dealer.flush()
            while self.router.poll(1):
                message = decode(self.router.recv_multipart()[1])
                found += [message] if not isinstance(message, m.Draft) else []
        return found

    def close(self) -> None:
        self.dealer.close(linger=0)
        self._context.destroy(linger=0)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.close()


def test_requests_wait_for_a_verifier_that_does_not_keep_up(slow: Slow):
    """Those to open and to close a session are sent later, in order; a draft is dropped: the next one is as good."""
    asked: list[m.Message] = []
    for ref in range(1, 21):
        asked += [opening(ref), m.Close(0, 0, 0.0, ref)]
    assert all(slow.dealer.send(one) for one in asked)
    assert slow.dealer.behind
    assert slow.dealer.send(m.Draft(1, 0, 0, (0,) * 4000)) == 0
    sent = slow.dealer.traffic.frames_sent
    assert sent == slow.drafts, "what waits is not counted as sent"
    assert slow.heard(len(asked)) == asked
    assert not slow.dealer.behind
    assert slow.dealer.traffic.frames_sent == sent + len(asked)


def test_requests_that_wait_are_bounded(slow: Slow):
    """Beyond MAX_BACKLOG bytes none to open is taken; one to close is."""
    kept = 0
    while size := slow.dealer.send(opening(1, "p" * 10_000)):
        kept += size
        assert kept <= MAX_BACKLOG
    assert kept > MAX_BACKLOG - 20_000
    assert slow.dealer.send(m.Close(7, 0, 0.0)), "without it a session would go on for nobody"
