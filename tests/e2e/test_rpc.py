"""A target whose layers are on two other servers, by llama.cpp's RPC: the same text, and who computes is told."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from harness.ports import free_port
from processes import Mesh, Running, body, command, complete, drafted, until

pytestmark = pytest.mark.models

PROMPTS = ("def read_config(path):", "class Stack:")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    running = [Running("rpc-server", "--bind", address, "--threads", 1) for address in addresses]
    try:
        for address, server in zip(addresses, running, strict=True):
            until(partial(_listens, address, server), f"{address} listens")
        yield addresses
    finally:
        for server in running:
            server.process.kill()
            server.end()


def _listens(address: str, server: Running) -> bool:
    assert server.process.poll() is None, server.end()
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1.0):
        return True
    return False


def test_split_over_two_servers(shared: Mesh, servers: list[str]):
    """Every layer is elsewhere, and the text is that of one machine; with drafts too. The backend names the devices, in
    stats as in the log."""
    plain = shared.verifier("bundled", engine="llama", name="plain")
    expected = [complete(plain, body(prompt, 48)).ids for prompt in PROMPTS]
    plain.stop()
    split = shared.verifier("bundled", "--rpc", ",".join(servers), engine="llama", name="split")
    assert [complete(split, body(prompt, 48)).ids for prompt in PROMPTS] == expected
    backend = str(split.stats()["model"]["backend"])
    assert all(f"RPC{number}: {address}" in backend for number, address in enumerate(servers))
    assert backend.endswith("layers")
    assert split.events("ready")[0]["backend"] == backend
    shown = command("stats", "--socket", split.socket)
    assert servers[1] in shown.out
    shared.drafter("bundled", engine="llama")
    assert drafted(split, body(PROMPTS[0], 48, draft_n=4)).ids == expected[0]


def test_what_cannot_be(shared: Mesh):
    """A server that is not there, or beyond this machine: 78, one line, before the model is loaded."""
    for address, words in (("127.0.0.1:1", "rpc-server"), ("192.0.2.1:50052", "--insecure-rpc")):
        shared.cannot_start("verifier", "--engine", "llama", "--model", "bundled", "--rpc", address).refused(78, words)
    assert command("rpc-server", "--bind", "192.0.2.1:50052").code == 78
