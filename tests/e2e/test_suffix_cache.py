"""`--suffix-cache` over HTTP, with the real daemon: whose earlier outputs draft for whom."""

import pytest
from harness.ports import free_port
from served import Served

ALICE = "sk-alice-of-these-tests"
BOB = "sk-bob-of-these-tests"
TOKENS = 100
MODEL = "step_ms=1"


def start(mesh, *keys):
    """Start a verifier that keeps earlier outputs; return how each key reaches it."""
    file = mesh.folder / "two-keys"
    file.touch(0o600)
    file.write_text("\n".join(keys))
    port = free_port()
    http = ("--http", f"127.0.0.1:{port}", "--api-key-file", file)
    daemon = mesh.verifier(MODEL, "--suffix-cache", 4, *http)
    return daemon, {key: Served(daemon, port, key) for key in keys}


def drafted(served):
    """Return a request's drafts of the suffix source, and how many were accepted."""
    answer = served.complete(max_tokens=TOKENS)
    report = answer.json()["specmesh"]["report"]
    counts = report["by_source"].get("suffix", {})
    return counts.get("drafted", 0), counts.get("accepted", 0)


@pytest.fixture
def two_keys(mesh):
    return start(mesh, ALICE, BOB)


def test_a_key_has_drafts_of_its_own_outputs_only(two_keys):
    """Another key's counts are those of a daemon that has served nobody."""
    daemon, by_key = two_keys
    first = drafted(by_key[ALICE])
    _, accepted = drafted(by_key[ALICE])
    assert accepted > TOKENS / 2
    assert drafted(by_key[BOB]) == first
    assert drafted(Served(daemon)) == first


def test_the_user_of_the_socket_is_an_owner(two_keys):
    daemon, by_key = two_keys
    first = drafted(Served(daemon))
    _, accepted = drafted(Served(daemon))
    assert accepted > TOKENS / 2
    assert drafted(by_key[ALICE]) == first


def test_a_removed_key_leaves_nothing(mesh, two_keys):
    """Keys change with a start. One that comes back, or has another's line, begins anew."""
    daemon, by_key = two_keys
    first = drafted(by_key[ALICE])
    drafted(by_key[ALICE])
    daemon.stop()
    daemon, by_key = start(mesh, BOB)
    assert drafted(by_key[BOB]) == first
    daemon.stop()
    _, by_key = start(mesh, ALICE)
    assert drafted(by_key[ALICE]) == first


def test_metrics(two_keys):
    _, by_key = two_keys
    drafted(by_key[ALICE])
    lines = by_key[ALICE].ask("GET", "/metrics").raw.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["specmesh_suffix_cache_tokens"]) == TOKENS
    assert float(values["specmesh_suffix_cache_bytes"]) > 0
