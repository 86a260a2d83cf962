"""A run of PINGs, its clock in the test's hands."""

import pytest

from specmesh.api.ping import PING_TIMEOUT_S, PingBody, PingResult, PingRun, parse_ping
from specmesh.api.requests import Peer, Pinged, Ponged
from specmesh.errors import RequestError

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


def test_lost_when_the_time_is_up():
    """A PING without an answer is lost after PATIENCE, once; an answer after that counts no more."""
    run = PingRun(PingBody(1, 0.5), 0.0)
    run.begin(0.0)
    run.on_event(Pinged(1, (NEAR, FAR)))
    run.on_event(Ponged(1, FAR, 0.1))
    assert run.wait(1.0) == PING_TIMEOUT_S - 1.0
    assert run.expire(PING_TIMEOUT_S - 0.01) == []
    assert run.expire(PING_TIMEOUT_S) == [PingResult(1, NEAR, None)]
    assert (run.expire(PING_TIMEOUT_S), run.on_event(Ponged(1, NEAR, 3.1)), run.wait(PING_TIMEOUT_S)) == ([], [], None)
