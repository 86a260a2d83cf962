"""A scripted peer.

E2: valid frames at the wrong time, of the wrong session, twice, late, early, or without end. E3: it
leaves at each step of the conversation, again and again, or stays and is silent.
"""

import contextlib
import itertools
from threading import Event, Thread

import pytest
import zmq
from harness.loops import ask_for
from harness.tables import cases, vectors
from peer import Peer
from processes import Stream, Usage, body, sim_ids, until, warm, writes

from specmesh.core.prefix import Prefix
from specmesh.wire import messages as m
from specmesh.wire.codec import encode

PROMPT = "Trust nobody"
N = 80
WHOLE = [*PROMPT.encode(), *sim_ids(PROMPT, 400)]
FRAMES = {vector["message"]: bytes.fromhex(vector["hex"]) for vector in vectors("control", "token")}
"""A valid frame of each kind of message."""

fault = pytest.mark.fault


def drafts_right(peer, session):
    """Draft the text's own ids, until its end."""
    while not isinstance(heard := peer.on_event(), m.Done):
        assert heard is not None, "the session does not end"
        if isinstance(heard, m.Truth | m.Sync):
            at = len(peer.truth)
            peer.say(peer.draft(session, WHOLE[at : at + 4]))


def reasons_gone(verifier):
    return [str(event["reason"]) for event in verifier.events("drafter_gone")]


@fault("E2.17")
def test_frames_before_hello_are_refused(wire, verifier, peer):
    sessions = len(verifier.events("session_opened"))
    before = wire.counters()["handshake_failures"]["hello"]
    early = FRAMES.keys() - {"Hello", "Bye"}
    for kind in early:
        peer.raw(FRAMES[kind])
        assert peer.expect(m.Error).code == "hello"
    assert wire.counters()["handshake_failures"]["hello"] == before + len(early)
    assert len(verifier.events("session_opened")) == sessions


FROM_VERIFIERS = ["Welcome", "Opened", "Truth", "Sync", "Done", "Logprobs", "Error", "Progress"]


def test_messages_of_the_other_direction_are_counted(verifier, chosen):
    before = verifier.rejected("direction")
    for kind in FROM_VERIFIERS:
        chosen.raw(FRAMES[kind])
    expected = before + len(FROM_VERIFIERS)
    until(lambda: verifier.rejected("direction") == expected, "they are counted")


@fault("E2.18")
def test_repeated_hello_is_welcomed_again(verifier, wire, chosen):
    with Stream(verifier, body(PROMPT, 300)) as stream:
        session = chosen.opened()
        chosen.join()
        assert chosen.expect(m.Truth).session == session
        stream.read(3)
        until(lambda: wire.peers() == 1, "there is one peer")


@fault("E2.18")
def test_another_hello_begins_anew(verifier, chosen):
    with Stream(verifier, body(PROMPT, 300, draft_n=4)) as stream:
        session = chosen.opened()
        chosen.say(ask_for(7, PROMPT, max_tokens=4000))
        own = chosen.expect(m.Opened).session
        chosen.hello("mallory again")
        chosen.expect(m.Welcome)
        assert chosen.opened() == session
        drafts_right(chosen, session)
        stream.read().checked()
    assert sum(stream.accepted) > 0
    ends = {event["session"]: event["reason"] for event in verifier.events("session_finished")}
    assert ends[own] == "cancelled"
    assert reasons_gone(verifier)[-1] == "hello again"


@fault("E2.19", "E2.24")
def test_frames_for_sessions_that_are_not_there_are_stray(wire, verifier, chosen):
    """A draft after the end, too."""
    with Stream(verifier, body(PROMPT, 4000, draft_n=4)) as stream:
        ended = chosen.opened()
        stream.read(2)
    chosen.expect(m.Done)
    before = wire.counters()["stray"]
    for session in (0, 1, 2**32 - 1):
        chosen.say(m.Draft(session, 5, 0, (1, 2, 3)), m.Nack(session, 5, 0))
    chosen.say(chosen.draft(ended, (65,)))
    until(lambda: wire.counters()["stray"] == before + 7, "they are counted")


