"""The API's sockets: their users, replacement, refusals; TCP addresses and keys."""

import asyncio
import os
import socket
import stat
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from api_sockets import HEAD, all_of, answer_to, asking, dial
from asgi_calls import EVENTS, Asked, FakeDaemon, call, streamed_or_whole
from harness import PATIENCE, until
from harness.ports import free_port
from harness.tables import cases, lines, rows
from starlette.responses import PlainTextResponse
from structlog.testing import capture_logs

from specmesh.api import app, connection
from specmesh.api.app import create_app
from specmesh.api.backend import PauseClient, Submit
from specmesh.api.connection import ApiConnection
from specmesh.api.guard import guarded
from specmesh.api.server import serving_api
from specmesh.config import Port, parse_port, read_keys, with_keys
from specmesh.core.requests import Failed, Started, Tokens
from specmesh.errors import ConfigError, RequestError

fault = pytest.mark.fault


def test_systems_socket_is_the_groups_too(tmp_path):
    with serving_api(tmp_path / "s", FakeDaemon(), system=tmp_path):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660


STATS = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"


def trickle(to, ended):
    """A byte of a request now and then: something always comes, and it never ends."""
    with suppress(OSError):
        while not ended.wait(0.02):
            to.sendall(b" ")


@pytest.mark.parametrize(
    "raw",
    [b"", HEAD, HEAD + b"X-More: ", HEAD + b"Content-Length: 100000\r\n\r\n{", STATS, STATS + HEAD],
    ids=["idle", "head", "slow head", "slow body", "idle again", "half a second request"],
)
def test_a_request_must_come_whole(tmp_path, raw):
    """It must come within its time, before and after an answer, or its connection is closed."""
    ended = threading.Event()
    with (
        serving_api(tmp_path / "s", FakeDaemon(), patience=0.3),
        closing(dial(tmp_path / "s")) as slow,
    ):
        slow.sendall(raw)
        if raw.endswith((b": ", b"{")):
            threading.Thread(target=trickle, args=(slow, ended), daemon=True).start()
        all_of(slow)
        ended.set()


@pytest.fixture
def connections(monkeypatch):
    """Those that the API accepts from here on."""
    accepted = []
    made = ApiConnection.connection_made

    def connection_made(self, transport):
        made(self, transport)
        accepted.append(self)

    monkeypatch.setattr(ApiConnection, "connection_made", connection_made)
    return accepted


def test_what_is_written_goes_out_at_once(tmp_path, connections):
    """A head's body does not wait for the other end's acknowledgement, which is 40 ms late."""
    port = Port(host="127.0.0.1", port=free_port())
    options = []
    with serving_api(tmp_path / "s", FakeDaemon(), port):
        for _ in range(2):
            with socket.create_connection((port.host, port.port), PATIENCE) as client:
                client.sendall(STATS)
                assert client.recv(9) == b"HTTP/1.1 "
                accepted = connections[-1].transport.get_extra_info("socket")
                options.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    assert len(options) == 2
    assert all(options)


class Late(FakeDaemon):
    """It answers once the test wants it to, on the API's loop."""

    def __init__(self, *events):
        super().__init__()
        self.asked = asyncio.Event()
        self.later = events

    def submit(self, order):
        super().submit(order)
        self.asked.set()

    def answer(self, loop):
        """Answer the requests so far."""
        while self.orders:
            order = self.orders.pop(0)
            assert isinstance(order, Asked)
            for event in self.later:
                loop.call_soon_threadsafe(order.client.on_event, event)


@dataclass(frozen=True)
class Door:
    """A way to the API: over its Unix socket or its port."""

    kind: str
    path: Path
    port: Port

    def dial(self, buffer=None):
        """Connect, perhaps with so many bytes for unread data."""
        if self.kind == "unix":
            return dial(self.path, buffer)
        return dial((self.port.host, self.port.port), buffer)


@pytest.fixture(params=["unix", "tcp"])
def door(request, tmp_path):
    return Door(request.param, tmp_path / "s", Port(host="127.0.0.1", port=free_port()))


@streamed_or_whole
@pytest.mark.parametrize("requests", [1, 2])
def test_a_client_that_sends_no_more_is_answered(door, connections, requests, stream):
    """All that it has asked for, as by `nc -N`; then its connection is closed."""
    daemon = Late(*EVENTS)
    with serving_api(door.path, daemon, door.port) as api, closing(door.dial()) as client:
        client.sendall(asking({"prompt": "x", "stream": stream}) * requests)
        client.shutdown(socket.SHUT_WR)
        for _ in range(requests):
            until(daemon.orders.__len__, "it has asked")
            if requests == 1:  # else the end is behind the second one
                until(lambda: connections[-1].half_closed, "its end has come")
            daemon.answer(api.loop)
        raw = all_of(client)
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert raw.count(b"HTTP/1.1") == requests
    assert raw.count(b"length") >= requests
    assert not daemon.cancelled.is_set()


