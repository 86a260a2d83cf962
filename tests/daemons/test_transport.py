"""Where the wire may listen, what an address is, and what the sockets are set to."""

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from specmesh.daemons.mailbox import Mailbox
from specmesh.daemons.transport import Traffic, bind_router, connect_dealer, wait
from specmesh.errors import ConfigError
from specmesh.wire.codec import MAX_FRAME


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    made = zmq.Context[zmq.Socket[bytes]]()
    yield made
    made.destroy(linger=0)


def bound(context: "zmq.Context[zmq.Socket[bytes]]") -> "tuple[zmq.Socket[bytes], str]":
    """A router on a free port, and its address."""
    for port in range(20000 + time.monotonic_ns() % 10000, 40000):
        address = f"tcp://127.0.0.1:{port}"
        try:
            return bind_router(context, address, insecure=False), address
        except ConfigError:
            continue
    raise AssertionError("no free port")


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])  # noqa: S104
@pytest.mark.parametrize("insecure", [False, True])
def test_never_on_every_network(context: "zmq.Context[zmq.Socket[bytes]]", host: str, insecure: bool):
    """An address that stands for all networks is refused whatever the flags."""
    with pytest.raises(ConfigError, match="every network"):
        bind_router(context, f"tcp://{host}:7071", insecure)


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org", "[2001:db8::1]"])
def test_beyond_loopback_only_when_told(context: "zmq.Context[zmq.Socket[bytes]]", host: str):
    """Another host than this one is refused unless --insecure-no-auth is given; then the socket decides."""
    with pytest.raises(ConfigError, match="--insecure-no-auth"):
        bind_router(context, f"tcp://{host}:7071", insecure=False)
    with pytest.raises(ConfigError, match="cannot bind"):
        bind_router(context, f"tcp://{host}:7071", insecure=True)


@pytest.mark.parametrize(
    "address",
    ["", "7071", "127.0.0.1:7071", "tcp://", "tcp://:7071", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:0",
     "tcp://127.0.0.1:70000", "tcp://127.0.0.1:port", "tcp://127.0.0.1:-1", "udp://127.0.0.1:7071",
     "ipc:///run/x", "inproc://x", "http://127.0.0.1:7071"],
)
@pytest.mark.parametrize("open_", ["bind", "connect"])
def test_what_is_no_address(context: "zmq.Context[zmq.Socket[bytes]]", address: str, open_: str):
    """What is not tcp://HOST:PORT is a ConfigError that names the option and shows an example."""
    opens: dict[str, Callable[[], object]] = {
        "bind": lambda: bind_router(context, address, insecure=True),
        "connect": lambda: connect_dealer(context, address),
    }
    with pytest.raises(ConfigError, match=f"--{open_}.*tcp://127.0.0.1:7071"):
        opens[open_]()


def test_port_in_use(context: "zmq.Context[zmq.Socket[bytes]]"):
    """A port that is taken: a ConfigError with the address."""
    _, address = bound(context)
    with pytest.raises(ConfigError, match=f"{address} is in use"):
        bind_router(context, address, insecure=False)


def test_sockets_are_bounded(context: "zmq.Context[zmq.Socket[bytes]]"):
    """Both sockets bound their queues and frames and do not hold up an exit; a router tells who is not there."""
    router, address = bound(context)
    dealer = connect_dealer(context, address)
    for socket in (router, dealer):
        assert socket.getsockopt(zmq.LINGER) == 0
        assert socket.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME
        assert 0 < socket.getsockopt(zmq.SNDHWM) <= 1000
        assert 0 < socket.getsockopt(zmq.RCVHWM) <= 1000
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) > 0
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"hello"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_dealer_without_a_verifier_does_not_queue(context: "zmq.Context[zmq.Socket[bytes]]"):
    """While nobody is connected, nothing is queued for whoever may come."""
    dealer = connect_dealer(context, "tcp://127.0.0.1:9")
    with pytest.raises(zmq.Again):
        dealer.send(b"x", zmq.NOBLOCK)


def test_wait_ends_for_a_frame_or_a_wakeup(context: "zmq.Context[zmq.Socket[bytes]]"):
    """wait sleeps at most as long as told; a frame or a byte in the mailbox ends it."""
    router, address = bound(context)
    dealer = connect_dealer(context, address)
    mailbox: Mailbox[int] = Mailbox()
    begun = time.monotonic()
    wait(router, mailbox.fileno(), 0.02)
    assert 0.015 < time.monotonic() - begun < 5
    mailbox.put(1)
    wait(router, mailbox.fileno(), 60)
    mailbox.drain()
    assert dealer.poll(10_000, zmq.POLLOUT)
    dealer.send(b"frame")
    while True:
        wait(router, mailbox.fileno(), 60)
        try:
            assert router.recv_multipart(zmq.NOBLOCK)[1] == b"frame"
            break
        except zmq.Again:
            continue
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
