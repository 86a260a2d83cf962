"""Many at once: requests before the sessions, peers that flood, drafters that stand still."""

import pytest
from harness.loops import PROMPT, Bench, Flaky, ask_for, request, until

from specmesh.core import link
from specmesh.core.peer_limits import RATES, Cost, PeerLimits, Rate
from specmesh.core.requests import Failed, Started
from specmesh.engines.sim import SimSettings
from specmesh.wire import messages as m


def test_requests_wait_in_order(bench: Bench):
    """Of a thousand at once the sessions and the queue take so many, which are served in the order they came; the
    others are told to try again, exit code 75, and nobody's text is another."""
    verifier = bench.verifier(Flaky(SimSettings(n_seq=1, step_ms=10)), max_queue=5)
    clients = [verifier.ask(request(20)) for _ in range(1000)]
    firsts = [client.next() for client in clients]
    began = {number: first.session for number, first in enumerate(firsts) if isinstance(first, Started)}
    assert list(began)[:6] == list(range(6))
    assert list(began.values()) == sorted(began.values())
    for number in began:
        clients[number].whole(20)
    refused = [first.error for first in firsts if isinstance(first, Failed)]
    assert len(refused) + len(began) == 1000
    assert len(refused) > 900
    assert {error.exit_code for error in refused} == {75}
    assert "--max-queue" in str(refused[0])


def test_an_own_request_is_not_kept_out_by_a_drafter(bench: Bench):
    """A peer that asks for everything leaves a quarter of the sessions, and half of the queue."""
    verifier = bench.verifier(Flaky(SimSettings(n_seq=4, step_ms=1)), max_queue=16)
    peer = bench.dealer()
    peer.say(*(ask_for(ref, ids=PROMPT, max_tokens=8000) for ref in range(1, 41)))
    refs = {peer.expect(m.Error).ref for _ in range(40 - 3 - 8)}
    assert refs == set(range(12, 41))
    client = verifier.ask(request(40))
    client.whole(40)


def test_requests_that_come_too_fast(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    rates = {**RATES, Cost.OPENS: Rate(0.1, 50)}  # so few a second that a busy machine reads them too fast, too
    monkeypatch.setattr(PeerLimits.__init__, "__defaults__", (rates,))
    bench.verifier(Flaky(SimSettings(n_seq=1)))
    peer = bench.dealer()
    count = 150
    for ref in range(1, count + 1):
        peer.say(ask_for(ref, ids=(999,)))
    told = [str(peer.expect(m.Error).message) for _ in range(count)]
    assert sum("too fast" in message for message in told) >= 90


def test_who_reads_nothing_gets_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A drafter that asks for much and answers no PING, by which it would show that it has read it, is let go."""
    verifier, peer = bench.verifier(), bench.dealer()
    monkeypatch.setattr(link, "MAX_UNREAD", 10_000)
    for _ in range(10):
        peer.say(m.Vocab(0))
        peer.expect(m.Vocab)
        peer.expect(m.Ping)
    assert verifier.stats()["peers"], "what it has answered is read"
    peer.say(*[m.Vocab(0)] * 10)
    until(lambda: not verifier.stats()["peers"], "it is let go")
