"""Texts of a given form, through the two loops in this process."""

import json
from dataclasses import replace

import pytest
from harness.loops import Bench, Hearing, Running, attach, request, until
from structlog.testing import capture_logs

from specmesh.api.requests import Finished, Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.daemons.drafter.draft_session import DraftGrammars, DraftSession
from specmesh.engines.grammar import GrammarConstraint, Grammars
from specmesh.engines.sim import SimDrafter, SimSettings, SimVerifier
from specmesh.errors import RequestError

SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "object",
            "properties": {"names": {"type": "array", "items": {"enum": ["ann", "bo"]}, "minItems": 3, "maxItems": 3}},
            "required": ["names"],
        }
    ),
)
ENDLESS = Grammar(GrammarKind.GBNF, 'root ::= "ab" root | "c"')


def structured(grammar: Grammar, draft_n: int | None = 4, max_tokens: int = 100) -> Request:
    asked = request(max_tokens, draft_n)
    return replace(asked, params=replace(asked.params, grammar=grammar))


def whole(client: Hearing) -> tuple[str, Finished]:
    end = client.end()
    assert isinstance(end, Finished), end
    return bytes(client.ids).decode(), end


def test_the_same_text_of_that_form_at_either_daemon(bench: Bench):
    """With a drafter and without; what the grammar settles is drafted by it, and counted apart."""
    verifier = bench.verifier(SimVerifier(SimSettings()))
    alone, end = whole(verifier.ask(structured(SCHEMA, 0)))
    assert set(json.loads(alone)) == {"names"}
    assert (end.reason, end.report["forced_drafted"], end.report["drafted"]) == ("stop", 0, 0)
    assert whole(verifier.ask(structured(SCHEMA)))[0] == alone
    drafter = bench.drafter(SimDrafter(SimSettings(alpha=0.9)))
    attach(verifier, drafter)

    def forced(daemon: Running) -> int:
        """How much the grammar drafted; all of it stands."""
        text, end = whole(daemon.ask(structured(SCHEMA)))
        assert (text, end.reason) == (alone, "stop")
        accepted = end.report["forced_accepted"]
        assert isinstance(accepted, int)
        assert accepted == end.report["forced_drafted"]
        assert accepted + end.report["accepted"] + end.report["rounds"] >= len(text)
        return accepted

    for daemon in (verifier, drafter):
        until(lambda daemon=daemon: forced(daemon), "drafts pay")
    assert verifier.stats()["totals"]["forced_accepted"] >= 2


def test_a_text_with_ids_for_a_prompt(bench: Bench):
    """It goes through the line of prompts all the same, where grammars are compiled; max_tokens cuts it."""
    text, end = whole(bench.verifier().ask(structured(ENDLESS, max_tokens=7)))
    assert (text, end.reason) == ("abababa", "length")


@pytest.mark.parametrize("socket_of", ["verifier", "drafter"])
def test_a_grammar_that_cannot_be_is_refused(bench: Bench, socket_of: str):
    """Before a session begins, in words; the next request is served."""
    verifier = bench.verifier()
    asked = verifier
    if socket_of == "drafter":
        asked = bench.drafter()
        attach(verifier, asked)
    error = asked.ask(structured(Grammar(GrammarKind.GBNF, "root ::= nothing"))).error()
    assert isinstance(error, RequestError)
    assert "rule root uses nothing" in str(error)
    assert isinstance(asked.ask(request(3)).end(), Finished)


@pytest.mark.parametrize("strategy", ["probabilistic", "threshold"])
def test_strategies_that_look_at_whole_rows_are_refused(bench: Bench, strategy: str):
    asked = structured(SCHEMA)
    sampling = replace(asked.params.sampling, strategy=strategy)
    error = bench.verifier().ask(replace(asked, params=replace(asked.params, sampling=sampling))).error()
    assert f"strategy {strategy} does not go with a grammar" in str(error)


def test_a_text_is_gone_on_with_by_its_ids(bench: Bench):
    """The grammar goes on where it was; a text that it does not allow is refused."""
    verifier = bench.verifier()
    alone, _ = whole(verifier.ask(structured(SCHEMA)))
    asked = structured(SCHEMA)
    resumed = verifier.ask(replace(asked, generated=tuple(alone[:9].encode()), known=9))
    text, end = whole(resumed)
    assert alone[:9] + text == alone
    assert end.report["resumed_tokens"] == 9
    error = verifier.ask(replace(asked, generated=tuple(b"[1"))).error()
    assert "not what its grammar allows" in str(error)


def test_a_grammar_that_cannot_be_compiled_ends_no_drafter(monkeypatch: pytest.MonkeyPatch):
    def compile_(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Grammars, "compile", compile_)
    vocabulary, guides = SimVerifier(SimSettings()).vocabulary, DraftGrammars()
    live = DraftSession(0, None, None, 0, {255}, None, grammar=SCHEMA)

    def given_up() -> bool:
        guides.update(live, vocabulary)
        return live.grammar is None

    try:
        until(given_up, "it is given up")
        assert live.guided is None
    finally:
        guides.close()


def test_drafts_that_no_grammar_can_be_held_against_are_told_of(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The verifier says once of a session that none of its drafts is verified any more."""

    def worn(grammars: Grammars, grammar: Grammar, compile_: object = Grammars.compile) -> GrammarConstraint:
        made: GrammarConstraint = compile_(grammars, grammar)
        made.exhausted = "too many states"
        return made

    verifier = bench.verifier(SimVerifier(SimSettings()))
    with capture_logs() as said:
        alone = whole(verifier.ask(structured(SCHEMA)))[0]
        assert "grammar_spent" not in {line["event"] for line in said}
        monkeypatch.setattr(Grammars, "compile", worn)
        sessions = [whole(verifier.ask(structured(SCHEMA))) for _ in range(2)]
    assert [text for text, _ in sessions] == [alone] * 2
    lines = [line for line in said if line["event"] == "grammar_spent"]
    assert [(line["error"], line["meaning"]) for line in lines] == [
        ("too many states", "none of its drafts is verified")
    ] * 2
    assert len({line["session"] for line in lines}) == 2
