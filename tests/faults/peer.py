"""Drafters under the test's control, with a key or without, and their verifier."""

import contextlib
import struct
import time

import zmq
from harness import PATIENCE
from harness.loops import ScriptedDrafter
from processes import until

from specmesh.core.prefix import Prefix
from specmesh.security.curve import protect_client
from specmesh.security.keys import KeyFolder, Listing, new_identity
from specmesh.wire import messages as m
from specmesh.wire.codec import encode

KEYS = 300
"""Peers with a key of their own that a verifier lets in.

What one peer has used up must not be the next one's.
"""


class Wire:
    """A verifier with a step of 2 ms at the mesh's address, with keys or without."""

    def __init__(self, mesh, *, keyed):
        self.port = mesh.port
        self.server = None
        options = ()
        self._allowed = [new_identity() for _ in range(KEYS)] if keyed else []
        if keyed:
            options = mesh.new_keys()
            folder = KeyFolder(options[1])
            self.server = folder.identity().public
            lines = [f"{one.public.hex()} mallory-{n}\n" for n, one in enumerate(self._allowed)]
            listing = folder.path / Listing.DRAFTERS
            listing.write_text("".join(lines))
            listing.chmod(0o600)
        self.verifier = mesh.verifier("step_ms=2,n_ctx=65536", *options)

    def identity(self):
        """Return another peer's allowed keys, or None if there are no keys."""
        return self._allowed.pop() if self._allowed else None

    def counters(self):
        return self.verifier.stats()["wire"]

    def peers(self):
        return len(self.verifier.stats()["peers"])


class Peer(ScriptedDrafter):
    """A drafter with a connection of its own, and a key if the verifier has one.

    identity: the keys that it shows; a new pair by default. address: the name that it gives its
    connection.
    """

    def __init__(self, wire, identity=None, address=b""):
        self._context = zmq.Context()
        super().__init__(self._context.socket(zmq.DEALER))
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)  # what is said is for a connection that is there
        self.socket.setsockopt(zmq.SNDTIMEO, int(PATIENCE * 1e3))
        if address:
            self.socket.setsockopt(zmq.ROUTING_ID, address)
        if wire.server is not None:
            identity = identity or wire.identity()
            assert identity is not None, "all keys are used up"
            protect_client(self.socket, identity, wire.server)
        self.socket.connect(f"tcp://127.0.0.1:{wire.port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Leave as a good peer does, so that the next one need not wait until this one's silence is
        noticed.
        """
        if not self.socket.closed:
            self.socket.setsockopt(zmq.LINGER, 500)
            with contextlib.suppress(zmq.Again):
                self.socket.send(encode(m.Bye()), zmq.NOBLOCK)
            self.socket.close()
            self._context.term()

    def die(self):
        self._context.destroy(linger=0)

    def join(self):
        """Introduce itself as a good drafter does, until it is welcome."""

        def welcomed():
            self.hello()
            while (heard := self.on_event(0.25)) is not None:
                if isinstance(heard, m.Welcome):
                    return heard
            return None

        return until(welcomed, "it is welcome")

    def answered(self):
        """Make sure that the verifier has read everything so far, and that the link is up."""
        number = time.monotonic_ns() & 0xFFFFFFFF
        self.say(m.Ping(number))
        while self.expect(m.Pong).number != number:
            pass

    def opened(self):
        """The next session that it is given, and all of its prompt."""
        session = self.expect(m.Opened).session
        self.truth.clear()
        self.expect(m.Sync)
        return session

    def draft(self, session, ids):
        """Return a DRAFT that continues the truth."""
        return m.Draft(session, len(self.truth), Prefix(self.truth).crc, tuple(ids))


def greeting(mechanism):
    """How a ZMTP 3.1 connection begins: signature, version, mechanism, the rest empty."""
    return b"\xff" + struct.pack(">Q", 1) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
