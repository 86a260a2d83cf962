"""The API's sockets: who may use them, what is replaced, what is refused."""

import errno
import os
import re
import socket
import stat
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from asgi_calls import FakeDaemon
from harness.loops import PATIENCE, until

from specmesh.api.server import serving_api
from specmesh.config import Port
from specmesh.core.requests import Started, Tokens
from specmesh.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_systems_socket_is_the_groups_too(tmp_path: Path):
    with serving_api(tmp_path / "s", FakeDaemon(), system=tmp_path):
        assert mode(tmp_path / "s") == 0o660


def test_a_taken_port_leaves_no_socket(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        serving = serving_api(tmp_path / "s", FakeDaemon(), Port(*other.getsockname()))
        with pytest.raises(ConfigError, match=re.escape(f"({os.strerror(errno.EADDRINUSE)})")), serving:
            pass
    assert not (tmp_path / "s").exists()


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STATS = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"


def said(path: Path, raw: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(PATIENCE)
    made.connect(str(path))
    made.sendall(raw)
    return made


def trickle(to: socket.socket, ended: threading.Event) -> None:
    """A byte of a request now and then: something always comes, and it never ends."""
    with suppress(OSError):
        while not ended.wait(0.02):
            to.sendall(b" ")


@pytest.mark.parametrize(
    "raw",
    [b"", HEAD, HEAD + b"X-More: ", HEAD + b"Content-Length: 100000\r\n\r\n{", STATS, STATS + HEAD],
    ids=["idle", "head", "slow head", "slow body", "idle again", "half a second request"],
)
def test_a_request_must_come_whole(tmp_path: Path, raw: bytes):
    """Within its time, however it comes; before it and after an answer too. Else the connection is closed."""
    ended = threading.Event()
    with serving_api(tmp_path / "s", FakeDaemon(), patience=0.3), closing(said(tmp_path / "s", raw)) as slow:
        if raw.endswith((b": ", b"{")):
            threading.Thread(target=trickle, args=(slow, ended), daemon=True).start()
        with suppress(ConnectionError):
            while slow.recv(65536):
                pass
        ended.set()


@pytest.mark.fault("E5.56")
def test_a_stream_that_nobody_reads(tmp_path: Path):
    """It loses its session, once its reader has taken nothing for a while."""
    daemon = FakeDaemon(Started(1, 2), Tokens((65,) * 2**20, 0))
    body = b'{"prompt": "hi", "stream": true}'
    raw = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving_api(tmp_path / "s", daemon, patience=0.3), closing(said(tmp_path / "s", raw)):
        until(daemon.cancelled.is_set, "it is cancelled")
