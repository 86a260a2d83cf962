"""One verifier, as a drafter knows it."""

import pytest
from harness.loops import Bench, bear_silence, until, welcome

from specmesh.daemons.link import dealer
from specmesh.wire import messages as m


def test_a_verifier_that_dies_is_missed_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Without a BYE, and however long silence is borne: its connection has ended."""
    bear_silence(monkeypatch, 1e9)
    router, drafter = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.say(welcome())
    until(lambda: drafter.connected, "it is welcome")
    router.socket.close(linger=0)
    until(lambda: not drafter.connected, "the drafter knows")


def test_a_verifier_that_comes_back_between_two_looks_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """That its connection had ended is what the last look found, and true no more."""
    monkeypatch.setattr(dealer, "CHECK_INTERVAL", 0.0)
    router, drafter = bench.router(), bench.drafter()
    [upstream] = drafter._loop._upstreams
    router.expect(m.Hello)
    router.socket.close(linger=0)
    until(lambda: upstream.dealer.cut, "the end was seen")
    monkeypatch.setattr(dealer, "CHECK_INTERVAL", 1e9)
    until(lambda: upstream.dealer.next_look > 1e9, "it was the last look for long")
    again = bench.router()
    again.expect(m.Hello)
    again.say(welcome())
    peer = again.peer
    again.expect(m.Ping)
    assert again.peer == peer
