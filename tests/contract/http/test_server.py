"""The API's sockets: who may use them, what is replaced, what is refused; where it listens by TCP, with which keys."""

import asyncio
import socket
import stat
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from asgi_calls import FakeDaemon, call
from harness.loops import PATIENCE, until
from starlette.responses import PlainTextResponse

from specmesh.api.app import ApiGuard
from specmesh.api.server import serving_api
from specmesh.config import parse_port, read_keys
from specmesh.core.requests import Started, Tokens
from specmesh.errors import ConfigError


def test_systems_socket_is_the_groups_too(tmp_path: Path):
    with serving_api(tmp_path / "s", FakeDaemon(), system=tmp_path):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660


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
    with (
        serving_api(tmp_path / "s", FakeDaemon(), patience=0.3),
        closing(said(tmp_path / "s", raw)) as slow,
    ):
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


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# mine\nsk-one\n\n  sk-two \n")
    path.chmod(0o640)  # its group may: systemd's credentials look so
    return path


def test_beyond_this_machine(keys: Path):
    for text in ("0.0.0.0:80", "[::]:80", "box.local:80", "192.168.1.5:80"):
        with pytest.raises(ConfigError, match="api-key-file"):
            parse_port(text, None)
        port = parse_port(text, keys)
        assert port.keys == ("sk-one", "sk-two")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        "localhost",
        "localhost:",
        "localhost:x",
        "localhost:99999",
        ":80",
        "a:1/b",
        "[::1",
        "u@h:1",
    ],
)
def test_no_port(text: str):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_port(text, None)


@pytest.mark.parametrize("raw", [b"", b"# none\n", "schlüssel\n".encode(), b"x" * 70_000, None])
def test_no_keys(keys: Path, raw: bytes | None):
    """Nor any that others can read."""
    if raw is None:
        keys.chmod(0o644)
    else:
        keys.write_bytes(raw)
    with pytest.raises(ConfigError, match="chmod 600" if raw is None else "keys"):
        read_keys(keys)


def test_origins(keys: Path):
    """Of pages; every page only where a key is asked for."""
    port = parse_port(
        "localhost:80", None, ("https://page.example", "http://[::1]:3000", "vscode-webview://abc")
    )
    assert len(port.origins) == 3
    assert parse_port("localhost:80", keys, ("*",))
    for wrong in ("*", "null", "page.example", "https://page.example/", "https://*.example", ""):
        with pytest.raises(ConfigError, match="--allow-origin"):
            parse_port("localhost:80", None, (wrong,))
    with pytest.raises(ConfigError, match="--http"):
        parse_port(None, None, ("https://page.example",))


# --- who may ask


def asked(keys: tuple[str, ...], path: str = "/stats", **headers: str) -> int:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    guard = ApiGuard(PlainTextResponse("ok"), keys)
    return asyncio.run(call(FakeDaemon(), "GET", path, app=guard, headers=raw)).status


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "127.0.0.2:80"],
)
def test_this_machine_needs_no_key(host: str):
    assert asked((), host=host) == 200
    assert asked((), host=host, origin="http://localhost:3000") == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[bad", "@"]
)
def test_another_name_is_refused(host: str):
    assert asked((), host=host) == 403
    assert asked(()) == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[bad"])
@pytest.mark.fault("E6.73")
def test_another_origin_is_refused(origin: str):
    assert asked((), host="localhost", origin=origin) == 403


@pytest.mark.fault("E6.73")
def test_keys():
    keys = ("sk-one", "sk-two")
    for key in keys:
        assert asked(keys, host="box.example", authorization=f"Bearer {key}") == 200
        assert asked(keys, host="box.example", authorization=f"bearer  {key} ") == 200
    for wrong in (
        "Bearer sk-three",
        "Bearer",
        "",
        "Basic sk-one",
        "sk-one",
        "Bearer sk-onetwo",
        "Bearer schl\xfcssel",
    ):
        assert asked(keys, host="localhost", authorization=wrong) == 401
    assert asked(keys, host="localhost") == 401
    assert asked(keys, path="/health", host="box.example") == 200