def say_no_more(client, connections):
    """Send the end of a client's side, and wait until it has come."""
    client.shutdown(socket.SHUT_WR)
    until(lambda: connections[-1].half_closed, "its end has come")


@pytest.mark.parametrize("half", [False, True])
def test_a_client_that_leaves_cancels(door, connections, half):
    """It waits for a whole answer, or has sent the end of its own side before."""
    daemon = Late()
    with serving_api(door.path, daemon, door.port):
        with closing(door.dial()) as client:
            client.sendall(asking({"prompt": "x"}))
            until(daemon.asked.is_set, "it has asked")
            if half:
                say_no_more(client, connections)
                assert not daemon.cancelled.is_set()
        until(daemon.cancelled.is_set, "its session is cancelled")


@pytest.mark.parametrize("door", ["tcp"], indirect=True)
@pytest.mark.parametrize("stays", [False, True])
def test_a_client_of_another_machine_that_sends_no_more(
    door,
    connections,
    monkeypatch,
    stays,
):
    """Only sending shows whether it is there: it gets bytes that clients have to skip."""
    monkeypatch.setattr(connection, "other_end", lambda _: None)
    daemon = Late(*EVENTS)
    with serving_api(door.path, daemon, door.port) as api:
        with closing(door.dial()) as client:
            client.sendall(asking({"prompt": "x"}))
            until(daemon.asked.is_set, "it has asked")
            if stays:
                say_no_more(client, connections)
                daemon.answer(api.loop)
                raw = all_of(client)
        if not stays:
            until(daemon.cancelled.is_set, "its session is cancelled")
            return
    first, rest = raw.split(b"\r\n\r\n", 1)
    assert first == b"HTTP/1.1 100 Continue"
    assert rest.startswith(b"HTTP/1.1 200 ")
    assert not daemon.cancelled.is_set()


@pytest.fixture(scope="module")
def templated(tmp_path_factory):
    """The socket of a daemon whose model's template is known."""
    path = tmp_path_factory.mktemp("templated") / "s"
    daemon = FakeDaemon(*EVENTS)
    daemon.texts = {"chat_template": "{{ messages }}"}
    with serving_api(path, daemon):
        yield path


MANY = [f"{'x' * 27}{number:03}  " for number in range(500)]
ODD_NAMES = rows(r"""
[" "] ["\t"] [" a"] ["a "] [""] [","] ["\n"] ["\u0000"] ["\u007f"] ["\ud83d\ude00"] ["é"]
""")
ODD_NAMES += [MANY[:count] for count in range(5, 15)]
ODD_NAMES += [MANY, ["x" * 299 + " "], ["\u20ac" * 200_000]]


@pytest.mark.parametrize("names", ODD_NAMES, ids=lambda names: f"{len(names)} {names[0][:3]!a}")
@cases(
    "path, body",
    """
    ["/v1/completions", {"prompt": "x"}]
    ["/v1/completions", {"prompt": "x", "stream": true}]
    ["/v1/responses", {"input": "x", "text": "HERE"}]
    ["/v1/chat/completions",
     {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": "HERE"}]
    """,
)
def test_any_name_of_a_field_is_answered(templated, path, body, names):
    """The header that lists the unknown ones is valid whatever they are."""
    given = dict.fromkeys(names, 1)
    asked = {name: given if one == "HERE" else one for name, one in body.items()}
    if asked == body:
        asked |= given
    assert answer_to(templated, asking(asked, path)).startswith(b"HTTP/1.1 200 ")


@streamed_or_whole
@pytest.mark.parametrize("part", ["head", "body", "refusal"])
def test_an_answer_that_cannot_be_sent_ends(tmp_path, monkeypatch, part, stream):
    """Its connection is closed, its session too, and the log has it once: for its head, a part of
    it, or an error.
    """
    daemon = FakeDaemon(Started(1, 2), Tokens((65,), 0))
    if part == "head":
        monkeypatch.setattr(app, "as_header", lambda _: " ")
    elif part == "body":
        daemon.models = ("\ud800",)
    else:
        daemon.events = (Failed(RequestError("\ud800")),)
    if part != "refusal" and not stream:
        daemon.events = EVENTS
    with capture_logs() as logs, serving_api(tmp_path / "s", daemon):
        raw = answer_to(tmp_path / "s", asking({"prompt": "x", "stream": stream}))
        assert not raw.endswith(b"0\r\n\r\n")
        if stream and part != "refusal":
            until(daemon.cancelled.is_set, "its session is cancelled")
    assert [entry["event"] for entry in logs] == ["api_failed"]


