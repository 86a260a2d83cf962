"""The two loops in this process, over real sockets, with engines that fail and scripted peers.

Loops that work give signs of life; those that hang give none.
"""

import queue
import threading
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from harness import PATIENCE, loops
from harness.loops import PROMPT, Flaky, ask_for, attach, request, truth, until, welcomed
from harness.tables import cases
from structlog.testing import capture_logs

from specmesh.core.liveness import Link
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.engines.grammar import Grammars
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.errors import EngineError
from specmesh.host import host_id
from specmesh.wire import messages as m

fault = pytest.mark.fault


@fault("E5.57")
def test_engine_failure_ends_the_session_only(bench, role):
    """A step that fails.

    The client gets the engine's error, and the place serves the next request.
    """
    engine = Flaky(max_sessions=1)
    engine.fail_from = len(PROMPT) + 30
    verifier, drafter = bench.pair(engine)
    asked, draft_n, begins = (
        (verifier, 0, "") if role == "verifier" else (drafter, 4, "the verifier's engine failed: ")
    )
    client = asked.ask(request(200, draft_n))
    error = client.error()
    assert (type(error), str(error)) == (EngineError, f"{begins}out of memory")
    assert client.ids == truth(len(client.ids) if draft_n else 31)
    asked.ask(request(3)).whole(3)


class FlakyDrafter(SimDrafter):
    """A draft model that fails after some predictions."""

    left = 3

    def predict(self, asks):
        self.left -= 1
        if self.left < 0:
            raise EngineError("out of memory")
        return super().predict(asks)


def test_draft_engine_failure_changes_nothing(bench):
    """A draft model that fails is given up for that session: the text is whole, at both sockets."""
    verifier = bench.verifier()
    engine = FlakyDrafter(SimSettings())
    drafter = bench.drafter(engine)
    attach(verifier, drafter)
    for asked in (verifier, drafter):
        engine.left = 3
        asked.ask(request(60)).whole(60)


def test_a_hosts_name_is_told_to_those_that_know_it(bench):
    """With it anybody could claim to take all cores of the verifier's host."""
    bench.verifier()
    told = dict.fromkeys(["", "another"], "")
    told[host_id()] = host_id()
    for host in told:
        drafter = bench.dealer(known=False)
        drafter.say(loops.hello(host=host, cpu_threads=1))
        answer = drafter.expect(m.Welcome)
        assert answer.host == told[host]


