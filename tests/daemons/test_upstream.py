"""One verifier, as a drafter knows it."""

import pytest

from specmesh.daemons import peers
from specmesh.wire import messages as m
from tests.daemons.loops import Bench, until, welcome


def test_a_verifier_that_dies_is_missed_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Without a BYE, and however long silence is borne: its connection has ended."""
    monkeypatch.setattr(peers, "SILENCE", 1e9)
    router, drafter = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.say(welcome())
    until(lambda: drafter.loop.verifier is not None, "it is welcome")
    router.socket.close(linger=0)
    until(lambda: drafter.loop.verifier is None, "the drafter knows")
