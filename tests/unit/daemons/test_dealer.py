"""The drafter's end: refusals are seen, said in words, and outlived."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from harness.loops import free_address

from specmesh.daemons.link.auth import Guard
from specmesh.daemons.link.dealer import LONGEST_RETRY, LOOK_INTERVAL, MAX_BACKLOG, Dealer
from specmesh.daemons.link.transport import Route, bind_router, close_dealer
from specmesh.errors import ConfigError
from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire import messages as m
from specmesh.wire.codec import decode

PATIENCE = 20.0

FULL_MS = 500
"""Milliseconds in which a queue that takes nothing is full, and not on its way into the network's buffers."""


class Ends:
    """A guarded router, and dealers of one drafter."""

    def __init__(self, path: Path) -> None:
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.address = free_address()
        self.verifier, self.drafter = KeyFolder(path / "verifier"), KeyFolder(path / "drafter")
        self.public, self.key = (folder.new().public.hex() for folder in (self.verifier, self.drafter))
        self.guard = Guard(self.context, self.verifier, lambda: None)
        self.router = bind_router(self.context, self.address, False, self.guard)
        self._dealers: list[Dealer] = []

    def dealer(self, keys: KeyFolder | None) -> Dealer:
        route = Route(self.context, self.address, keys=keys)
        self._dealers.append(Dealer(route))
        return self._dealers[-1]

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close(linger=0)
        self.guard.close()
        self.context.destroy(linger=0)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path)
    yield made
    made.close()


class Clock:
    """The time that a dealer is told: it looks at every step, and as often as needed."""

    def __init__(self, dealer: Dealer) -> None:
        self.dealer, self.now = dealer, 1000.0
        self.told: list[str] = []

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.told
            self.now += LOOK_INTERVAL
            told = self.dealer.look(self.now)
            self.told += [told] if told else []
            time.sleep(0.002)


def connected(dealer: Dealer) -> bool:
    return bool(dealer.socket.poll(0, zmq.POLLOUT))


@pytest.mark.fault("E6.61")
def test_refused_then_allowed(ends: Ends):
    """It is told once, by what to do; once the key is allowed a fresh connection gets in."""
    ends.drafter.allow(Listing.VERIFIERS, ends.public, ends.address)
    dealer = ends.dealer(ends.drafter)
    clock = Clock(dealer)
    clock.until(lambda: dealer.traffic.refused["key"] >= 3)
    assert len(clock.told) == 1
    assert "specmesh keys allow" in str(dealer.refusal)
    ends.verifier.allow(Listing.DRAFTERS, ends.key, "mac")
    clock.until(lambda: connected(dealer) and dealer.refusal is None)
    assert dealer.encrypted


@pytest.mark.fault("E6.59")
def test_no_keys_where_they_are_asked_for(ends: Ends):
    """The other mechanism is told as such, and tried again less often, at least every LONGEST_RETRY."""
    dealer = ends.dealer(None)
    clock = Clock(dealer)
    begun = clock.now
    clock.until(lambda: dealer.traffic.refused["mechanism"] >= 5)
    assert "specmesh pair" in str(dealer.refusal)
    assert not dealer.encrypted
    assert clock.now - begun > 2 * LONGEST_RETRY


@pytest.mark.fault("E6.60")
def test_another_verifier(ends: Ends):
    """A verifier that has another key is not spoken to; once the right key is known here, it is, at once."""
    ends.verifier.allow(Listing.DRAFTERS, ends.key, "mac")
    ends.drafter.allow(Listing.VERIFIERS, "ab" * 32, ends.address)
    dealer = ends.dealer(ends.drafter)
    clock = Clock(dealer)
    clock.until(lambda: dealer.traffic.refused["broken"] >= 2)
    assert "specmesh keys list" in str(dealer.refusal)
    ends.drafter.allow(Listing.VERIFIERS, ends.public, ends.address, replace=True)
    clock.until(lambda: connected(dealer) and dealer.refusal is None)