class HeldTarget(Flaky):
    """A target that is let on by the test, a step at a time."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()
        self.go_on = threading.Semaphore(0)

    def decode(self, spans):
        self.begun.set()
        assert self.go_on.acquire(timeout=PATIENCE)
        return super().decode(spans)


def test_a_first_token_does_not_wait_for_more(bench):
    """Fast tokens do, here for good; the end of a text brings them all."""
    engine = HeldTarget()
    verifier = bench.verifier(engine)
    verifier.dozes(10 * PATIENCE)
    engine.go_on.release(1 + 200)
    verifier.ask(request(200, None)).whole(200)
    engine.go_on.release(1 + 1)
    client = verifier.ask(request(9, None))
    try:
        client.heard(1)
        assert len(client.ids) == 1
    finally:
        engine.go_on.release(10)
    client.whole(9)


# --- texts of a given form


PARAMS = replace(request().params, grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'))


@cases(
    "sampling, why",
    """
    [{"strategy": "probabilistic"}, "strategy probabilistic does not go with a grammar"]
    [{"strategy": "threshold"}, "strategy threshold does not go with a grammar"]
    [{"logit_bias": [[99999, 1.0]]}, "logit_bias names token 99999"]
    """,
)
def test_what_the_target_cannot_go_on_with_is_refused(bench, sampling, why):
    params = replace(PARAMS, sampling=replace(PARAMS.sampling, **sampling))
    error = bench.verifier().ask(replace(request(), params=params)).error()
    assert why in str(error)
    assert error.param in sampling


def test_a_grammar_that_cannot_be_compiled_ends_no_drafter(bench, monkeypatch):
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


def test_a_bye_concerns_its_sender_only(bench):
    """Its own session ends.

    One that it drafted for is another's now, and that one's own goes on.
    """
    engine = Flaky(step_ms=2)
    verifier = bench.verifier(engine, link=partial(Link, silence=1e9))
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
    engine.pace(0)
    assert {staying.expect(m.Done).finish_reason for _ in range(2)} == {"length"}
    client.whole(COUNT)


def test_a_bye_of_a_stranger(bench):
    """Whoever was never attached, or has left, is not asked for a HELLO."""
    verifier = bench.verifier()
    stranger = bench.dealer(known=False)
    for _ in range(2):
        stranger.say(m.Bye(), m.Bye())
        stranger.hello()
        assert isinstance(stranger.expect(m.Welcome, m.Error), m.Welcome)
    assert verifier.stats()["wire"]["handshake_failures"]["hello"] == 0


def test_bye_without_a_welcome(bench):
    router = bench.router()
    drafter = bench.drafter()
    router.expect(m.Hello)
    router.say(m.Bye(), loops.welcome())
    drafter.joins()
    assert drafter.stats()["reconnects"] == 0


class HeldDrafter(SimDrafter):
    """A draft model that is let on by the test, a call at a time."""

    def __init__(self, settings):
        super().__init__(settings)
        self.begun = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)

    def predict(self, asks):
        self.begun.put(sum(len(ask.ids) for ask in asks))
        assert self.go_on.acquire(timeout=PATIENCE)
        return super().predict(asks)


@pytest.fixture
def held(bench):
    """A drafter at the first chunk, of at most 8 ids, of a prompt of 4000, and its verifier."""
    engine = HeldDrafter(SimSettings(n_batch=8))
    router, drafter = welcomed(bench, engine)
    router.opens(5, (65,) * 4000)
    assert engine.begun.get(timeout=PATIENCE) == 8
    yield router, drafter, engine
    engine.go_on.release(10_000)


@fault("E8.91")
def test_a_long_prefill_has_heartbeats(held):
    """The loop turns on while the model is in a step, clients come and go.

    In far too long a step it is silent.
    """
    router, running, engine = held
    for number in range(5):
        stood = running.progress
        router.ping(100 + number)  # or the verifier would take it for dead
        until(lambda stood=stood: running.progress > stood, "the loop turns on")
    client = running.ask(request())
    ref = router.expect(m.Open).ref
    router.say(m.Opened(6, ref, len(PROMPT), {"temperature": 0}))
    router.ping(1)
    running.cancel(client)
    assert router.expect(m.Close).session == 6
    running.stuck_after(0.0)
    router.say(m.Ping(1))
    while (message := router.on_event(0.5)) is not None:  # an answer may have been on its way
        assert not isinstance(message, m.Pong)
    stood = running.progress
    engine.go_on.release(10_000)
    until(lambda: running.progress > stood, "it gets on")


@fault("E8.91")
def test_a_verifier_that_hangs_is_silent(bench):
    """In a step it answers and welcomes.

    Once that has taken far too long it does neither, until it is over.
    """
    engine = HeldTarget()
    verifier = bench.verifier(engine, link=partial(Link, silence=1e9))
    peer = bench.dealer()
    client = verifier.ask(request(20))
    assert engine.begun.wait(PATIENCE)
    peer.ping(1)
    peer.answers = False
    verifier.stuck_after(0.0)
    stood = verifier.progress
    peer.say(m.Ping(2), loops.hello("again"))
    while (message := peer.on_event(0.5)) is not None:  # a PING may have been on its way
        assert not isinstance(message, m.Pong | m.Welcome)
    assert verifier.progress <= stood + 1
    engine.go_on.release(10_000)
    client.whole(20)
    verifier.stuck_after(PATIENCE)
    peer.ping(3)
    until(lambda: verifier.progress > stood + 1, "it gets on")


def test_a_flood_while_a_step_runs(held):
    """The verifier's frames meanwhile are kept up to a bound.

    The rest counts as lost on the wire, and is asked for.
    """
    router, running, engine = held
    known = Prefix((65,) * 4000)
    router.say(*[m.Sync(5, 0, 0, (65,) * 4000, 4)] * 1080)  # 17.3 MB

    def told():
        more = (66,) * 64
        router.say(m.Truth(5, len(known), known.crc, more, 4))
        known.extend(more)

    for _ in range(10):
        told()
    until(lambda: running.stats()["wire"]["rejected"].get("backlog"), "frames are dropped")
    engine.go_on.release(10_000)
    router.expect(m.Draft)
    while not isinstance(asked := router.on_event(0.1), m.Nack):  # the core may be behind still
        told()
    assert 4000 <= asked.base < len(known) - 64
