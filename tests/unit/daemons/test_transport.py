"""Where the wire may listen, what an address is, and what the sockets are set to."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import zmq

from specmesh.daemons.link.transport import Route, bind_router
from specmesh.errors import ConfigError

NO_ADDRESSES = (
    "7071 127.0.0.1:7071 tcp:// tcp://:7071 tcp://127.0.0.1 tcp://127.0.0.1: tcp://127.0.0.1:0 tcp://127.0.0.1:70000 "
    "tcp://127.0.0.1:port tcp://127.0.0.1:-1 udp://127.0.0.1:7071 ipc:///run/x inproc://x http://127.0.0.1:7071"
)


@pytest.mark.parametrize("address", ["", *NO_ADDRESSES.split()])
@pytest.mark.parametrize("open_", ["bind", "connect"])
def test_what_is_no_address(address: str, open_: str):
    """What is not tcp://HOST:PORT is a ConfigError that names the option and shows an example."""
    opens: dict[str, Callable[[], object]] = {
        "bind": lambda: bind_router(zmq.Context.instance(), address, insecure=True),
        "connect": lambda: Route(zmq.Context.instance(), address).open(),
    }
    with pytest.raises(ConfigError, match=f"--{open_}.*tcp://127.0.0.1:7071"):
        opens[open_]()


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
