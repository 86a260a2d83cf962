"""E1: a network that damages what it carries: any bit of any frame, ZeroMQ's own framing too, costs time only."""

from collections.abc import Callable

import pytest
from processes import Mesh, Stream, body, sim_text, until
from proxy import Proxy

from specmesh.security.keys import KeyFolder

PROMPT = "What one bit can do"


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
@pytest.mark.fault("E1.16")
def test_flipped_bits_cost_time_only(mesh: Mesh, proxy: Callable[..., Proxy], keyed: bool):
    folder = KeyFolder(mesh.folder / "keys")
    if keyed:
        folder.new()
    keys = ("--keys", folder.path) if keyed else ()
    verifier, link = mesh.verifier("step_ms=1", *keys), proxy(mesh.port)
    drafter = mesh.drafter("draft_ms=0.2,alpha=0.8", *keys, port=link.port)
    link.damage, texts = 0.05, 0
    while link.flipped < (4 if keyed else 16) or texts < 4:
        for daemon in (drafter, verifier):
            asked = body(PROMPT, 100 + texts, draft_n=4)
            stream = until(lambda daemon=daemon, asked=asked: Stream(daemon, asked), "it is attached and begins")
            assert stream.read().text == sim_text(PROMPT, 100 + texts)
            texts += 1
    rejected = [daemon.stats()["wire"]["rejected"] for daemon in (drafter, verifier)]
    assert keyed or sum(reasons.get("checksum", 0) for reasons in rejected) > 0  # CURVE ends the connection instead
    assert drafter.process.poll() is verifier.process.poll() is None


@pytest.mark.fault("E1.16")
def test_a_flipped_bit_in_a_told_id(mesh: Mesh, proxy: Callable[..., Proxy]):
    mesh.verifier("step_ms=1")
    link = proxy(mesh.port)
    drafter = mesh.drafter("draft_ms=0.2,alpha=0.8", port=link.port)
    link.aim, link.damage = (b"\x02", 20), 0.2
    done = Stream(drafter, body(PROMPT, 300, draft_n=4)).read()
    assert link.flipped > 10
    assert done.text == sim_text(PROMPT, 300)
    assert done.result["report"]["exact"] is True
    assert not drafter.events("verifier_lost")
