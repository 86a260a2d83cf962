"""The API's sockets: who may use them, what is replaced, what is refused."""

import http.client
import socket
import stat
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from specmesh.api import server
from specmesh.api.requests import ModelInfo
from specmesh.api.server import Bounds, serving_api
from specmesh.core.snapshot import Snapshot
from specmesh.core.vocabulary.vocabulary import Vocabulary


class Backend:
    role, models = "verifier", ("m",)

    def not_ready(self) -> None:
        return None

    def served(self, _: str) -> ModelInfo:
        return ModelInfo("m", Vocabulary((), frozenset()))

    def submit(self, _: object) -> None:
        raise AssertionError("nothing is asked here")

    async def stats(self) -> Snapshot:
        return Snapshot(role=self.role, version="0", pid=1, uptime_s=1.0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_systems_socket_is_the_groups_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "SYSTEM_DIR", tmp_path)
    with serving_api(tmp_path / "s", Backend()):
        assert mode(tmp_path / "s") == 0o660


def asked(port: int, **headers: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", "/stats", headers=headers)
        return connection.getresponse().status


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STATS = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"


def said(path: Path, raw: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(20)
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
    with serving_api(tmp_path / "s", Backend(), bounds=Bounds(9, 0.3)), closing(said(tmp_path / "s", raw)) as slow:
        if raw.endswith((b": ", b"{")):
            threading.Thread(target=trickle, args=(slow, ended), daemon=True).start()
        with suppress(ConnectionError):
            while slow.recv(65536):
                pass
        ended.set()