def test_each_verifier_has_a_key_of_its_own(ends: Ends, tmp_path: Path):
    """Of two verifiers each is expected to have the key that is known for its address; another's does not do."""
    other = Ends(tmp_path / "other")
    try:
        for one in (ends, other):
            one.verifier.allow(Listing.DRAFTERS, ends.key, "mac")
            ends.drafter.allow(Listing.VERIFIERS, one.public, one.address)
        dealers = [one.dealer(ends.drafter) for one in (ends, other)]
        for dealer in dealers:
            Clock(dealer).until(lambda dealer=dealer: connected(dealer) and dealer.refusal is None)  # type: ignore[misc]
        ends.drafter.allow(Listing.VERIFIERS, ends.public, other.address, replace=True)
        Clock(dealers[1]).until(lambda: dealers[1].traffic.refused["broken"] and not connected(dealers[1]))
        Clock(dealers[0]).until(lambda: connected(dealers[0]) and dealers[0].refusal is None)
    finally:
        other.close()


def test_keys_that_are_spoilt_while_it_runs(ends: Ends):
    """A connection that is up stays so; a fresh one waits until the keys are mended."""
    ends.verifier.allow(Listing.DRAFTERS, ends.key, "mac")
    ends.drafter.allow(Listing.VERIFIERS, ends.public, ends.address)
    dealer = ends.dealer(ends.drafter)
    clock = Clock(dealer)
    clock.until(lambda: connected(dealer))
    secret = ends.drafter.path / "secret.key"
    secret.chmod(0o644)
    clock.until(lambda: clock.now > 1001.0)
    assert connected(dealer)
    dealer.reconnect()
    assert "chmod 600" in str(dealer.refusal)
    clock.until(lambda: not connected(dealer))
    secret.chmod(0o600)
    clock.until(lambda: connected(dealer) and dealer.refusal is None)


def test_a_connection_that_breaks_is_no_refusal():
    """Without keys, a peer that leaves in the handshake is a broken connection, which libzmq mends."""
    context = zmq.Context[zmq.Socket[bytes]]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        dealer = Dealer(Route(context, address))
        clock = Clock(dealer)
        for _ in range(2):
            server.accept()[0].close()
            clock.until(lambda: clock.now > 1000.0)
        assert (dealer.refusal, clock.told) == (None, [])
    dealer.close(linger=0)
    context.destroy(linger=0)


def test_beyond_this_machine_a_route_needs_a_key(ends: Ends):
    """No key, no connection; with one, or where none are wanted, there is."""
    away = "tcp://192.0.2.1:7071"
    for keys in (None, ends.drafter):
        with pytest.raises(ConfigError, match="specmesh pair"):
            Route(ends.context, away, keys=keys).open()
    close_dealer(Route(ends.context, away, insecure=True).open())
    ends.drafter.allow(Listing.VERIFIERS, ends.public, away)
    close_dealer(Route(ends.context, away, keys=ends.drafter).open())


def test_a_connection_that_ends():
    """It is noted, until there is another one."""
    context = zmq.Context[zmq.Socket[bytes]]()
    address = free_address()
    router = bind_router(context, address, insecure=False)
    dealer = Dealer(Route(context, address))
    clock = Clock(dealer)
    clock.until(lambda: connected(dealer))
    assert not dealer.cut
    router.close(linger=0)
    clock.until(lambda: dealer.cut)
    dealer.reconnect()
    assert not dealer.cut
    dealer.close(linger=0)
    context.destroy(linger=0)


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
        """So many messages, the drafts not counted."""
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


def test_a_fresh_connection_begins_with_nothing(slow: Slow):
    """What waited was for sessions of the old one."""
    assert slow.dealer.send(m.Close(7, 0, 0.0))
    slow.dealer.reconnect()
    assert not slow.dealer.behind
    Clock(slow.dealer).until(lambda: connected(slow.dealer))
    assert slow.dealer.send(opening(1))
    assert [type(one) for one in slow.heard(1)] == [m.Open]
