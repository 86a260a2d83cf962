"""A run of PINGs, its clock in the test's hands."""

import pytest

from specmesh.api.ping import PATIENCE, PingBody, PingRun, Result, parse_ping
from specmesh.api.requests import Peer, Pinged, Ponged
from specmesh.errors import DaemonUnreachable, RequestError

NEAR, FAR = Peer("near:1", "tcp://192.0.2.1"), Peer("far:2", "tcp://192.0.2.2")


def test_body():
    """Defaults, and values of one's own."""
    assert parse_ping({}) == PingBody(10, 0.2)
    assert parse_ping({"count": 3, "interval_s": 1}) == PingBody(3, 1.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "JSON object"),
        ({"count": 0}, "count"),
        ({"count": 1.5}, "count"),
        ({"count": True}, "count"),
        ({"interval_s": 0.001}, "interval_s"),
        ({"interval_s": "1"}, "interval_s"),
        ({"number": 4}, "'number'"),
    ],
)
def test_bad_bodies(body: object, words: str):
    """What cannot be is refused by name."""
    with pytest.raises(RequestError, match=words):
        parse_ping(body)


def test_pace():
    """The first PING is due at once, each other an interval after the one before; then there are no more."""
    run = PingRun(PingBody(2, 0.5), 10.0)
    assert (run.begin(10.0), run.begin(10.1)) == (1, None)
    run.on_event(Pinged(1, (NEAR,)))
    run.on_event(Ponged(1, NEAR, 0.01))
    assert run.wait(10.1) == pytest.approx(0.4)
    assert (run.begin(10.5), run.begin(20.0)) == (2, None)


def test_answers_settle_a_run():
    """It is over when each PING to each peer is answered, in whatever order."""
    run = PingRun(PingBody(2, 0.5), 0.0)
    assert not run.anybody
    run.begin(0.0)
    assert run.on_event(Pinged(1, (NEAR, FAR))) == []
    assert run.anybody
    run.begin(0.5)
    run.on_event(Pinged(2, (NEAR, FAR)))
    for number, peer, seconds in ((2, NEAR, 0.001), (1, FAR, 0.6), (1, NEAR, 0.7)):
        assert run.on_event(Ponged(number, peer, seconds)) == [Result(number, peer, seconds)]
        assert run.wait(1.0) is not None
    run.on_event(Ponged(2, FAR, 0.9))
    assert run.wait(1.0) is None


def test_lost_when_the_time_is_up():
    """A PING without an answer is lost after PATIENCE, once; an answer after that counts no more."""
    run = PingRun(PingBody(1, 0.5), 0.0)
    run.begin(0.0)
    run.on_event(Pinged(1, (NEAR, FAR)))
    run.on_event(Ponged(1, FAR, 0.1))
    assert run.wait(1.0) == PATIENCE - 1.0
    assert run.expire(PATIENCE - 0.01) == []
    assert run.expire(PATIENCE) == [Result(1, NEAR, None)]
    assert (run.expire(PATIENCE), run.on_event(Ponged(1, NEAR, 3.1)), run.wait(PATIENCE)) == ([], [], None)


def test_a_peer_that_went_away_loses_what_it_would_have_got():
    """It stays in the count; one that joins later is counted from then on."""
    run = PingRun(PingBody(3, 0.5), 0.0)
    run.begin(0.0)
    run.on_event(Pinged(1, (NEAR,)))
    run.begin(0.5)
    assert run.on_event(Pinged(2, (FAR,))) == [Result(2, NEAR, None)]
    run.begin(1.0)
    assert run.on_event(Pinged(3, ())) == [Result(3, NEAR, None), Result(3, FAR, None)]


def test_a_loop_that_says_nothing():
    """Nobody was ever pinged: an error; later on the known peers have lost the PING."""
    run = PingRun(PingBody(2, 0.5), 0.0)
    run.begin(0.0)
    with pytest.raises(DaemonUnreachable, match="does not get on"):
        run.expire(PATIENCE)
    run = PingRun(PingBody(2, 0.5), 0.0)
    run.begin(0.0)
    run.on_event(Pinged(1, (NEAR,)))
    run.on_event(Ponged(1, NEAR, 0.1))
    run.begin(0.5)
    assert run.expire(0.5 + PATIENCE) == [Result(2, NEAR, None)]


def test_result_as_json():
    """Milliseconds, or null."""
    assert Result(3, NEAR, 0.00042).as_json() == {
        "number": 3,
        "peer": "near:1",
        "address": "tcp://192.0.2.1",
        "time_ms": 0.42,
    }
    assert Result(3, NEAR, None).as_json()["time_ms"] is None
