"""Connections that take without giving: idle, half-sent, unread. Others are served as if they were not there."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from processes import (
    PATIENCE,
    SPECMESH,
    Mesh,
    body,
    complete,
    free_port,
    generate,
    request_raw,
    sim_text,
    until,
)

PROMPT = "All good things"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connected(address: "tuple[str, int] | Path") -> socket.socket:
    made = socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET)
    made.settimeout(PATIENCE)
    made.connect(str(address) if isinstance(address, Path) else address)
    return made


@contextmanager
def many(address: "tuple[str, int] | Path", count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """So many connections that send this and no more."""
    with ExitStack() as opened:
        made = []
        for _ in range(count):
            made.append(opened.enter_context(closing(connected(address))))
            with suppress(ConnectionError):
                made[-1].sendall(sent)
        yield made


def health(port: int) -> bytes:
    """The first line of what a fresh connection over TCP gets."""
    with closing(connected(("127.0.0.1", port))) as fresh:
        fresh.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: fresh.recv(65536), b"")).split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("count", "sent"),
    [(150, b""), (300, HEAD), (300, HEAD + b"Content-Length: 100\r\n\r\n{")],
    ids=["idle", "half a head", "half a body"],
)
@pytest.mark.fault("E5.51")
def test_more_connections_than_descriptors(mesh: Mesh, count: int, sent: bytes):
    """The port, the socket and drafters are served while they last; the log says nothing of them."""
    port, log = free_port(), mesh.folder / "log"
    few = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *SPECMESH]
    model = ("--engine", "sim", "--model", "step_ms=4", "--bind", mesh.address, "--threads", 1)
    verifier = mesh.start("verifier", *model, "--http", f"127.0.0.1:{port}", "--log-file", log, program=few).ready()
    with many(("127.0.0.1", port), count, sent), many(verifier.socket, 150, sent):
        for _ in range(3):
            assert health(port) == b"HTTP/1.1 200 OK"
            assert request_raw(verifier.socket, "GET", "/health")[0] == 200
        mesh.drafter()
        assert generate(verifier, PROMPT, "--max-tokens", 20).out == sim_text(PROMPT, 20) + "\n"
    assert "api_trouble" not in log.read_text()


def test_no_descriptor_for_a_connection(mesh: Mesh):
    """What the wire's connections have taken is missing at the API: it tries once a second, says so as often, and
    answers as soon as there is one."""
    model = ("--engine", "sim", "--model", "step_ms=4", "--bind", mesh.address, "--threads", 1)
    few = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *SPECMESH]
    verifier = mesh.start("verifier", *model, program=few).ready()
    with many(("127.0.0.1", mesh.port), 100, b""), many(verifier.socket, 30, b""):
        until(lambda: len(verifier.events("api_trouble")) >= 3, "it says that it has no descriptor")
        times = [datetime.fromisoformat(str(one["timestamp"])).timestamp() for one in verifier.events("api_trouble")]
        assert all(later - sooner > 0.9 for sooner, later in pairwise(times))
    assert request_raw(verifier.socket, "GET", "/health")[0] == 200


def asking(request: dict[str, object]) -> bytes:
    raw = json.dumps(request).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(raw), raw)


@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.fault("E5.56")
def test_streams_that_nobody_reads(mesh: Mesh, role: str):
    """They have all the sessions: who reads gets a session long before their texts end."""
    verifier = mesh.verifier("step_ms=1,n_seq=2,n_ctx=60000")
    daemon = verifier if role == "verifier" else mesh.drafter()
    unread = asking(body(PROMPT, 50_000, stream=True, rounds=True))
    with many(daemon.socket, 2, unread) as lazy:
        until(lambda: verifier.live() == 2, "all sessions are taken")
        assert complete(daemon, body(PROMPT, 40)).text == sim_text(PROMPT, 40)
        ends = [end for end in verifier.events("session_finished") if end["tokens"] != 40]
        assert {end["reason"] for end in ends} == {"cancelled"}
        answer = b""
        with suppress(TimeoutError):
            lazy[0].settimeout(5.0)
            while b"not read" not in answer[-2000:]:
                answer += lazy[0].recv(65536)
        assert b"this stream was not read" in answer
