"""Texts of a given form, through the two loops in this process."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from harness.loops import PROMPT, Bench, request, until, welcomed
from structlog.testing import capture_logs

from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.engines.grammar import Grammars
from specmesh.wire import messages as m

SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


def structured(grammar: Grammar, draft_n: int | None = 4, max_tokens: int = 100) -> Request:
    asked = request(max_tokens, draft_n)
    return replace(asked, params=replace(asked.params, grammar=grammar))


@pytest.mark.parametrize("strategy", ["probabilistic", "threshold"])
def test_strategies_that_look_at_whole_rows_are_refused(bench: Bench, strategy: str):
    asked = structured(SCHEMA)
    sampling = replace(asked.params.sampling, strategy=strategy)
    error = bench.verifier().ask(replace(asked, params=replace(asked.params, sampling=sampling))).error()
    assert f"strategy {strategy} does not go with a grammar" in str(error)


def test_a_grammar_that_cannot_be_compiled_ends_no_drafter(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Its drafts go without."""
    monkeypatch.setattr(Grammars, "compile", Mock(side_effect=RuntimeError("a defect")))
    router, _ = welcomed(bench)
    with capture_logs() as said:
        router.say(m.Opened(5, 0, len(PROMPT), structured(SCHEMA).params.named()), m.Sync(5, 0, 0, PROMPT, 4))
        assert router.expect(m.Draft).session == 5
        until(lambda: "grammar_unknown" in {line["event"] for line in said}, "it is said")
