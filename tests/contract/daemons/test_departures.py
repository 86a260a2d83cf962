"""A loop that stops: what becomes of its texts, and of those of the other."""

import pytest
from harness.loops import PROMPT, Bench, Flaky, ask_for, bear_silence, request, until, welcome

from specmesh.engines.sim import SimSettings
from specmesh.wire import messages as m

COUNT = 2000
"""Ids of a text that is still told when another drafter has come."""


def test_a_bye_concerns_its_sender_only(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Its own session ends; one that it drafted for is another's now, and that one's own goes on."""
    bear_silence(monkeypatch, 1e9)
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)))
    leaving = bench.dealer()
    client = verifier.ask(request(COUNT, None))
    announced = leaving.expect(m.Opened)
    staying = bench.dealer()
    leaving.say(ask_for(1, ids=PROMPT, max_tokens=8000))
    staying.say(ask_for(2, ids=PROMPT, max_tokens=COUNT))
    leaving.expect(m.Opened)
    assert staying.expect(m.Opened).ref == 2
    leaving.say(m.Bye(), m.Bye())
    again = staying.expect(m.Opened)
    assert (again.session, again.ref) == (announced.session, 0)
    assert [peer["drafter"] for peer in verifier.stats()["peers"]] == ["scripted"]
    assert {staying.expect(m.Done).finish_reason for _ in range(2)} == {"length"}
    client.whole(COUNT)


def test_a_bye_of_a_stranger(bench: Bench):
    """Whoever was never attached, or has left, is not asked for a HELLO."""
    verifier, stranger = bench.verifier(), bench.dealer(known=False)
    for _ in range(2):
        stranger.say(m.Bye(), m.Bye())
        stranger.hello()
        assert isinstance(stranger.expect(m.Welcome, m.Error), m.Welcome)
    assert verifier.stats()["wire"]["handshake_failures"]["hello"] == 0


def test_bye_without_a_welcome(bench: Bench):
    """A drafter that nobody has welcomed goes on asking."""
    router = bench.router()
    drafter = bench.drafter()
    router.expect(m.Hello)
    router.say(m.Bye(), welcome())
    until(lambda: drafter.welcome, "it is welcome")
    assert drafter.stats()["reconnects"] == 0
