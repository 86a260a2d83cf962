"""A proxy between the two counts bytes: the wire stays small."""

import time

import pytest
from processes import Daemon, Mesh, Stream, body, complete, sim_text, until
from proxy import Proxy

PROMPT = "The network is reliable"
BYTES_PER_TOKEN = 120


def quiet(proxy: Proxy, daemon: Daemon) -> int:
    """The proxy's byte count once the session has ended on both sides."""
    until(lambda: daemon.live() == 0, "the session ends")
    return proxy.total


@pytest.mark.parametrize("draft_n", ["auto", 1, 4])
def test_wire_bytes_per_token(counted: tuple[Proxy, dict[str, Daemon]], role: str, draft_n: object):
    """Sent + received stay under 120 bytes per generated token, counted on the socket, drafts streamed as they come;
    the verifier's report has the socket's, less ZMTP's framing and heartbeats."""
    proxy, pair = counted

    def counted_text() -> tuple[Stream, float] | None:
        before = quiet(proxy, pair["drafter"])
        stream = complete(pair[role], body(PROMPT, 300, draft_n=draft_n))
        used = quiet(proxy, pair["drafter"]) - before
        assert stream.text == sim_text(PROMPT, 300)
        return (stream, used) if sum(stream.accepted) else None

    stream, used = until(counted_text, "drafts stand")
    assert 0 < used / 300 < BYTES_PER_TOKEN
    if (role, draft_n) == ("verifier", 4):
        report = stream.result["report"]
        assert 0.7 * used < report["bytes_sent"] + report["bytes_received"] < used


def test_no_draft_costs_nothing_on_the_wire(counted: tuple[Proxy, dict[str, Daemon]]):
    """A session without drafts sends its drafter nothing: what crosses are heartbeats."""
    proxy, pair = counted
    before, begun = quiet(proxy, pair["drafter"]), time.monotonic()
    report = complete(pair["verifier"], body(PROMPT, 200, draft_n=0)).result["report"]
    assert (report["bytes_sent"], report["bytes_received"]) == (0, 0)
    used = quiet(proxy, pair["drafter"]) - before
    heartbeats = 2500 + 600 * (time.monotonic() - begun)  # frames of 120 bytes: four a second, and some as they meet
    assert used < heartbeats  # the text would take 5,200 more


@pytest.fixture(scope="module")
def counted(shared: Mesh) -> "tuple[Proxy, dict[str, Daemon]]":
    """A pair joined by a counting proxy: a step of 8 ms, a draft of 1 ms, 3 of 4 drafts right."""
    verifier = shared.verifier("step_ms=8")
    made = Proxy(shared.port)
    yield made, {"verifier": verifier, "drafter": shared.drafter("draft_ms=1,alpha=0.75", port=made.port)}
    made.close()
