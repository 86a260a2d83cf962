"""Who sends too much, or says nothing: cut off, and kept out for a while."""

import time

import pytest
import zmq
from gate import Gate
from harness.loops import PATIENCE, until

from specmesh.core.peer_limits import RATES, Cost
from specmesh.daemons.link import auth
from specmesh.daemons.link import pending_handshakes as lobby
from specmesh.daemons.link.curve import Handshake, next_handshake
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


def test_a_bar_ends(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """By the clock, and only for keys that are on the list."""
    key = gate.friend.public.hex()
    gate.guard.bar(key)
    assert not gate.guard.admits(key)
    monkeypatch.setattr(auth, "BAR", 0.0)
    gate.guard.bar(key)
    assert gate.guard.admits(key)
    assert not gate.guard.admits("ab" * 32)


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


def test_who_says_nothing_is_cut_off(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """A connection without a HELLO ends after a while, a drafter's does not, nor does any while nobody listens yet."""
    monkeypatch.setattr(lobby, "PATIENCE", 0.5)
    gate.guard.introduced = None  # as while the model is being loaded
    silent, monitor = gate.client(gate.friend)
    drafter, its = gate.client(gate.friend)
    assert [next_handshake(one, PATIENCE) for one in (monitor, its)] == [Handshake.DONE] * 2
    until(lambda: len(gate.guard._lobby) == 2, "both have come")
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 1.0, "longer than the patience")
    [(identity, _, _)] = gate.say(drafter, m.Ping(1, 1))
    gate.router.doors.attach(identity)
    assert next_handshake(monitor, PATIENCE) is Handshake.DONE  # it was cut, and connects anew
    assert next_handshake(its) is None
    gate.leave(silent)
    until(lambda: len(gate.guard._lobby) == 1, "those that left are forgotten")


def test_a_revoked_stranger_is_cut_off(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """One that never said HELLO does not stay connected with a key that lets nobody in any more."""
    monkeypatch.setattr(lobby, "PATIENCE", 0.5)
    _, monitor = gate.client(gate.friend)
    assert next_handshake(monitor, PATIENCE) is Handshake.DONE
    gate.keys.revoke("friend")
    assert next_handshake(monitor, PATIENCE) is Handshake.KEY
