"""The fault suite.

A hostile peer, a proxy with a network's faults, processes that die, resources that end.

Each test names the cases of docs/faults.md that it shows by the marker `fault`.
"""

import pytest
from meshes import beside, logs, mesh, proxy, role, shared
from peer import Peer, Wire

__all__ = ["beside", "logs", "mesh", "proxy", "role", "shared"]


@pytest.fixture(scope="module", params=["open", "keys"])
def wire(request, shared):
    """A verifier with a step of 2 ms, without keys and with them, for the peers of a module."""
    made = Wire(shared, keyed=request.param == "keys")
    yield made
    made.verifier.kill()


@pytest.fixture
def verifier(wire):
    """This verifier, which must have outlived the test without a traceback."""
    yield wire.verifier
    assert wire.verifier.process.poll() is None
    assert "Traceback" not in wire.verifier.text()


@pytest.fixture
def peer(wire, verifier):
    with Peer(wire) as made:
        yield made


@pytest.fixture
def chosen(wire, verifier):
    """A peer that has introduced itself and gets the next session: there is no other."""
    verifier.alone()
    with Peer(wire) as made:
        made.join()
        yield made
