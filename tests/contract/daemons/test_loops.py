"""The two loops in this process, over real sockets, with engines that fail and peers that are scripted."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from harness.loops import PATIENCE, PROMPT, Bench, Flaky, FlakyDrafter, attach, request, truth

from specmesh.core.events import Span
from specmesh.core.requests import Finished, Request
from specmesh.daemons.runtime import loops
from specmesh.engines.base import host_id
from specmesh.engines.sim import SimSettings
from specmesh.errors import EngineError, PromptTooLong, RequestError, SpecmeshError
from specmesh.wire import messages as m


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (request(ids=()), RequestError),
        (request(ids=(256,)), RequestError),
        (request(ids=(-1,)), RequestError),
        (request(ids=(65,) * 8192), PromptTooLong),
    ],
    ids=["empty", "id too large", "id negative", "too long"],
)
def test_requests_that_cannot_be(bench: Bench, what: Request, error: type[SpecmeshError]):
    verifier = bench.verifier()
    assert type(verifier.ask(what).error()) is error
    assert isinstance(verifier.ask(request(3)).end(), Finished)


@pytest.mark.parametrize("socket_of", ["verifier", "drafter"])
@pytest.mark.fault("E5.57")
def test_engine_failure_ends_the_session_only(bench: Bench, socket_of: str):
    """A step that fails: the client gets the engine's error, and the place serves the next request."""
    engine = Flaky(SimSettings(n_seq=1))
    engine.fail_from = len(PROMPT) + 30
    verifier, drafter = bench.pair(engine)
    asked, draft_n, begins = (
        (verifier, 0, "") if socket_of == "verifier" else (drafter, 4, "the verifier's engine failed: ")
    )
    client = asked.ask(request(200, draft_n))
    error = client.error()
    assert (type(error), str(error)) == (EngineError, f"{begins}out of memory")
    assert client.ids == truth(len(client.ids) if draft_n else 31)
    asked.ask(request(3)).whole(3)


def test_draft_engine_failure_changes_nothing(bench: Bench):
    """A draft model that fails is given up for that session: the text is whole, at both sockets."""
    verifier = bench.verifier()
    engine = FlakyDrafter(SimSettings())
    drafter = bench.drafter(engine)
    attach(verifier, drafter)
    for asked in (verifier, drafter):
        engine.left = 3
        client = asked.ask(request(60))
        client.whole(60)


def test_a_hosts_name_is_told_to_those_that_know_it(bench: Bench):
    """With it anybody could claim to take all cores of the verifier's host."""
    bench.verifier()
    for host, told in ((host_id(), host_id()), ("", ""), ("another", "")):
        drafter = bench.dealer(known=False)
        drafter.say(m.Hello("scripted", "scripted", "none", "", 0, 4096, host, 1))
        answer = drafter.expect(m.Welcome)
        assert answer.host == told


class Held(Flaky):
    """A target that stops after a step with logits, once it is to."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.holds, self.go_on = False, threading.Event()
        self._said = False

    def decode(self, spans: Sequence[Span]) -> list[Any]:
        if self.holds and self._said:
            assert self.go_on.wait(PATIENCE)
        self._said = self.holds and any(span.logits for span in spans)
        return super().decode(spans)


def test_a_first_token_does_not_wait_for_more(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Where tokens come fast they do, here for good; the end of a text brings them all."""
    monkeypatch.setattr(loops, "DOZE", 10 * PATIENCE)
    engine = Held(SimSettings())
    verifier = bench.verifier(engine)
    verifier.ask(request(200, None)).whole(200)
    engine.holds = True
    client = verifier.ask(request(9, None))
    try:
        client.heard(1)
        assert len(client.ids) == 1
    finally:
        engine.go_on.set()
    client.whole(9)