@cases("ahead, crc", "[100, null] [50, 1] [0, 1]")
@fault("E2.21", "E2.23")
def test_misplaced_drafts_are_not_used(verifier, chosen, ahead, crc):
    stale = verifier.stats()["totals"]["stale_drafts"]

    def handled():
        """Run a text, for all of which this peer may be late on a busy machine."""
        asked_for_others = False
        with Stream(verifier, body(PROMPT, 300, draft_n=4)) as stream:
            session = chosen.opened()
            while not isinstance(heard := chosen.on_event(), m.Done):
                asked_for_others |= isinstance(heard, m.Nack)
                at = len(chosen.truth) + ahead
                claimed = crc or Prefix(WHOLE[:at]).crc
                chosen.say(m.Draft(session, at, claimed, tuple(WHOLE[at : at + 4])))
            stream.read().checked()
        assert sum(stream.accepted) == 0
        counted = verifier.stats()["totals"]["stale_drafts"] > stale
        return counted and asked_for_others == (ahead > 0)

    until(handled, "it is asked for others if it was ahead, and they are counted")


@pytest.mark.parametrize("other_key", [False, True])
@fault("E2.25")
def test_two_peers_by_one_address(wire, verifier, other_key):
    verifier.alone()
    key = wire.identity()
    second_key = wire.identity() if other_key else key
    with Peer(wire, key, b"one name") as first:
        first.join()
        with Peer(wire, second_key, b"one name") as second:
            second.hello("eve")
            first.answered()
            assert second.on_event(0.3) is None

            def drafts_stand():
                with Stream(verifier, body(PROMPT, N, draft_n=4)) as stream:
                    drafts_right(first, first.opened())
                    stream.read().checked()
                return sum(stream.accepted) > 0

            until(drafts_stand, "drafts stand")

    def heard_again():
        with Peer(wire, second_key, b"one name") as again:
            again.hello()
            return isinstance(again.on_event(1.0), m.Welcome)

    # a connection that came before the other had gone is never heard
    until(heard_again, "the name is free")


@fault("E2.28")
def test_flood_leaves_the_api_and_the_text_alone(wire, verifier, chosen):
    warm(verifier)
    usage = Usage(verifier.pid)
    before = len(reasons_gone(verifier))
    frames = [encode(m.Draft(7, 1, 2, (3, 4))), b"junk", encode(m.Nack(7, 1, 2))]
    chosen.socket.setsockopt(zmq.SNDTIMEO, 500)

    def cut_off():
        # once it is cut off, or while the verifier does not keep up
        with contextlib.suppress(zmq.Again):
            for frame in itertools.islice(itertools.cycle(frames), 10_000):
                chosen.raw(frame)
        writes(verifier, PROMPT, 20)
        return "flooding" in reasons_gone(verifier)[before:]

    until(cut_off, "it is cut off")
    usage.unchanged()


@pytest.mark.parametrize("step", ["connected", "hello", "welcome", "prompt", "draft"])
@fault("E3.29", "E3.30", "E3.31")
def test_a_peer_that_leaves_without_a_word(wire, verifier, step):
    verifier.alone()
    peer = Peer(wire)
    {"connected": peer.connected, "hello": peer.hello}.get(step, peer.join)()
    with Stream(verifier, body(PROMPT, 2 * N, draft_n=4)) as stream:
        if step in {"prompt", "draft"}:
            session = peer.opened()
            if step == "draft":
                peer.say(*[peer.draft(session, sim_ids(PROMPT, 2))] * 2)
        peer.die()
        stream.read().checked()
    verifier.alone()
    with Peer(wire) as following:
        following.join()


@pytest.mark.slow
@fault("E3.33")
def test_a_peer_that_hangs(wire, verifier, chosen):
    with Stream(verifier, body(PROMPT, 60_000, draft_n=4)) as stream:
        chosen.opened()
        stream.read(while_=lambda: bool(wire.peers()))
    stream.checked()
    until(lambda: reasons_gone(verifier)[-1:] == ["silent"], "it is noted")


@contextlib.contextmanager
def reading(stream):
    """Read a stream on meanwhile: a session whose client does not read waits."""
    over = Event()
    reader = Thread(target=stream.read, kwargs={"while_": lambda: not over.is_set()})
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


@fault("E3.36")
def test_two_hundred_peers_that_die(wire, verifier):
    verifier.alone()

    def deaths(count):
        for _ in range(count):
            peer = Peer(wire)
            peer.join()
            session = peer.opened()
            peer.say(peer.draft(session, (65, 66)))
            peer.expect(m.Truth)
            peer.die()

    with Stream(verifier, body(PROMPT, 60_000, draft_n=4)) as stream:
        with reading(stream):
            deaths(20)
            usage = Usage(verifier.pid)
            deaths(180)
        until(lambda: wire.peers() <= 1, "they are forgotten")
        usage.unchanged()
        stream.read(3)
    stream.checked()
