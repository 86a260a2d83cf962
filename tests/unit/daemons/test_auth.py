"""The guard of a verifier's socket: who gets in, at once; and that nobody does where it is dead or was forgotten."""

from dataclasses import replace

import pytest
from gate import Gate
from harness.loops import until

from specmesh.daemons.link.curve import Handshake
from specmesh.security.keys import new_identity
from specmesh.wire import messages as m


@pytest.mark.fault("E6.59")
@pytest.mark.fault("E6.60")
@pytest.mark.fault("E6.61")
def test_who_gets_in(gate: Gate):
    """A listed key and our own do; an unknown one, none, and one that expects another verifier do not, and are
    counted."""
    assert gate.ends(gate.friend) is Handshake.DONE
    assert gate.ends(gate.identity) is Handshake.DONE
    assert gate.ends(new_identity()) is Handshake.KEY
    assert gate.ends(None) is Handshake.MECHANISM
    assert gate.ends(gate.friend, new_identity().public) is Handshake.BROKEN
    until(lambda: {"key", "mechanism", "cryptography"} <= set(gate.guard.failures), "failures are counted")


def test_a_replaced_key_lets_nobody_in(gate: Gate):
    """Whoever has the old secret of this machine is no drafter here, before the verifier is started again too."""
    assert gate.ends(gate.identity) is Handshake.DONE
    gate.keys.new(replace=True)
    until(lambda: gate.identity.public.hex() not in gate.guard.allowed, "the guard has looked")
    assert gate.ends(gate.identity) is Handshake.KEY
    assert gate.ends(gate.friend) is Handshake.DONE


@pytest.mark.fault("E2.25")
def test_an_identity_belongs_to_its_key(gate: Gate):
    """Identities are the peers' own choice: another allowed key that took one over is not heard as that drafter."""
    client, _ = gate.client(gate.friend, routing_id=b"me")
    [(identity, _, _)] = gate.say(client, m.Ping(1, 1))
    assert identity == b"me"
    gate.router.doors.attach(identity)
    gate.router.doors._ends[identity] = replace(gate.router.doors._ends[identity], key=gate.identity.public.hex())
    assert gate.say(client, m.Ping(1, 1)) == []
    assert gate.router.traffic.rejected["key"] == 1
    gate.router.doors.detach(identity)
    assert len(gate.say(client, m.Ping(1, 1))) == 1
