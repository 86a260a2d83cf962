"""E5.

Descriptors, memory, disks and readers come to their ends: nobody aborts, and it serves when there
is room again. Connections that take without giving; daemons whose log cannot be written, commands
whose output cannot be.
"""

import json
import signal
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import pytest
from api_sockets import HEAD, asking
from harness import PATIENCE
from harness.ports import free_port
from peer import greeting
from processes import (
    SPECMESH,
    Stream,
    Usage,
    body,
    command,
    descriptors,
    edited,
    memory,
    until,
    warm,
    writes,
)
from served import Served, many

from specmesh.errors import WentAway

PROMPT = "All good things"
fault = pytest.mark.fault


def few_descriptors(count):
    """`specmesh` that may open so many files."""
    return ["sh", "-c", f'ulimit -n {count} && exec "$@"', "sh", *SPECMESH]


@fault("E5.52")
def test_silent_connections_hold_nothing_up(mesh):
    """They are closed after the time that a handshake may take.

    The verifier's descriptors are as before.
    """
    verifier = mesh.verifier()
    warm(verifier)
    usage = Usage(verifier.pid)
    with many(("127.0.0.1", mesh.port), 500, seconds=0.02) as silent:
        drafter = mesh.drafter()
        writes(verifier, PROMPT, 40, draft_n=4)
        for one in silent:
            one.settimeout(PATIENCE)
            while one.recv(100):
                pass
        drafter.kill()
        usage.unchanged()


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keys"])
@fault("E5.53")
def test_an_announced_giant(mesh, keyed):
    options, mechanism = (), b"NULL"
    if keyed:
        options, mechanism = mesh.new_keys(), b"CURVE"
    verifier = mesh.verifier("", *options)
    before = memory(verifier.pid, "VmSize")
    for flags in (b"\x06", b"\x02"):  # a command, a message
        begun = greeting(mechanism) + flags + struct.pack(">Q", 2**33)
        with many(("127.0.0.1", mesh.port), 1, begun) as [stranger], suppress(ConnectionResetError):
            while stranger.recv(100):
                pass
    # a thread's first allocation reserves addresses, 64 MiB of them
    assert memory(verifier.pid, "VmSize") - before < 2**30
    writes(verifier, PROMPT, 20)


