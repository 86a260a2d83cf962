"""A proxy between the two counts bytes, delays, swallows and cuts: the text stays the same and the wire stays small."""

from collections.abc import Callable

import pytest
from processes import Daemon, Mesh, Stream, body, complete, sim_text, until
from proxy import Proxy

PROMPT = "The network is reliable"
BYTES_PER_TOKEN = 120


def linked(mesh: Mesh, made: Proxy, drafter: str = "draft_ms=1,alpha=0.75") -> Daemon:
    """A drafter that reaches the mesh's verifier through the proxy."""
    return mesh.drafter(drafter, port=made.port)


def quiet(proxy: Proxy, daemon: Daemon) -> int:
    """The proxy's byte count once the session has ended on both sides."""
    until(lambda: daemon.live() == 0, "the session ends")
    return proxy.total


@pytest.mark.parametrize("draft_n", ["auto", 1, 4])
@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_wire_bytes_per_token(counted: tuple[Proxy, dict[str, Daemon]], role: str, draft_n: object):
    """Sent + received stay under 120 bytes per generated token, counted on the socket, drafts streamed as they come."""
    proxy, pair = counted
    before = quiet(proxy, pair["drafter"])
    stream = complete(pair[role], body(PROMPT, 300, draft_n=draft_n))
    used = quiet(proxy, pair["drafter"]) - before
    assert stream.text == sim_text(PROMPT, 300)
    assert sum(stream.accepted) > 0
    assert 0 < used / 300 < BYTES_PER_TOKEN


def test_told_bytes_are_those_on_the_socket(counted: tuple[Proxy, dict[str, Daemon]]):
    """The report's bytes_sent + bytes_received are the socket's, less ZMTP's framing and heartbeats."""
    proxy, pair = counted
    before = quiet(proxy, pair["drafter"])
    stream = complete(pair["verifier"], body(PROMPT, 300, draft_n=4))
    used = quiet(proxy, pair["drafter"]) - before
    report = stream.result["report"]
    told = report["bytes_sent"] + report["bytes_received"]  # type: ignore[index]
    assert 0.7 * used < told < used


def test_no_draft_costs_nothing_on_the_wire(counted: tuple[Proxy, dict[str, Daemon]]):
    """A session without drafts sends its drafter nothing: what crosses are heartbeats."""
    proxy, pair = counted
    before = quiet(proxy, pair["drafter"])
    complete(pair["verifier"], body(PROMPT, 100, draft_n=0))
    assert quiet(proxy, pair["drafter"]) - before < 1000


@pytest.fixture(scope="module")
def counted(shared: Mesh) -> "tuple[Proxy, dict[str, Daemon]]":
    """A pair joined by a counting proxy: a step of 8 ms, a draft of 1 ms, 3 of 4 drafts right."""
    verifier = shared.verifier("step_ms=8")
    made = Proxy(shared.port)
    yield made, {"verifier": verifier, "drafter": linked(shared, made)}
    made.close()


@pytest.mark.parametrize("delay", [0.02])
def test_delay_changes_only_the_time(mesh: Mesh, proxy: Callable[..., Proxy], delay: float):
    """A round trip of 40 ms: the same text at both sockets, with fixed and adaptive draft_n."""
    verifier = mesh.verifier("step_ms=4")
    drafter = linked(mesh, proxy(mesh.port, delay))
    for daemon in (verifier, drafter):
        assert complete(daemon, body(PROMPT, 100)).text == sim_text(PROMPT, 100)
    fixed = complete(verifier, body(PROMPT, 60, draft_n=4))
    assert fixed.text == sim_text(PROMPT, 60)
    assert sum(fixed.accepted) > 0


def test_cut_connection_drafting_resumes(mesh: Mesh, proxy: Callable[..., Proxy]):
    """Reset connections mid-generation: the same text, and drafts are accepted again in the same session."""
    verifier, link = mesh.verifier("step_ms=10"), proxy(mesh.port)
    linked(mesh, link, "draft_ms=0.5,alpha=1")
    with Stream(verifier, body(PROMPT, 4000, draft_n=4)) as stream:
        for cuts in range(3):
            known = len(stream.accepted)
            stream.read(while_=lambda known=known: sum(stream.accepted[known:]) < 8)
            link.cut()
            until(lambda cuts=cuts: link.connections > cuts + 1, "it connects again")
        known = len(stream.accepted)
        stream.read(while_=lambda: sum(stream.accepted[known:]) < 8)
    assert stream.text == sim_text(PROMPT, len(stream.ids))


def test_cut_connection_with_the_client_at_the_drafter(mesh: Mesh, proxy: Callable[..., Proxy]):
    """A reset connection, client on the drafter's socket: the text goes on, unless that is not wanted; then it is right
    as far as it comes. The next request works."""
    mesh.verifier("step_ms=10")
    link = proxy(mesh.port)
    drafter = linked(mesh, link, "draft_ms=0.5,alpha=1")
    with Stream(drafter, body(PROMPT, 300)) as stream:
        stream.read(5)
        link.cut()
        assert stream.read().text == sim_text(PROMPT, 300)
    with Stream(drafter, body(PROMPT, 300, reconnect_timeout=0)) as stream:
        stream.read(5)
        link.cut()
        with pytest.raises(Exception, match="verifier"):
            stream.read()
    assert sim_text(PROMPT, 300).startswith(stream.text)
    drafter.ready()
    assert complete(drafter, body(PROMPT, 30)).text == sim_text(PROMPT, 30)


def test_blackhole_goes_on_alone_and_heals(mesh: Mesh, proxy: Callable[..., Proxy]):
    """A network that swallows everything: the text goes on alone; when it heals, drafting does too."""
    verifier, link = mesh.verifier("step_ms=5"), proxy(mesh.port)
    drafter = linked(mesh, link)
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        stream.read(while_=lambda: sum(stream.accepted) < 10)
        link.hold()
        stream.read(100)
        until(lambda: not verifier.stats()["peers"], "the drafter is given up", 10)
        link.release()
        mesh.attached(drafter)
        known = len(stream.accepted)
        stream.read(while_=lambda: sum(stream.accepted[known:]) < 10)
    assert stream.text == sim_text(PROMPT, len(stream.ids))


def test_alone_it_is_not_held_up(mesh: Mesh, proxy: Callable[..., Proxy]):
    """Into a black hole an adaptive session waits for drafts no longer than a bounded share of its time."""
    verifier, link = mesh.verifier("step_ms=5"), proxy(mesh.port)
    linked(mesh, link, "draft_ms=0.5,alpha=1")
    with Stream(verifier, body(PROMPT, 400)) as stream:
        stream.read(10)
        link.hold()
        stream.read()
    report = stream.result["report"]
    assert stream.text == sim_text(PROMPT, 400)
    assert report["wait_ms"] <= 0.2 * report["verify_ms"]  # type: ignore[index]


def test_ids_as_a_prompt_over_a_slow_link(mesh: Mesh, proxy: Callable[..., Proxy]):
    """A prompt of token ids, asked for at the drafter's socket: the same text as the prompt's."""
    mesh.verifier("step_ms=2")
    drafter = linked(mesh, proxy(mesh.port, 0.01))
    stream = complete(drafter, body(list(PROMPT.encode()), 80))
    assert stream.text == sim_text(PROMPT, 80)
    assert stream.result["prompt_token_ids"] == list(PROMPT.encode())