class Endless(FakeDaemon):
    """A daemon that sends a kilobyte in a millisecond, while its client is not paused."""

    def __init__(self):
        super().__init__()
        self.paused = threading.Event()
        self.said = 0

    def submit(self, order):
        match order:
            case Submit([(_, client)]):
                client.on_event(Started(1, 2))
                self._say_more(client)
            case PauseClient(_, True):
                self.paused.set()
            case PauseClient():
                self.paused.clear()
            case _:
                self.cancelled.set()

    def _say_more(self, client):
        if not self.paused.is_set():
            client.on_event(Tokens((65,) * 256, 0))
            self.said += 256
        if not self.cancelled.is_set():
            asyncio.get_running_loop().call_later(0.001, self._say_more, client)


def read_much(client, count):
    """Read so many bytes as fast as they come, so that the kernel expects more."""
    while count > 0:
        part = client.recv(65536)
        assert part, "the connection has ended"
        count -= len(part)


MOST = 256 * 1024
"""Bytes that a reader which has stopped is sent at most."""


BUFFERS = pytest.mark.parametrize("buffer", [None, 4 * 2**20], ids=["usual", "large"])


@fault("E5.56")
@BUFFERS
@pytest.mark.parametrize("before", [1000, 2 * 2**20])
def test_a_reader_that_stops(door, connections, before, buffer):
    """Its session pauses soon: it is sent little more, however much its kernel would take."""
    daemon = Endless()
    with (
        serving_api(door.path, daemon, door.port) as api,
        closing(door.dial(buffer)) as client,
    ):
        client.sendall(asking({"prompt": "hi", "stream": True}))
        read_much(client, before)
        until(daemon.paused.is_set, "it is paused")
        api.loop.call_soon_threadsafe(connections[-1].transport.close)  # once all is sent
        until(connections[-1].transport.is_closing, "nothing more is written")
        assert len(all_of(client)) < MOST


@fault("E5.56")
@BUFFERS
def test_a_reader_that_has_stopped_loses_its_session(door, buffer):
    """After a while."""
    daemon = Endless()
    with (
        serving_api(door.path, daemon, door.port, patience=0.3),
        closing(door.dial(buffer)) as client,
    ):
        client.sendall(asking({"prompt": "hi", "stream": True}))
        until(daemon.paused.is_set, "it is paused")
        until(daemon.cancelled.is_set, "it is cancelled")


@BUFFERS
def test_a_reader_that_goes_on(door, buffer):
    """Its session goes on, and nothing of it is lost."""
    daemon = Endless()
    with serving_api(door.path, daemon, door.port), closing(door.dial(buffer)) as client:
        client.sendall(asking({"prompt": "hi", "stream": True}))
        for _ in range(3):
            until(daemon.paused.is_set, "it is paused")
            said = daemon.said
            while daemon.paused.is_set():
                read_much(client, 1)
            until(lambda: daemon.said > said, "it says more")  # noqa: B023
        assert not daemon.cancelled.is_set()


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# mine\nsk-one\n\n  sk-two \n")
    path.chmod(0o640)  # its group may: systemd's credentials look so
    return path


def test_beyond_this_machine(keys):
    for text in ("0.0.0.0:80", "[::]:80", "box.local:80", "192.168.1.5:80"):
        with pytest.raises(ConfigError, match="api-key-file"):
            parse_port(text, None)
        port = with_keys(parse_port(text, keys))
        assert port.keys == ("sk-one", "sk-two")


NO_PORTS = "8080 localhost localhost: localhost:x localhost:99999 :80 a:1/b [::1 u@h:1"


