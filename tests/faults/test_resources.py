"""E5: descriptors, memory, readers come to their ends: nobody aborts, and it serves when there is room again."""

import socket
import struct
from contextlib import closing, suppress

import pytest
from peer import greeting
from processes import PATIENCE, Mesh, body, complete, sim_text, until
from served import asking, many
from usage import Usage

from specmesh.security.keys import KeyFolder

PROMPT = "All good things"
fault = pytest.mark.fault


@fault("E5.52")
def test_silent_connections_hold_nothing_up(mesh: Mesh):
    """They are closed after the time that a handshake may take; the verifier's descriptors are as before."""
    verifier = mesh.verifier()
    complete(verifier, body(PROMPT, 40))
    usage = Usage(verifier.pid)
    with many(("127.0.0.1", mesh.port), 500, seconds=0.02) as silent:
        drafter = mesh.drafter()
        assert complete(verifier, body(PROMPT, 40, draft_n=4)).text == sim_text(PROMPT, 40)
        for one in silent:
            one.settimeout(PATIENCE)
            while one.recv(100):
                pass
        drafter.kill()
        usage.unchanged()


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keys"])
@fault("E5.53")
def test_an_announced_giant(mesh: Mesh, keyed: bool):
    if keyed:
        KeyFolder(mesh.folder / "keys").new()
    verifier = mesh.verifier("step_ms=2", *(("--keys", mesh.folder / "keys") if keyed else ()))
    usage = Usage(verifier.pid)
    before = usage.memory("VmSize")
    for flags in (b"\x06", b"\x02"):  # a command, a message
        with closing(socket.create_connection(("127.0.0.1", mesh.port), timeout=PATIENCE)) as stranger:
            stranger.sendall(greeting(b"CURVE" if keyed else b"NULL") + flags + struct.pack(">Q", 2**33))
            with suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass
    assert usage.memory("VmSize") - before < 2**30  # a thread's first allocation reserves addresses, 64 MiB of them
    assert complete(verifier, body(PROMPT, 20)).text == sim_text(PROMPT, 20)


@fault("E5.56")
def test_a_client_that_does_not_read(mesh: Mesh):
    verifier = mesh.verifier("step_ms=0.2,max_sessions=2")
    with closing(socket.socket(socket.AF_UNIX)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(str(verifier.socket))
        lazy.sendall(asking(body(PROMPT, 3000, stream=True, rounds=True)))
        before = Usage(verifier.pid).memory("VmRSS")
        until(lambda: verifier.stats()["totals"]["generated_tokens"] >= 3000, "its text is made")
        assert complete(verifier, body(PROMPT, 100)).text == sim_text(PROMPT, 100)
        assert Usage(verifier.pid).memory("VmRSS") - before < 64 * 2**20
        lazy.settimeout(PATIENCE)
        answer = b""
        while b"data: [DONE]" not in answer[-100:]:
            more = lazy.recv(65536)
            assert more, answer[-100:]
            answer += more
