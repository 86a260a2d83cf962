"""Round trips to a daemon's peers."""

import asyncio

import pytest
from asgi_calls import FakeDaemon, call

from specmesh.api import app
from specmesh.api.requests import ClientOrder, Peer, PingPeers

NEAR, FAR = Peer("near:1", "tcp://192.0.2.1"), Peer("far:2", "tcp://192.0.2.2")


@pytest.mark.parametrize("peers", [(NEAR, FAR), (FAR,), ()])
def test_each_peer_has_a_time(peers: tuple[Peer, ...], monkeypatch: pytest.MonkeyPatch):
    """A PING without an answer is lost once its time is up; where there are no peers, that is said."""
    monkeypatch.setattr(app, "PING_TIMEOUT_S", 0.05)

    class Pinged(FakeDaemon):
        def submit(self, order: ClientOrder) -> None:
            assert isinstance(order, PingPeers)
            order.sent(peers)
            if FAR in peers:
                order.answered(FAR, 0.1)

    answer = asyncio.run(call(Pinged(), "POST", "/ping"))
    if peers:
        told = [{"peer": one.name, "address": one.address, "time_ms": 100.0 if one is FAR else None} for one in peers]
        assert answer.json() == {"peers": told}
    else:
        assert (answer.status, "no drafter is attached" in answer.json()["error"]["message"]) == (502, True)
