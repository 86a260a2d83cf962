"""The API's sockets: who may use them, what is replaced, what is refused."""

import http.client
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from specmesh.api.port import Port
from specmesh.api.requests import ClientOrder, LocalClient, ModelInfo, Started, Submit, Tokens
from specmesh.client import Client
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.runtime import api_thread
from specmesh.daemons.runtime.api_thread import ApiThread
from specmesh.daemons.runtime.connections import Bounds
from specmesh.errors import ConfigError


class Backend:
    """A daemon that is ready and has nothing to say."""

    role, models = "verifier", ("m",)

    def not_ready(self) -> None:
        return None

    def served(self, _: str) -> ModelInfo:
        return ModelInfo("m", Vocabulary((), frozenset()))

    def submit(self, _: object) -> None:
        raise AssertionError("nothing is asked here")

    def stats(self) -> dict[str, object]:
        return {"role": self.role}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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


def test_port_that_is_taken(tmp_path: Path):
    """Told as a setting's error, and the socket is not left behind."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = Port("127.0.0.1", server.getsockname()[1])
        with pytest.raises(ConfigError, match="is the port taken") as refused:
            ApiThread(tmp_path / "s", Backend(), port)
    assert refused.value.option == "http"
    assert not (tmp_path / "s").exists()


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "x", "stream": true}'
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
STATS = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Talker(Backend):
    """Goes on talking to whoever asks, or says nothing; notes what it is told."""

    def __init__(self, *, talks: bool) -> None:
        self.talks, self.orders, self.queued = talks, list[ClientOrder](), 0

    def served(self, _: str) -> ModelInfo:
        return ModelInfo("m", Vocabulary(tuple(bytes([n]) for n in range(256)), frozenset()))

    def submit(self, order: ClientOrder) -> None:
        self.orders.append(order)
        if isinstance(order, Submit):
            order.client.on_event(Started(1, 1))
            if self.talks:
                threading.Thread(target=self._talk, args=(order.client,)).start()

    def _talk(self, to: LocalClient) -> None:
        while len(self.orders) < 2:
            to.on_event(Tokens((65,) * 100, 0, ()))
            time.sleep(0.001)

    def stats(self) -> dict[str, object]:
        return {"role": self.role, "sessions": {"live": 1, "max": 1, "queued": self.queued}}

    def cancelled(self) -> None:
        """Wait for the only session's end."""
        until(lambda: len(self.orders) == 2, "it is cancelled")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def said(path: Path, raw: bytes) -> socket.socket:
    """A connection that has sent this."""
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
    with ApiThread(tmp_path / "s", Backend(), bounds=Bounds(9, 0.3)), closing(said(tmp_path / "s", raw)) as slow:
        if raw.endswith((b": ", b"{")):
            threading.Thread(target=trickle, args=(slow, ended), daemon=True).start()
        with suppress(ConnectionError):
            while slow.recv(65536):
                pass
        ended.set()


def test_an_unread_stream_is_cancelled(tmp_path: Path):
    """Whose reader takes nothing for its time: the session ends and the connection is closed, whoever waits."""
    talker = Talker(talks=True)
    with ApiThread(tmp_path / "s", talker, bounds=Bounds(9, 0.3)), closing(said(tmp_path / "s", WHOLE)) as lazy:
        talker.cancelled()
        with suppress(ConnectionError):
            while lazy.recv(65536):
                pass


def test_an_unread_stream_gives_way(tmp_path: Path):
    """Long before that where others wait; who reads on is told why the text ends."""
    talker = Talker(talks=True)
    talker.queued = 1
    with ApiThread(tmp_path / "s", talker, bounds=Bounds(9, crowded=0.2)), closing(said(tmp_path / "s", WHOLE)) as lazy:
        talker.cancelled()
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += lazy.recv(65536)
        assert b"this stream was not read" in answer.splitlines()[-5]


def test_connections_are_bounded(tmp_path: Path):
    """The one that waits longest for a request gives way; where all wait for answers, the newest are refused."""
    path = tmp_path / "s"
    with ApiThread(path, Talker(talks=False), bounds=Bounds(3)), ExitStack() as made:
        idle = [made.enter_context(closing(said(path, b""))) for _ in range(3)]
        busy = []
        for first in idle:
            busy.append(made.enter_context(closing(said(path, WHOLE))))
            assert busy[-1].recv(65536).startswith(b"HTTP/1.1 200")
            assert first.recv(100) == b""
        for _ in range(3):
            refused = made.enter_context(closing(said(path, STATS)))
            answer = b""
            while more := refused.recv(65536):
                answer += more
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1\r\n" in answer.lower()
            assert b"connections" in answer
        busy[0].close()
        until(lambda: _answered(path), "there is room again")


def _answered(path: Path) -> bool:
    with closing(said(path, STATS)) as one:
        return one.recv(65536).startswith(b"HTTP/1.1 200")
