"""Connections that nobody introduces: how long they may wait, and whose they are."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from specmesh.daemons.link.curve import Connection
from specmesh.daemons.link.pending_handshakes import PATIENCE, Lobby


class Line:
    """A TCP connection of this process, at its accepting end."""

    def __init__(self, server: socket.socket) -> None:
        self.far = socket.create_connection(server.getsockname())
        self.near, _ = server.accept()

    @property
    def cut(self) -> bool:
        """Whether the near end has ended it."""
        self.far.setblocking(False)
        try:
            return self.far.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = [Line(server) for _ in range(3)]
        yield made
        for line in made:
            line.far.close()
            line.near.close()


def test_the_time_without_a_drafter_counts(lines: list[Line]):
    """From when it came, or from when it was last a drafter's; nothing counts while that cannot be told."""
    lobby, (one, two, three) = Lobby(), lines
    for line in (one, two):
        lobby.came(line.near.fileno(), 0.0)
    drafter = Connection.at(two.near.fileno())
    assert drafter is not None
    assert lobby.clear_out(None, 5.0) == 0
    lobby.came(three.near.fileno(), 5.0)
    assert lobby.clear_out({drafter}, 5.0 + PATIENCE) == 0
    assert lobby.clear_out({drafter}, 5.1 + PATIENCE) == 2
    assert [line.cut for line in lines] == [True, False, True]
    assert lobby.clear_out(set(), 5.0 + 2 * PATIENCE) == 0
    assert lobby.clear_out(set(), 5.2 + 2 * PATIENCE) == 1
    assert two.cut
    assert len(lobby) == 0


def test_those_that_left_are_forgotten(lines: list[Line]):
    """And their descriptor's next connection is not cut in their stead."""
    lobby, line = Lobby(), lines[0]
    lobby.came(line.near.fileno(), 0.0)
    lobby.left(line.near.fileno())
    lobby.left(12345)
    assert len(lobby) == 0
    lobby.came(line.near.fileno(), PATIENCE)
    assert lobby.clear_out(set(), PATIENCE + 1.0) == 0


def test_what_is_no_connection(lines: list[Line]):
    """A descriptor that is closed, or somebody else's by now."""
    lobby = Lobby()
    one, other = socket.socketpair()
    with one, other, Path(__file__).open("rb") as file:
        for descriptor in (one.fileno(), file.fileno(), 10**6):
            assert Connection.at(descriptor) is None
            lobby.came(descriptor, 0.0)
    assert len(lobby) == 0


class Message:
    """A message of libzmq's, with what it says of its connection."""

    def __init__(self, descriptor: int, address: str) -> None:
        self._told = {zmq.SRCFD: descriptor, "Peer-Address": address}

    def get(self, name: object) -> object:
        return self._told[name]  # type: ignore[index]


def test_a_descriptor_that_was_used_again(lines: list[Line]):
    """A message's connection is the one that leads where the message came from, and no other."""
    descriptor = lines[0].near.fileno()
    found = Connection.of(Message(descriptor, "127.0.0.1"))  # type: ignore[arg-type]
    assert found == Connection(descriptor, lines[0].near.getpeername())
    assert Connection.of(Message(descriptor, "192.0.2.7")) is None  # type: ignore[arg-type]
    assert Connection.of(Message(10**6, "127.0.0.1")) is None  # type: ignore[arg-type]
