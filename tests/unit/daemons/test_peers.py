"""Liveness and round trips of the other end."""

from itertools import pairwise

import pytest

from specmesh.daemons.link.peers import FIRST_INTERVAL, FIRST_PINGS, PING_INTERVAL, SILENCE, DrafterPeer, Link
from specmesh.wire.messages import Hello, Pong


@pytest.mark.fault("E3.33")
def test_silence_is_counted_from_the_last_frame():
    """A peer is silent only after more than SILENCE seconds without a frame."""
    link = Link(10.0)
    assert not link.silent(10.0 + SILENCE)
    assert link.silent(10.01 + SILENCE)
    link.last_heard = 12.0
    assert not link.silent(11.0 + SILENCE)


def test_round_trip_from_ping_and_pong():
    """The PONG of the newest PING gives a round trip, and tells progress and busy share."""
    link = Link(0.0)
    ping = link.ping(1.0, progress=5, busy=0.5)
    assert (ping.progress, ping.busy, link.next_ping) == (5, 0.5, 1.0 + PING_INTERVAL)
    assert link.pong(Pong(ping.number, 77, 0.25), 1.25) == 0.25
    assert (link.progress, link.busy) == (77, 0.25)
    assert link.round_trip_ms() == {"p50": 250.0, "p99": 250.0}


def test_the_first_pings_follow_their_answers():
    """One round trip may be a bad one: the first few are measured soon after each other, then one a second."""
    link, now, sent = Link(0.0), 0.0, []
    for _ in range(FIRST_PINGS + 2):
        sent.append(now)
        link.pong(Pong(link.ping(now, 0, 0.0).number, 0), now + 0.25)
        now = link.next_ping
    pauses = [after - before for before, after in pairwise(sent)]
    assert pauses == pytest.approx([0.25 + FIRST_INTERVAL] * (FIRST_PINGS - 1) + [PING_INTERVAL] * 2)


def test_other_pongs_teach_no_round_trip():
    """A PONG twice, a late one and an invented one give none."""
    link = Link(0.0)
    old, new = link.ping(1.0, 0, 0.0), link.ping(2.0, 0, 0.0)
    assert old.number != new.number
    assert link.pong(Pong(old.number, 0), 2.1) is None
    assert link.pong(Pong(2**32 - 1, 0), 2.1) is None
    assert link.pong(Pong(new.number, 0), 2.5) == 0.5
    assert link.pong(Pong(new.number, 0), 2.6) is None
    assert link.round_trip_ms() == {"p50": 500.0, "p99": 500.0}


def test_probes_stand_beside_the_pings_of_liveness():
    """Several PINGs under way, answered in any order: each tells its own time, once, and no statistics move."""
    link, told = Link(0.0), list[tuple[str, float]]()
    first = link.probe(1.0, 7, 0.5, lambda seconds: told.append(("first", seconds)))
    own = link.ping(1.5, 7, 0.5)
    second = link.probe(2.0, 2**32 + 3, 0.5, lambda seconds: told.append(("second", seconds)))
    assert (first.progress, first.busy, second.progress) == (7, 0.5, 3)
    assert len({first.number, own.number, second.number}) == 3
    assert link.next_ping == 1.5 + PING_INTERVAL
    assert link.pong(Pong(second.number, 9, 0.25), 2.25) is None
    assert (link.progress, link.busy) == (9, 0.25)
    assert link.pong(Pong(first.number, 0), 3.0) is None
    assert link.pong(Pong(first.number, 0), 3.0) is None
    assert told == [("second", 0.25), ("first", 2.0)]
    assert link.round_trip_ms()["p50"] is None
    assert link.pong(Pong(own.number, 0), 2.0) == 0.5


def test_probes_that_are_never_answered_are_forgotten():
    """What is kept of them is bounded by how long a peer may be silent."""
    link, told = Link(0.0), list[float]()
    lost = link.probe(1.0, 0, 0.0, told.append)
    for turn in range(1000):
        link.probe(1.0 + turn, 0, 0.0, told.append)
    assert len(link._probes) <= SILENCE + 1
    link.pong(Pong(lost.number, 0), 2000.0)
    assert told == []


def test_description_of_a_drafter():
    """A drafter is described by what it said, and by nothing where nothing is known yet."""
    hello = Hello("mac:1", "llama", "small.gguf", "f" * 64, 2048, 4096)
    peer = DrafterPeer(b"id", hello, Link(0.0), address="tcp://192.0.2.7")
    assert peer.describe() == {
        "number": 0,
        "drafter": "mac:1",
        "address": "tcp://192.0.2.7",
        "key": None,
        "engine": "llama",
        "model": "small.gguf",
        "round_trip_ms": {"p50": None, "p99": None},
        "draft_interval_ms": None,
        "acceptance": None,
        "promised_tokens_per_second": None,
        "busy": 0.0,
        "stuck": False,
    }
    peer.arrivals.record_restart(0.004, 2)
    assert peer.describe()["draft_interval_ms"] == 2.0


def test_counters_wrap_on_the_wire():
    """A loop may turn more often than a u32 counts; the PING still fits its frame."""
    link = Link(0.0)
    assert link.ping(1.0, 2**32 + 5, 0.0).progress == 5


def test_a_loop_that_does_not_turn():
    """Answers are no sign of life where they tell of no progress for as long as silence may last."""
    link = Link(0.0)
    for at, progress, stuck in (
        (1.0, 0, False),
        (1.0 + SILENCE, 0, False),
        (1.1 + SILENCE, 0, True),
        (5.0, 1, False),
        (5.0 + SILENCE, 1, False),
        (6.0 + SILENCE, 1, True),
    ):
        link.told(progress, 0.0, at)
        assert link.stuck is stuck, at
