"""Texts of 100,000 ids between the two daemons: opened, resumed, drafted for."""

from dataclasses import replace

import pytest
from harness.loops import Flaky, ScriptedDrafter, ask_for, attach, request, welcomed
from named_texts import NAME, asked

from specmesh.core.requests import Finished, frames_of

from specmesh.errors import RequestError
from specmesh.wire import messages as m

PROMPT = tuple(32 + at % 95 for at in range(100_000))
N_CTX = 2**17


def long_target(step_ms: float = 2) -> Flaky:
    """Return a target for long texts."""
    return Flaky(n_ctx=N_CTX, n_batch=16384, step_ms=step_ms)


def order(ref: int = 1, max_tokens: int = 20) -> m.Open:
    """Return an OPEN with the whole prompt in it, which no frame holds."""
    return replace(ask_for(ref, ids=PROMPT, max_tokens=max_tokens), n_prompt=len(PROMPT), name=NAME)


def refused(peer: ScriptedDrafter, *frames: m.Message) -> str:
    """Return the code of the error that answers an OPEN."""
    peer.say(*frames)
    return peer.expect(m.Error, m.Opened).code


def test_a_text_of_a_dead_verifier_goes_on(bench):
    """The next one gets all of its ids again, and its client the rest of the text, once."""
    verifier = bench.verifier(long_target(), drain=0.0)
    drafter = bench.drafter()
    attach(verifier, drafter)
    client = drafter.ask(replace(asked(300), prompt_ids=PROMPT))
    client.heard(20)
    bench.end(verifier)
    again = bench.verifier(long_target())
    end = client.end()
    assert isinstance(end, Finished), end
    assert 0 < end.report["resumed_tokens"] < 300
    alone = again.ask(request(300, 0, ids=PROMPT))
    alone.end()
    assert client.ids == alone.ids


def test_ids_that_came_before_an_open_are_its_text(bench):
    bench.verifier(long_target())
    peer = bench.dealer()
    peer.say(*frames_of(order()))
    opened = peer.expect(m.Opened)
    assert (opened.ref, opened.prompt_tokens) == (1, len(PROMPT))
    peer.expect(m.Done)
    assert tuple(peer.truth[: len(PROMPT)]) == PROMPT


@pytest.mark.parametrize("lost", [0, 5, -2], ids=["first", "in the middle", "last"])
def test_an_open_whose_ids_did_not_all_come_may_be_sent_again(bench, lost):
    bench.verifier(long_target())
    peer = bench.dealer()
    frames = frames_of(order())
    whole = frames_of(order(ref=2))
    del frames[lost]
    assert refused(peer, *frames) == "busy"
    peer.say(*whole)
    assert peer.expect(m.Opened).ref == 2


def test_ids_are_forgotten_with_their_drafter(bench):
    bench.verifier(long_target())
    peer = bench.dealer()
    *frames, end = frames_of(order())
    peer.say(*frames, m.Bye())
    peer.hello("again")
    peer.expect(m.Welcome)
    assert refused(peer, end) == "busy"


def test_more_ids_than_a_session_can_have(bench):
    bench.verifier()
    assert refused(bench.dealer(), *frames_of(order())) == "context"


def test_a_drafter_sends_ids_before_its_open(bench):
    router, drafter = welcomed(bench, n_ctx=N_CTX, takes_ids=True)
    drafter.ask(request(ids=PROMPT))
    ids: list[int] = []
    while not isinstance(frame := router.expect(m.Ids, m.Open), m.Open):
        assert frame.base == len(ids)
        ids += frame.ids
    assert tuple(ids) == PROMPT
    assert (frame.n_ids, frame.n_prompt, frame.ids) == (len(PROMPT), len(PROMPT), [])


def test_a_verifier_that_takes_none(bench):
    """The client gets the reason at once."""
    _, drafter = welcomed(bench, n_ctx=N_CTX)
    error = drafter.ask(request(ids=2 * PROMPT)).error()
    assert isinstance(error, RequestError)
    assert "longer than what a drafter can pass on" in str(error)