@fault("E5.56")
def test_a_client_that_does_not_read(mesh):
    verifier = mesh.verifier("step_ms=0.2,max_sessions=2")
    with closing(socket.socket(socket.AF_UNIX)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(str(verifier.socket))
        lazy.sendall(asking(body(PROMPT, 3000, stream=True, rounds=True)))
        before = memory(verifier.pid, "VmRSS")

        def generated():
            return int(verifier.stats()["totals"]["generated_tokens"])

        def others_alone():
            """Whether others have a text, and the lazy one no more of its own meanwhile."""
            begun = generated()
            writes(verifier, PROMPT, 100)
            return begun > 0 and generated() == begun + 100

        until(others_alone, "its text waits")
        [waiting] = verifier.stats()["sessions"]["rows"]
        assert waiting["generated_tokens"] < 3000
        assert memory(verifier.pid, "VmRSS") - before < 64 * 2**20
        lazy.settimeout(PATIENCE)
        with lazy.makefile("rb") as answer:
            assert any(line.startswith(b"data: [DONE]") for line in answer)


@pytest.mark.parametrize(
    ("count", "sent"),
    [(150, b""), (300, HEAD + b"Content-Length: 100\r\n\r\n{")],
    ids=["idle", "half a body"],
)
@fault("E5.51")
def test_more_connections_than_descriptors(mesh, count, sent):
    """The port, the socket and drafters are served while they last; the log stays quiet."""
    port = free_port()
    verifier = mesh.verifier("", "--http", f"127.0.0.1:{port}", program=few_descriptors(128))
    with many(("127.0.0.1", port), count, sent), many(verifier.socket, 150, sent):
        for at in (port, 0) * 3:
            assert Served(verifier, at).ask("GET", "/health").status == 200
        mesh.drafter()
        writes(verifier, PROMPT, 20)
    assert not verifier.events("api_trouble")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@fault("E5.51")
def test_no_descriptor_for_a_connection(mesh):
    """Descriptors that the wire's connections hold are missing at the API.

    It tries once a second, logs it as often, and answers as soon as there is one. libzmq aborts in
    some places without one; not in those that we use.
    """
    verifier = mesh.verifier(program=few_descriptors(64))
    stream = Stream(verifier, body(PROMPT, 800))
    with stream, many(("127.0.0.1", mesh.port), 200, seconds=0.02):
        until(lambda: descriptors(verifier.pid) == 64, "the wire has taken all there were")
        with many(verifier.socket, 30):
            until(lambda: len(verifier.events("api_trouble")) >= 3, "it logs that it has none")
        for sooner, later in pairwise(verifier.events("api_trouble")):
            begun = datetime.fromisoformat(sooner["timestamp"])
            passed = datetime.fromisoformat(later["timestamp"]) - begun
            assert passed.total_seconds() > 0.9
        stream.read().checked()
    verifier.ready()
    mesh.drafter()
    writes(verifier, PROMPT, 40, draft_n=4)


def test_a_drafter_that_ends(mesh):
    """Its clients get the reason.

    It is a 503 before the first text, and later an error event in the stream; clients that do not
    read are not waited for. The log is quiet about all of it.
    """
    verifier = mesh.verifier("step_ms=20,max_sessions=3,n_ctx=60000")
    drafter = mesh.drafter("draft_ms=0.5,alpha=0.9,n_ctx=60000", "--drain", 0)
    answers = []

    def ask(stream):
        answers.append(Served(drafter).complete(prompt=PROMPT, max_tokens=50_000, stream=stream))

    def ask_on():
        with suppress(OSError, HTTPException):  # until nobody listens any more, or answers
            while True:
                ask(stream=False)

    unread = asking(body(PROMPT, 50_000, stream=True, rounds=True))
    with many(drafter.socket, 1, unread), ThreadPoolExecutor(16) as clients:
        until(lambda: verifier.live() == 1, "it has begun")
        begun = Stream(drafter, body(PROMPT, 50_000))
        asked = [clients.submit(ask, stream) for stream in (False, True, False)]
        until(lambda: drafter.live() == 3, "those have begun")
        drafter.signal(signal.SIGTERM)
        asked += [clients.submit(ask_on) for _ in range(8)]
        assert drafter.wait() == 0
        for one in asked:
            one.result()
        with pytest.raises(WentAway, match="stopping"):
            begun.read()
    assert len(answers) > 3
    assert 503 in {answer.status for answer in answers}
    for answer in answers:
        assert b"the drafter is stopping" in answer.raw
        if answer.status == 503:
            assert answer.headers["retry-after"] == "1"
        else:
            assert answer.status == 200
            assert answer.raw.rstrip().splitlines()[-1].startswith(b'data: {"error"')
    levels = {json.loads(line)["level"] for line in drafter.text().splitlines()}
    assert levels == {"info"}


NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
CLOSED_PIPE = """
end, into = os.pipe()
os.close(end)
"""
FULL_PIPE = """
end, into = os.pipe()
os.set_blocking(into, False)
try:
    while True: os.write(into, bytes(4096))
except BlockingIOError:
    os.set_blocking(into, True)
"""


@pytest.mark.parametrize(
    ("lines", "role"),
    [
        pytest.param("into = os.open('/dev/full', os.O_WRONLY)", "drafter", marks=NEEDS_FULL),
        (CLOSED_PIPE, "verifier"),
        (FULL_PIPE, "verifier"),
    ],
    ids=["full disk", "closed pipe", "full pipe"],
)
@fault("E5.54", "E8.97")
def test_a_log_that_cannot_be_written(mesh, lines, role):
    program = edited("import os", lines, "os.dup2(into, 2)")
    if role == "verifier":
        mute = mesh.verifier(program=program)
    else:
        mesh.verifier()
        mute = mesh.drafter(program=program)
    writes(mute, PROMPT, 20)
    assert mute.stop() == 0
    assert not mute.text()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
@fault("E8.97")
def test_closed_standard_streams(mesh, closed):
    """Refused: the next file to be opened would take the descriptor, and get their output."""
    shell = f'exec "$@" {closed}'
    done = mesh.cannot_start("verifier", shell=shell)
    assert (done.code, done.out) == (74, "")
    assert ("/dev/null" in done.err) == (closed != "2>&-")


@pytest.fixture(scope="module")
def verifier(shared):
    return shared.verifier()


@NEEDS_FULL
@pytest.mark.parametrize(
    "words", ["generate hi --json", "chat", "stats --watch", "ps", "--version"]
)
@fault("E8.97")
def test_stdout_that_takes_nothing(verifier, words):
    """A full disk gives 74 and one line, if anything was to be printed."""
    path, full = verifier.socket, 'exec "$@" >/dev/full'
    env = {"SPECMESH_SOCKET": str(path), "XDG_RUNTIME_DIR": str(path.parent)}
    done = command(*words.split(), env=env, shell=full, stdin="hi")
    done.refused(74, "cannot write the output")