@pytest.mark.parametrize("text", ["", *NO_PORTS.split()])
def test_no_port(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_port(text, None)


@pytest.mark.parametrize("raw", [b"", b"# none\n", "schlüssel\n".encode(), b"x" * 70_000, None])
def test_no_keys(keys, raw):
    """Nor any that others can read."""
    if raw is None:
        keys.chmod(0o644)
    else:
        keys.write_bytes(raw)
    with pytest.raises(ConfigError, match="chmod 600" if raw is None else "keys"):
        read_keys(keys)


def test_origins(keys):
    """Every page may ask only if a key is needed."""
    origins = ("https://page.example", "http://[::1]:3000", "vscode-webview://abc")
    assert parse_port("localhost:80", None, origins).origins == origins
    assert parse_port("localhost:80", keys, ("*",))


@pytest.mark.parametrize(
    "wrong", ["*", "null", "page.example", "https://page.example/", "https://*.example", ""]
)
def test_no_origins(wrong):
    with pytest.raises(ConfigError, match="--allow-origin"):
        parse_port("localhost:80", None, (wrong,))


def test_origins_without_a_port():
    with pytest.raises(ConfigError, match="--http"):
        parse_port(None, None, ("https://page.example",))


# --- who may ask


PAGE = "https://page.example"
TWO_KEYS = ("sk-one", "sk-two")
OPEN = Port(host="127.0.0.1", port=80)
KEYED = replace(OPEN, keys=TWO_KEYS)
PORTS = [OPEN, KEYED, replace(OPEN, origins=(PAGE,)), replace(KEYED, origins=(PAGE,))]
each_port = pytest.mark.parametrize("port", PORTS, ids=["open", "keyed", "page", "keyed page"])


def asked(port, method="GET", path="/stats", **headers):
    raw = []
    for name, value in headers.items():
        raw.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    app = guarded(PlainTextResponse("ok"), port)
    return asyncio.run(call(FakeDaemon(), method, path, app=app, headers=raw))


OWN_HOSTS = lines("""
localhost
LOCALHOST
localhost:8080
127.0.0.1:8080
127.0.0.2:80
0.0.0.0
0.0.0.0:8080
[::1]
[::1]:8080
[0:0:0:0:0:0:0:1]:8080
[::ffff:127.0.0.1]:8080
[::]:8080
""")
OWN_PAGES = lines("""
http://localhost:3000
https://localhost
http://127.0.0.1:5173
http://[::1]:3000
http://0.0.0.0:8000
""")
OTHER_HOSTS = [
    "",
    " localhost",
    *lines("""
evil.example
evil.example:8080
127.0.0.1.evil.example
localhost.evil.example
192.168.1.5:8080
host.docker.internal:8080
[bad
@
evil.example@localhost
evil.example@127.0.0.1:8080
localhost@evil.example
127.0.0.1%25evil.example
[::1%25eth0]:8080
[::1%eth0]
::1
[127.0.0.1]x
localhost:65536
127.0.0.1:99999
localhost:8080/
localhost:8080?x
localhost#evil.example
localhost:
localhost:80:80
localhost:999999
localhost\\evil.example
localhost localhost
127.0.0.1,evil.example
1
127.1
0x7f000001
"""),
]
OTHER_PAGES = [
    "",
    *lines("""
https://evil.example
https://localhost.evil.example
http://evil.example@localhost
http://localhost@evil.example
http://127.0.0.1%25.evil.example
http://0.0.0.0.evil.example
http://[bad
http://192.168.1.5:3000
http://localhost:3000/
chrome-extension://localhost
file://localhost
//localhost
localhost
null
"""),
]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_this_machine_needs_no_key(host):
    assert asked(OPEN, host=host).status == 200
    for page in OWN_PAGES:
        assert asked(OPEN, host=host, origin=page).status == 200


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_another_name_is_refused(host):
    assert asked(OPEN, host=host).status == 403
    assert asked(OPEN, host=host, origin=OWN_PAGES[0]).status == 403


def test_a_request_without_a_host_is_refused():
    assert asked(OPEN).status == 403


@pytest.mark.parametrize("origin", OTHER_PAGES)
@fault("E6.73")
def test_another_origin_is_refused(origin):
    for host in OWN_HOSTS:
        assert asked(OPEN, host=host, origin=origin).status == 403


@fault("E6.73")
@pytest.mark.parametrize("right", ["Bearer sk-one", "bearer  sk-one ", "Bearer sk-two"])
def test_right_keys(right):
    assert asked(KEYED, host="box.example", authorization=right).status == 200


WRONG_KEYS = "Bearer sk-three,Bearer,,Basic sk-one,sk-one,Bearer sk-onetwo,Bearer schl\xfcssel"


@fault("E6.73")
@pytest.mark.parametrize("wrong", WRONG_KEYS.split(","))
def test_wrong_keys(wrong):
    assert asked(KEYED, host="localhost", authorization=wrong).status == 401


@fault("E6.73")
@pytest.mark.parametrize("right", ["sk-one", " sk-two "])
def test_a_key_of_its_own_header(right):
    """Anthropic's clients send it so; another bearer beside it changes nothing."""
    headers = {"host": "box.example", "x_api_key": right}
    assert asked(KEYED, **headers).status == 200
    assert asked(KEYED, **headers, authorization="Bearer wrong").status == 200


@fault("E6.73")
@pytest.mark.parametrize("wrong", ["", "sk-three", "Bearer sk-one", "sk-onetwo"])
def test_a_wrong_key_of_its_own_header(wrong):
    assert asked(KEYED, host="localhost", x_api_key=wrong).status == 401


@pytest.mark.parametrize(
    ("port", "host", "status", "kind"),
    [
        (KEYED, "localhost", 401, "authentication_error"),
        (OPEN, "box.example", 403, "permission_error"),
    ],
)
def test_messages_are_refused_in_anthropics_form(port, host, status, kind):
    for path, headers in (("/v1/messages", {}), ("/v1/models", {"anthropic_version": "x"})):
        answer = asked(port, path=path, host=host, **headers)
        assert (answer.status, answer.error["type"]) == (status, kind)
        assert answer.json()["request_id"] == answer.headers["request-id"]


def test_no_key():
    assert asked(KEYED, host="localhost").status == 401


def test_health_needs_no_key():
    assert asked(KEYED, path="/health", host="box.example").status == 200


def preflight(port, page, **headers):
    """Return the answer to a browser that asks whether a page may ask."""
    wanted = {"access_control_request_headers": "authorization,content-type,x-stainless-os"}
    wanted |= {"access_control_request_method": "POST"} | headers
    return asked(port, "OPTIONS", host="localhost", origin=page, **wanted)


@pytest.mark.parametrize("port", PORTS[2:])
def test_pages_of_public_networks_may_be_let_in(port):
    """Their browser asks whether this machine's network may be reached from there."""
    answer = preflight(port, PAGE, access_control_request_private_network="true")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-private-network"] == "true"


@each_port
@pytest.mark.parametrize("page", OWN_PAGES)
def test_pages_of_this_machine_may_ask(page, port):
    """Their browser is answered so, without a key, and shows them the answer, an error too."""
    allowed = preflight(port, page)
    assert allowed.status == 200
    assert allowed.headers["access-control-allow-origin"] == page
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    answer = asked(port, "POST", host="localhost", origin=page)
    assert answer.status == (401 if port.keys else 200)
    assert answer.headers["access-control-allow-origin"] == page


@each_port
@pytest.mark.parametrize("page", OTHER_PAGES)
def test_pages_of_elsewhere_may_not(page, port):
    allowed = preflight(port, page)
    assert allowed.status == (403 if port is OPEN else 400)
    assert "access-control-allow-origin" not in allowed.headers
    answer = asked(port, "POST", host="localhost", origin=page)
    assert answer.status == (401 if port.keys else 403)
    assert "access-control-allow-origin" not in answer.headers


# --- whose a request is


def account_at(port, **headers):
    """Return the account that the daemon is told of a request at a port."""
    daemon = FakeDaemon(*EVENTS)
    raw = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    for name, value in headers.items():
        raw.append((name.replace("_", "-").encode(), value.encode()))
    app = guarded(create_app(daemon, daemon.kept), port)
    body = [b'{"prompt": "x", "max_tokens": 3}']
    asyncio.run(call(daemon, "POST", "/v1/completions", body, app=app, headers=raw))
    [account] = daemon.accounts
    return account


def test_a_key_is_an_account():
    one = account_at(KEYED, authorization="Bearer sk-one")
    assert one == account_at(KEYED, x_api_key="sk-one")
    assert one != account_at(KEYED, authorization="Bearer sk-two")
    assert one[0] == "key"


def test_the_account_of_a_key_is_not_that_of_its_line():
    """If the file changes, another key in its line has nothing of it."""
    alone = replace(KEYED, keys=("sk-two",))
    two = account_at(KEYED, authorization="Bearer sk-two")
    assert account_at(alone, authorization="Bearer sk-two") == two
    assert b"sk-two" not in two[1]


def test_a_port_without_keys_has_no_accounts():
    assert account_at(OPEN) is None
    assert account_at(OPEN, authorization="Bearer sk-one") is None


def test_the_user_at_the_socket_is_an_account(tmp_path):
    daemon = FakeDaemon(*EVENTS)
    with serving_api(tmp_path / "s", daemon):
        answer_to(tmp_path / "s", asking({"prompt": "x"}))
    assert daemon.accounts == [("user", os.getuid())]
