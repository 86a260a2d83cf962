"""Clients that ask for much of the shared resources, and one that asks for little."""

import json
from math import inf
from queue import SimpleQueue

import pytest
from harness.loops import PATIENCE, Flaky, SlowReader, request

from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.daemons.verifier import daemon
from specmesh.daemons.verifier.daemon import PROMPT_SIZES
from specmesh.engines import grammar
from specmesh.errors import PromptTooLong, RequestError

ALICE = ("alice",)
BOB = ("bob",)
LONG = 8000  # tokens that nobody waits for


def is_long(text):
    return len(text) > 9


def text(prompt, form=None):
    params = SessionParams(SamplingParams(temperature=0), 3, grammar=form)
    return Request(prompt, None, params)


def schema(value):
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


PATTERNS = [f"^.*a{number}.{{0,{3 * number}}}b.*$" for number in range(40)]
SLOW = {"allOf": [{"type": "string", "pattern": pattern} for pattern in PATTERNS]}
"""It takes more than the compiler may."""


def test_prompts_are_encoded_in_turn(bench):
    """One client's many delay another's by one of them."""
    engine = SlowReader(max_sessions=8)
    verifier = bench.verifier(engine)
    mine = [verifier.ask(text(f"a{number}"), ALICE) for number in range(6)]
    assert engine.reading.wait(PATIENCE)
    theirs = verifier.ask(text("b0"), BOB)
    verifier.stats()  # all have been heard
    engine.go_on.set()
    for client in (*mine, theirs):
        client.end()
    assert engine.order.index("b0") <= 2
    engine.order.remove("b0")
    assert engine.order == sorted(engine.order)


def test_a_short_prompt_does_not_wait_for_a_long_one(bench):
    engine = SlowReader(is_long, n_ctx=10 * PROMPT_SIZES[0])
    verifier = bench.verifier(engine)
    mine = verifier.ask(text("a" * PROMPT_SIZES[0]), ALICE)
    assert engine.reading.wait(PATIENCE)
    verifier.ask(text("b"), ALICE).end()  # though it is the same client's
    assert mine.empty()
    engine.go_on.set()
    mine.end()


def test_a_text_that_cannot_fit_is_not_encoded(bench):
    engine = SlowReader(is_long, n_ctx=100)
    error = bench.verifier(engine).ask(text("a" * 5000)).error()
    assert isinstance(error, PromptTooLong)
    assert "your prompt has at least 5000 tokens" in str(error)
    assert engine.order == []


def test_a_small_schema_does_not_wait_for_slow_ones(bench):
    verifier = bench.verifier()
    slow = []
    for number in range(8):
        form = schema(SLOW | {"title": str(number)})
        slow.append(verifier.ask(text("a", form), ALICE))
    verifier.ask(text("b", schema({"type": "integer"})), BOB).end()
    for client in slow:
        assert client.empty()
    cancel(verifier, slow)


def test_a_slow_schema_is_refused(bench, monkeypatch):
    monkeypatch.setattr(grammar, "COMPILE_SECONDS", 0.2)
    error = bench.verifier().ask(text("a", schema(SLOW))).error()
    assert isinstance(error, RequestError)
    assert str(error) == "json_schema takes too much to compile: it took more than 0.2 s"


def cancel(verifier, clients):
    """End sessions that would run until the verifier stops."""
    for client in clients:
        verifier.cancel(client)


ONE_CONNECTION = [ALICE] * 8
ONE_KEY = [("key", connection) for connection in range(8)]


@pytest.mark.parametrize("tenants", [ONE_CONNECTION, ONE_KEY], ids=["connection", "key"])
def test_one_clients_texts_leave_a_session_to_others(bench, tenants):
    """Many connections with one key are one client."""
    verifier = bench.verifier(Flaky(max_sessions=4, step_ms=1))
    mine = [verifier.ask(request(LONG), tenant) for tenant in tenants]
    verifier.ask(request(40), BOB).whole(40)
    cancel(verifier, mine)


@pytest.mark.parametrize("max_sessions", [1, 4])
def test_a_short_text_waits_for_no_long_one(bench, max_sessions):
    verifier = bench.verifier(Flaky(guests=1, max_sessions=max_sessions, step_ms=1))
    busy = [verifier.ask(request(LONG), (number,)) for number in range(max_sessions)]
    for client in busy:
        client.heard(1)
    waiting = verifier.ask(request(LONG), ALICE)
    verifier.ask(request(10), BOB).whole(10)
    assert waiting.empty()
    cancel(verifier, [*busy, waiting])


def test_a_guest_goes_on_where_it_was_left(bench):
    """Its sequence is another's afterwards, and a prompt is cached there as in any."""
    verifier = bench.verifier(Flaky(guests=1, max_sessions=1, step_ms=1))
    long = verifier.ask(request(LONG), ALICE)
    long.heard(1)
    for _ in range(3):
        verifier.ask(request(10), BOB).whole(10)
    verifier.cancel(long)
    verifier.ask(request(300), BOB).whole(300)


@pytest.fixture
def prepared(monkeypatch):
    """Vocabularies that are made ready for grammars."""
    made = SimpleQueue()
    monkeypatch.setattr(grammar, "_tokens_of", made.put)
    return made


def test_the_first_grammar_holds_nobody_up(bench, monkeypatch, prepared):
    """What it needs of the vocabulary takes time of every thread, so it is made before."""
    monkeypatch.setattr(daemon, "PREPARE_AFTER", 0.0)
    target = Flaky()
    bench.verifier(target)
    assert prepared.get(timeout=PATIENCE) == target.vocabulary


def test_nothing_is_prepared_while_a_text_grows(bench, monkeypatch, prepared):
    monkeypatch.setattr(daemon, "PREPARE_AFTER", inf)
    verifier = bench.verifier(Flaky(step_ms=1))
    client = verifier.ask(request(LONG))
    client.heard(1)
    monkeypatch.setattr(daemon, "PREPARE_AFTER", 0.0)
    client.heard(300)  # the loop has looked for what is due meanwhile
    assert prepared.empty()
    verifier.cancel(client)
    prepared.get(timeout=PATIENCE)
