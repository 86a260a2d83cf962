"""Who sends too much, or says nothing: cut off, and kept out for a while."""

import time

import pytest
import zmq
from gate import Gate
from harness.loops import PATIENCE

from specmesh.core.peer_limits import RATES, Cost
from specmesh.daemons.link import auth
from specmesh.daemons.link.curve import Handshake
from specmesh.wire import messages as m


def flooded(gate: Gate) -> tuple["zmq.Socket[bytes]", bytes]:
    """The friend, attached, and cut off because most of what it sent was no frame; its socket and identity."""
    client, _ = gate.client(gate.friend)
    [(identity, _, _)] = gate.say(client, m.Ping(1, 1))
    gate.router.doors.attach(identity)
    for _ in range(int(RATES[Cost.BAD].burst) + 1):
        client.send(b"junk")
    deadline = time.monotonic() + PATIENCE
    while not (gone := gate.router.doors.flooding()):
        assert time.monotonic() < deadline
        list(gate.router.receive(0.0))
    assert gone == [identity]
    gate.router.doors.detach(identity)
    return client, identity


def test_who_floods_stays_out_for_a_while(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """Its key is refused although it is on the list, and is let in again later; others are not concerned."""
    bars: list[float] = []
    monkeypatch.setattr(gate.guard, "admits", lambda key: key in gate.guard.allowed and key not in gate.guard._barred)
    flooded(gate)
    bars += gate.guard._barred.values()
    assert gate.ends(gate.friend) is Handshake.KEY
    assert gate.ends(gate.identity) is Handshake.DONE
    assert bars[0] == pytest.approx(time.monotonic() + auth.BAR, abs=PATIENCE)
    gate.guard._barred.clear()
    assert gate.ends(gate.friend) is Handshake.DONE


def test_connections_of_a_key_share_what_it_may_send(gate: Gate):
    """A second connection brings no second allowance."""
    for _ in range(2):
        client, _ = gate.client(gate.friend)
        [(identity, _, _)] = gate.say(client, m.Pong(1, 1))
        gate.router.doors.attach(identity)
    assert gate.router.doors.same_key(identity) == 2
    for turn in range(int(RATES[Cost.OPENS].burst)):
        assert gate.router.doors.may_open(list(gate.router.doors._ends)[turn % 2], 0.0)
    assert not any(gate.router.doors.may_open(identity, 0.0) for identity in gate.router.doors._ends)
