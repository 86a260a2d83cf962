"""A run of PINGs, its clock in the test's hands."""

import asyncio

import pytest
from asgi_calls import FakeDaemon

from specmesh.api import ping
from specmesh.api.ping import parse_ping
from specmesh.api.requests import ClientOrder, Peer, PingPeers
from specmesh.errors import DaemonUnreachable, RequestError

NEAR, FAR = Peer("near:1", "tcp://192.0.2.1"), Peer("far:2", "tcp://192.0.2.2")


def test_body():
    assert parse_ping({}) == (10, 0.2)
    assert parse_ping({"count": 3, "interval_s": 1}) == (3, 1.0)


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
    with pytest.raises(RequestError, match=words):
        parse_ping(body)


@pytest.mark.parametrize("told", [True, False])
def test_lost_when_the_time_is_up(told: bool, monkeypatch: pytest.MonkeyPatch):
    """A PING without an answer is lost once its time is up; where the loop sends none, nobody can be reached."""
    monkeypatch.setattr(ping, "PING_TIMEOUT_S", 0.05)

    class Silent(FakeDaemon):
        def submit(self, order: ClientOrder) -> None:
            assert isinstance(order, PingPeers)
            if told:
                order.sent((NEAR, FAR))
                order.answer(FAR)(0.1)

    async def results() -> list[tuple[object, object]]:
        return [(one["peer"], one["time_ms"]) async for one in ping.pinged(Silent(), 1, 0.5)]

    if told:
        assert asyncio.run(results()) == [(FAR.name, 100.0), (NEAR.name, None)]
    else:
        with pytest.raises(DaemonUnreachable, match="does not get on"):
            asyncio.run(results())
