"""The two loops in this process, over real sockets, with engines that fail and peers that are scripted."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from harness import PATIENCE
from harness.loops import PROMPT, Bench, Flaky, FlakyDrafter, ask_for, attach, request, truth, until, welcome, welcomed
from structlog.testing import capture_logs

from specmesh.core.events import Span
from specmesh.core.link import Link
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.engines.base import host_id
from specmesh.engines.grammar import Grammars
from specmesh.engines.sim import SimSettings
from specmesh.errors import EngineError
from specmesh.wire import messages as m


@pytest.mark.fault("E5.57")
def test_engine_failure_ends_the_session_only(bench: Bench, role: str):
    """A step that fails: the client gets the engine's error, and the place serves the next request."""
    engine = Flaky(SimSettings(max_sessions=1))
    engine.fail_from = len(PROMPT) + 30
    verifier, drafter = bench.pair(engine)
    asked, draft_n, begins = (verifier, 0, "") if role == "verifier" else (drafter, 4, "the verifier's engine failed: ")
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


def test_a_first_token_does_not_wait_for_more(bench: Bench):
    """Where tokens come fast they do, here for good; the end of a text brings them all."""
    engine = Held(SimSettings())
    verifier = bench.verifier(engine)
    verifier.dozes(10 * PATIENCE)
    verifier.ask(request(200, None)).whole(200)
    engine.holds = True
    client = verifier.ask(request(9, None))
    try:
        client.heard(1)
        assert len(client.ids) == 1
    finally:
        engine.go_on.set()
    client.whole(9)


# --- texts of a given form


PARAMS = replace(request().params, grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'))


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        ({"strategy": "probabilistic"}, "strategy probabilistic does not go with a grammar"),
        ({"strategy": "threshold"}, "strategy threshold does not go with a grammar"),
        ({"logit_bias": ((99999, 1.0),)}, "logit_bias names token 99999"),
    ],
)
def test_what_the_target_cannot_go_on_with_is_refused(bench: Bench, sampling: dict[str, object], why: str):
    params = replace(PARAMS, sampling=replace(PARAMS.sampling, **sampling))
    error = bench.verifier().ask(replace(request(), params=params)).error()
    assert why in str(error)
    assert error.param in sampling


def test_a_grammar_that_cannot_be_compiled_ends_no_drafter(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Its drafts go without."""
    monkeypatch.setattr(Grammars, "compile", Mock(side_effect=RuntimeError("a defect")))
    router, _ = welcomed(bench)
    with capture_logs() as said:
        router.say(m.Opened(5, 0, len(PROMPT), PARAMS.named()), m.Sync(5, 0, 0, PROMPT, 4))
        assert router.expect(m.Draft).session == 5
        until(lambda: "grammar_unknown" in {line["event"] for line in said}, "it is said")


# --- a loop that stops: what becomes of its texts, and of those of the other


COUNT = 2000
"""Ids of a text that is still told when another drafter has come."""


def test_a_bye_concerns_its_sender_only(bench: Bench):
    """Its own session ends; one that it drafted for is another's now, and that one's own goes on."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)), link=partial(Link, silence=1e9))
    leaving = bench.dealer()
    client = verifier.ask(request(COUNT, None))
    announced = leaving.expect(m.Opened)
    staying = bench.dealer()
    leaving.say(ask_for(1, ids=PROMPT, max_tokens=8000))
    staying.say(ask_for(2, ids=PROMPT, max_tokens=COUNT))
    leaving.expect(m.Opened)
    assert staying.expect(m.Opened).ref == 2
    leaving.say(m.Bye(), m.Bye())
    again = staying.expect(m.Opened)
    assert (again.session, again.ref) == (announced.session, 0)
    assert [peer["drafter"] for peer in verifier.stats()["peers"]] == ["scripted"]
    assert {staying.expect(m.Done).finish_reason for _ in range(2)} == {"length"}
    client.whole(COUNT)


def test_a_bye_of_a_stranger(bench: Bench):
    """Whoever was never attached, or has left, is not asked for a HELLO."""
    verifier, stranger = bench.verifier(), bench.dealer(known=False)
    for _ in range(2):
        stranger.say(m.Bye(), m.Bye())
        stranger.hello()
        assert isinstance(stranger.expect(m.Welcome, m.Error), m.Welcome)
    assert verifier.stats()["wire"]["handshake_failures"]["hello"] == 0


def test_bye_without_a_welcome(bench: Bench):
    router = bench.router()
    drafter = bench.drafter()
    router.expect(m.Hello)
    router.say(m.Bye(), welcome())
    until(lambda: drafter.welcome, "it is welcome")
    assert drafter.stats()["reconnects"] == 0
