"""A guarded router, and clients of every kind."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from harness.loops import PATIENCE

from specmesh.daemons.link.auth import Guard
from specmesh.daemons.link.curve import Handshake, next_handshake, protect_client, unwatch, watch
from specmesh.daemons.link.router import Router
from specmesh.daemons.link.transport import bind_router
from specmesh.security.keys import Identity, KeyFolder, Listing, new_identity
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


class Gate:
    """A guarded router with an allow list, and clients of every kind."""

    def __init__(self, path: Path) -> None:
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.now = 0.0
        self.keys = KeyFolder(path)
        self.identity = self.keys.new()
        self.friend = new_identity()
        self.keys.allow(Listing.DRAFTERS, self.friend.public.hex(), "friend")
        self.woken = threading.Event()
        self.guard = Guard(self.context, self.keys, self.woken.set)
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        self._clients: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []

    def open(self) -> None:
        """Listen."""
        self.router = Router(bind_router(self.context, self.address, False, self.guard), self.guard)

    def client(
        self, identity: Identity | None, server: bytes | None = None, routing_id: bytes = b""
    ) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        """A DEALER with these keys, connecting, and its monitor."""
        client = self.context.socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.IMMEDIATE, 1)
        if routing_id:
            client.setsockopt(zmq.ROUTING_ID, routing_id)
        if identity is not None:
            protect_client(client, identity, server or self.identity.public)
        monitor = watch(client)
        client.connect(self.address)
        self._clients.append((client, monitor))
        return self._clients[-1]

    def ends(self, identity: Identity | None, server: bytes | None = None) -> Handshake | None:
        """How such a client's handshake ends."""
        return next_handshake(self.client(identity, server)[1], PATIENCE)

    def say(self, client: "zmq.Socket[bytes]", message: m.Message) -> list[tuple[bytes, m.Message | None, int]]:
        """Send, and what the router makes of it."""
        assert client.poll(int(PATIENCE * 1e3), zmq.POLLOUT)
        client.send(encode(message))
        assert self.router.socket.poll(int(PATIENCE * 1e3))
        return list(self.router.receive(self.now))

    def leave(self, client: "zmq.Socket[bytes]") -> None:
        """This client goes."""
        for known, monitor in [one for one in self._clients if one[0] is client]:
            unwatch(known, monitor)
            known.close()
            self._clients.remove((known, monitor))

    def close(self) -> None:
        for client, _ in list(self._clients):
            self.leave(client)
        self.guard.close()
        self.context.destroy(linger=0)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Gate]:
    """One that does not listen yet."""
    made = Gate(tmp_path / "keys")
    yield made
    made.close()


@pytest.fixture
def gate(closed: Gate) -> Gate:
    closed.open()
    return closed
