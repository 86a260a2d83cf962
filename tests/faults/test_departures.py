"""E3 with a scripted peer: it leaves at each step of the conversation, again and again, or stays and says nothing."""

import pytest
from peer import Peer, Wire
from processes import Daemon, Stream, body, sim_ids, until
from usage import Usage

from specmesh.wire import messages as m

PROMPT = "Here today, gone tomorrow"
N = 150
fault = pytest.mark.fault


def gone(wire: Wire) -> None:
    until(lambda: not wire.peers(), "it is noticed")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("connected", marks=fault("E3.29")),
        pytest.param("hello", marks=fault("E3.29")),
        pytest.param("welcome", marks=fault("E3.29")),
        pytest.param("prompt", marks=fault("E3.30")),
        pytest.param("draft", marks=fault("E3.31")),
    ],
)
def test_a_peer_that_leaves_without_a_word(wire: Wire, verifier: Daemon, step: str):
    gone(wire)
    peer = Peer(wire)
    if step == "connected":
        peer.connected()
    elif step == "hello":
        peer.hello()
    else:
        peer.join()
    with Stream(verifier, body(PROMPT, N, draft_n=4)) as stream:
        if step in {"prompt", "draft"}:
            session = peer.opened()
            if step == "draft":
                peer.say(peer.draft(session, sim_ids(PROMPT, 2)), peer.draft(session, sim_ids(PROMPT, 2)))
        peer.die()
        stream.read()
    assert stream.ids == sim_ids(PROMPT, N)
    gone(wire)
    with Peer(wire) as following:
        following.join()


@pytest.mark.slow
@fault("E3.33")
def test_a_peer_that_hangs(wire: Wire, verifier: Daemon, chosen: Peer):
    with Stream(verifier, body(PROMPT, 60_000, draft_n=4)) as stream:
        chosen.opened()
        stream.read(while_=lambda: bool(wire.peers()))
    assert stream.ids == sim_ids(PROMPT, len(stream.ids))
    until(lambda: [gone["reason"] for gone in verifier.events("drafter_gone")][-1:] == ["silent"], "it is noted")


@fault("E3.36")
def test_two_hundred_peers_that_die(wire: Wire, verifier: Daemon):
    gone(wire)

    def deaths(count: int) -> None:
        for _ in range(count):
            peer = Peer(wire)
            peer.join()
            session = peer.opened()
            peer.say(peer.draft(session, (65, 66)))
            peer.expect(m.Truth)
            peer.die()

    with Stream(verifier, body(PROMPT, 60_000, draft_n=4)) as stream:
        deaths(20)
        usage = Usage(verifier.pid)
        deaths(180)
        usage.unchanged(lambda: wire.peers() <= 1)
        stream.read(3)
    assert stream.ids == sim_ids(PROMPT, len(stream.ids))
