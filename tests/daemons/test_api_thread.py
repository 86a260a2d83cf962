"""The API's sockets: who may use them, what is replaced, what is refused."""

import http.client
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from specmesh.api.port import Keys, Port
from specmesh.client import Client
from specmesh.core.vocabulary import Vocabulary
from specmesh.daemons import api_thread
from specmesh.daemons.api_thread import ApiThread
from specmesh.errors import ConfigError
from specmesh.requests import Served


class Backend:
    """A daemon that is ready and has nothing to say."""

    role, models = "verifier", ("m",)

    def not_ready(self) -> None:
        return None

    def served(self, _: str) -> Served:
        return Served("m", Vocabulary((), frozenset()))

    def submit(self, _: object) -> None:
        raise AssertionError("nothing is asked here")

    def stats(self) -> dict[str, object]:
        return {"role": self.role}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_socket_is_this_users(tmp_path: Path):
    """0600, answered while open, gone after."""
    path = tmp_path / "s"
    with ApiThread(path, Backend()):
        assert mode(path) == 0o600
        assert Client(path).get("/stats") == {"role": "verifier"}
    assert not path.exists()


def test_systems_socket_is_the_groups_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """0660 in the system's folder, which only the group can enter."""
    monkeypatch.setattr(api_thread, "SYSTEM_DIR", tmp_path)
    with ApiThread(tmp_path / "s", Backend()):
        assert mode(tmp_path / "s") == 0o660


def test_stale_socket_is_replaced_and_nothing_else(tmp_path: Path):
    """What a crash left is; a file of somebody's is not."""
    stale = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(stale))
    with ApiThread(stale, Backend()):
        assert Client(stale).get("/stats")
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="is not a socket"):
        ApiThread(file, Backend())
    assert file.read_text() == "mine"


def asked(port: int, **headers: str) -> int:
    """The status of GET /stats."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", "/stats", headers=headers)
        return connection.getresponse().status


def test_port_beside_the_socket(tmp_path: Path):
    """Both answer; the port asks for the key, the socket does not."""
    port = free_port()
    with ApiThread(tmp_path / "s", Backend(), Port("127.0.0.1", port, Keys(("sk-1",)))):
        assert Client(tmp_path / "s").get("/stats")
        assert asked(port, Authorization="Bearer sk-1") == 200
        assert asked(port) == 401
    with pytest.raises(ConnectionRefusedError):
        asked(port)


def test_port_that_is_taken(tmp_path: Path):
    """Told as a setting's error, and the socket is not left behind."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = Port("127.0.0.1", server.getsockname()[1])
        with pytest.raises(ConfigError, match="is the port taken") as refused:
            ApiThread(tmp_path / "s", Backend(), port)
    assert refused.value.option == "http"
    assert not (tmp_path / "s").exists()
