"""Where the wire may listen, what an address is, and what the sockets are set to."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from specmesh.daemons.link.router import Router
from specmesh.daemons.link.transport import MAX_PARTS, Inlet, Route, Traffic, bind_router, plain, wait_for_any
from specmesh.daemons.runtime.mailbox import Mailbox
from specmesh.errors import ConfigError
from specmesh.wire.codec import MAX_FRAME


class Sockets:
    """A context, and sockets of it that stay open until the test is over."""

    def __init__(self) -> None:
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self._kept: list[zmq.Socket[bytes]] = []

    def router(self) -> "tuple[zmq.Socket[bytes], str]":
        """A router on a free port, and its address."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        self._kept.append(bind_router(self.context, address, insecure=False))
        return self._kept[-1], address

    def dealer(self, address: str) -> "zmq.Socket[bytes]":
        self._kept.append(Route(self.context, address).open())
        return self._kept[-1]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.context.destroy(linger=0)


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])  # noqa: S104
@pytest.mark.parametrize("insecure", [False, True])
def test_never_on_every_network(sockets: Sockets, host: str, insecure: bool):
    """An address that stands for all networks is refused whatever the flags."""
    with pytest.raises(ConfigError, match="every network"):
        bind_router(sockets.context, f"tcp://{host}:7071", insecure)


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org", "[2001:db8::1]"])
def test_beyond_loopback_only_when_told(sockets: Sockets, host: str):
    """Another host than this one is refused unless --insecure-no-auth is given; then the socket decides."""
    with pytest.raises(ConfigError, match="--insecure-no-auth"):
        bind_router(sockets.context, f"tcp://{host}:7071", insecure=False)
    with pytest.raises(ConfigError, match="cannot bind"):
        bind_router(sockets.context, f"tcp://{host}:7071", insecure=True)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "7071",
        "127.0.0.1:7071",
        "tcp://",
        "tcp://:7071",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:70000",
        "tcp://127.0.0.1:port",
        "tcp://127.0.0.1:-1",
        "udp://127.0.0.1:7071",
        "ipc:///run/x",
        "inproc://x",
        "http://127.0.0.1:7071",
    ],
)
@pytest.mark.parametrize("open_", ["bind", "connect"])
def test_what_is_no_address(sockets: Sockets, address: str, open_: str):
    """What is not tcp://HOST:PORT is a ConfigError that names the option and shows an example."""
    opens: dict[str, Callable[[], object]] = {
        "bind": lambda: bind_router(sockets.context, address, insecure=True),
        "connect": lambda: Route(sockets.context, address).open(),
    }
    with pytest.raises(ConfigError, match=f"--{open_}.*tcp://127.0.0.1:7071"):
        opens[open_]()


def test_port_in_use(sockets: Sockets):
    """A port that is taken: a ConfigError with the address."""
    _, address = sockets.router()
    with pytest.raises(ConfigError, match=f"{address} is in use"):
        bind_router(sockets.context, address, insecure=False)


def test_sockets_are_bounded(sockets: Sockets):
    """Both sockets bound their queues and frames and do not hold up an exit; a router tells who is not there."""
    router, address = sockets.router()
    dealer = sockets.dealer(address)
    for one in (router, dealer):
        assert one.getsockopt(zmq.LINGER) == 0
        assert one.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME
        assert 0 < one.getsockopt(zmq.SNDHWM) <= 1000
        assert 0 < one.getsockopt(zmq.RCVHWM) <= 1000
        assert one.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert one.getsockopt(zmq.TCP_MAXRT) == 5000
        assert 0 < one.getsockopt(zmq.HANDSHAKE_IVL) <= 5000
        assert one.getsockopt(zmq.HEARTBEAT_IVL) == 0, "it aborts the process where a full queue's connection breaks"
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"hello"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH


UNREAD = """
import socket, struct, sys, time, zmq
from specmesh.daemons.link.transport import bind_router

with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
context = zmq.Context()
router = bind_router(context, f"tcp://127.0.0.1:{port}", insecure=False)
peer = socket.create_connection(("127.0.0.1", port))
peer.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48))
peer.sendall(bytes([4, 28]) + b"\\x05READY\\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")
heard = b""
while b"READY" not in heard:
    assert router.poll(0) == 0
    heard += peer.recv(100)
peer.sendall((bytes([0, 20]) + bytes(20)) * 1000)
assert router.poll(10_000)
time.sleep(0.1)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
peer.close()
time.sleep(float(sys.argv[1]))
assert router.recv_multipart()[1] == bytes(20)
context.destroy(linger=0)
"""


def test_a_reset_under_a_full_queue():
    """A peer that floods and breaks off while the loop does not read ends nothing: libzmq's own heartbeats, which come
    each second, would abort the process here, so they are off."""
    ran = subprocess.run([sys.executable, "-c", UNREAD, "1.3"], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_dealer_without_a_verifier_does_not_queue(sockets: Sockets):
    """While nobody is connected, nothing is queued for whoever may come."""
    dealer = sockets.dealer("tcp://127.0.0.1:9")
    with pytest.raises(zmq.Again):
        dealer.send(b"x", zmq.NOBLOCK)


def test_wait_ends_for_a_frame_or_a_wakeup(sockets: Sockets):
    """A byte in the mailbox ends a wait, and so does a frame, of which the first parts are
    kept; a wait without either ends too."""
    router, address = sockets.router()
    inlet = Inlet(router)
    dealer = sockets.dealer(address)
    mailbox: Mailbox[int] = Mailbox()
    begun = time.monotonic()
    wait_for_any((inlet,), mailbox, 0.02)
    assert inlet.receive() is None
    mailbox.put(1)
    wait_for_any((inlet,), mailbox, 60)
    assert dealer.poll(10_000, zmq.POLLOUT)
    dealer.send_multipart([b"frame", b"", b"more"])
    while (parts := inlet.receive()) is None:
        wait_for_any((inlet,), mailbox, 60)
    assert parts[1:] == [b"frame", b""]
    assert len(parts) == MAX_PARTS
    assert inlet.receive() is None
    mailbox.close()
    assert time.monotonic() - begun < 30


def test_traffic_counts():
    """Frames and bytes are counted each way."""
    traffic = Traffic()
    for size in (20, 36):
        traffic.sent(size)
    traffic.received(24)
    assert (traffic.frames_sent, traffic.bytes_sent) == (2, 56)
    assert (traffic.frames_received, traffic.bytes_received) == (1, 24)


def test_sender(sockets: Sockets):
    """Where the last message came from, and where a router listens, IPv4 written as such."""
    router, address = sockets.router()
    inlet = Inlet(router)
    assert inlet.sender() == ""
    sockets.dealer(address).send(b"hello")
    assert router.poll(20_000)
    assert inlet.receive() is not None
    assert inlet.sender() == "tcp://127.0.0.1"
    assert Router(router).address == address


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("tcp://[::ffff:192.0.2.7]:7071", "tcp://192.0.2.7:7071"),
        ("tcp://[::1]:7071", "tcp://[::1]:7071"),
        ("tcp://192.0.2.7", "tcp://192.0.2.7"),
    ],
)
def test_plain_addresses(shown: str, meant: str):
    """IPv4 hosts as sockets for both families show them."""
    assert plain(shown) == meant
